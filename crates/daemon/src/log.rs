// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where log lines go, what an event's says, and what the log does not show: memory given back after start.

use bursar_config::LogLevel;
use bursar_model::{Bytes, Event, EventKind, Nanos, Pid, Uid};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging: to the journal with fields when stderr is connected to it, else to stderr.
pub(crate) fn start(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // libbpf's own words reach the log only when somebody looks for them.
    libbpf_quiet();
    let registry = tracing_subscriber::registry().with(level);
    if std::env::var_os("JOURNAL_STREAM").is_some()
        && let Ok(journal) = tracing_journald::layer()
    {
        registry.with(journal).init();
        return;
    }
    let stderr = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false);
    registry.with(stderr).init();
}

fn libbpf_quiet() {
    bursar_kernel::log_libbpf(|line| tracing::debug!(target: "libbpf", "{line}"));
}

/// One line a fact. Everything in it that a user chose has been made printable.
pub(crate) fn event(event: &Event) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let account = text(&event.account);
    let reason = text(&event.reason);
    let pid = event.pid.map(Pid::get);
    let uid = event.uid.map(Uid::get);
    match event.event {
        EventKind::Kill => tracing::warn!(
            account,
            uid,
            pid,
            comm = text(&event.comm),
            victim_bytes = event.victim_bytes.map(Bytes::get),
            held = event.held.map(Bytes::get),
            limit = event.limit.map(Bytes::get),
            latency_ns = event.latency_ns.map(Nanos::get),
            "killed: {reason}"
        ),
        EventKind::Reaped => tracing::info!(
            account,
            uid,
            pid,
            freed_bytes = event.freed_bytes.map(Bytes::get),
            duration_ns = event.duration_ns.map(Nanos::get),
            method = text(&event.method),
            found = event.found.join(" "),
            "{}",
            match (&event.method, reason.as_str()) {
                (Some(_), "") => "memory is back".to_owned(),
                (Some(_), reason) => reason.to_owned(),
                (None, reason) => format!("memory is not back: {reason}"),
            }
        ),
        EventKind::KillFailed | EventKind::NoVictim | EventKind::Lost => {
            tracing::error!(account, uid, pid, event = ?event.event, "{reason}");
        }
        EventKind::Refused => tracing::info!(
            account,
            uid,
            pid,
            comm = text(&event.comm),
            refusals = event.refusals,
            "refused: {reason}"
        ),
        EventKind::Notice => tracing::info!(account, uid, "notice: {reason}"),
        EventKind::LimitChanged if event.overcommit.is_some() => tracing::warn!(
            account,
            uid,
            held = event.held.map(Bytes::get),
            limit = event.limit.map(Bytes::get),
            "{account} is over by {}: {reason}",
            event.overcommit.unwrap_or_default()
        ),
        kind => tracing::info!(account, event = ?kind, "{reason}"),
    }
}

/// Loading parses megabytes of BTF; glibc keeps the room for more of the same, which never comes.
pub(crate) fn trim_memory() {
    // SAFETY: takes a number and touches only the allocator's own free lists.
    unsafe { libc::malloc_trim(0) };
}
