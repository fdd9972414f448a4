// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where log lines go, and what the log does not show: memory given back after start.

use bursar_config::LogLevel;
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

/// Loading parses megabytes of BTF; glibc keeps the room for more of the same, which never comes.
pub(crate) fn trim_memory() {
    // SAFETY: takes a number and touches only the allocator's own free lists.
    unsafe { libc::malloc_trim(0) };
}
