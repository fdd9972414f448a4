// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where log lines go, what an event's says, and what the log does not show: memory given back after start.

mod journal;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_config::LogLevel;
use bursar_model::{Actor, Bytes, EntrySpec, Event, EventKind, Nanos, Pid, Reason, Uid};
use bursar_text::{Charset, event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::Level;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer as TextWriter;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

use self::journal::Journal;
use self::writer::{Entry, Writer};

/// Where the journal takes entries.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// So long we stay for those who read the log, at our end.
const FINISH_WITHIN: Duration = Duration::from_secs(1);
/// Seconds after which the kernel ends us when a thread is gone and we cannot.
const ALARM_S: libc::c_uint = 3;
/// A pipe that is ready for anything has room for so much (pipe(7)).
const PIPE_BUF: usize = 4096;
/// The target of lines that are shown whatever the level is: who changed which limit.
const AUDIT: &str = "audit";
/// The name of the thread that writes.
const THREAD: &str = "log";

static WRITER: OnceLock<Writer> = OnceLock::new();
/// What is shown.
static SHOWN: OnceLock<Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging: to the journal with fields when stderr is connected to it, else to stderr. From then
/// on nobody of us waits for who reads it, panics included.
pub(crate) fn start(level: LogLevel) -> Result<()> {
    let stream = std::env::var_os("JOURNAL_STREAM").filter(|stream| is_stderr(stream));
    let journal = stream.and_then(|_| {
        let socket = UnixDatagram::unbound().ok()?;
        // The journal throws an empty one away; where it is not there this fails.
        socket.send_to(&[], JOURNAL).ok()?;
        Some(socket)
    });
    let has_journal = journal.is_some();
    let writer =
        WRITER.get_or_init(|| Writer::new(if has_journal { lost_entry } else { lost_line }));
    let work = move || writer.write(|entry| write(entry, journal.as_ref()));
    bursar_host::thread::spawn(THREAD, work).context("start the thread that writes the log")?;
    let direct = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match thread::current().name() == Some(THREAD) {
            true => direct(panic),
            false => say(&panic_text(panic)),
        }
        finish();
    }));
    // libbpf's own words reach the log only when somebody looks for them.
    libbpf_quiet();
    let (shown, handle) = reload::Layer::new(shown_at(level));
    SHOWN.get_or_init(|| handle);
    let registry = tracing_subscriber::registry().with(shown);
    if has_journal {
        let leave = |entry| writer_leave(Entry::Journal(entry));
        registry.with(Journal(leave)).init();
        return Ok(());
    }
    let stderr = tracing_subscriber::fmt::layer()
        .with_writer(|| Lines)
        .with_target(false)
        .with_ansi(false);
    registry.with(stderr).init();
    Ok(())
}

/// Shows lines of this level and those that matter more from now on.
pub(crate) fn set_level(level: LogLevel) {
    let Some(handle) = SHOWN.get() else {
        return;
    };
    let shown = shown_at(level);
    let is_new = handle.with_current(|it| *it != shown).unwrap_or_default();
    if is_new && handle.reload(shown).is_ok() {
        tracing::info!(target: AUDIT, "log.level is {} from now on", level.name());
    }
}

fn shown_at(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    Targets::new()
        .with_default(level)
        .with_target(AUDIT, LevelFilter::INFO)
}

/// Whether systemd's name of what leads to the journal, "device:inode", is that of stderr: it is inherited, and
/// stderr may have been sent elsewhere since.
fn is_stderr(stream: &OsStr) -> bool {
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|it| *stream == *format!("{}:{}", it.st_dev, it.st_ino))
}

/// A thread has ended otherwise than planned. Half of bursard is worth less than none: limits hold without it, and the
/// service manager starts it again.
pub(crate) fn end_with(thread: &str, why: &str) -> ! {
    // It may have had a lock that we need for what follows: then this ends us.
    // SAFETY: takes a number; nobody else of us uses the alarm, whose default is to end the process.
    unsafe { libc::alarm(ALARM_S) };
    let line = format!(
        "bursard: its thread \"{thread}\" has ended: {why}; bursard ends with it, to be started again"
    );
    match thread == THREAD {
        true => drop(write_text(format!("{line}\n").as_bytes())),
        false => say(&line),
    }
    finish();
    std::process::exit(1)
}

/// Says a line on stderr, whatever is logged and wherever.
pub(crate) fn say(line: &str) {
    match WRITER.get() {
        Some(writer) => writer.leave_last(Entry::Text(format!("{line}\n").into_bytes())),
        None => eprintln!("{line}"),
    }
}

/// At our end: what waits is written, as far as somebody takes it within a second.
pub(crate) fn finish() {
    let Some(writer) = WRITER.get() else {
        return;
    };
    if writer.finish(FINISH_WITHIN) {
        return;
    }
    for text in writer.take_texts() {
        // What a pipe is ready for it takes without waiting, in so large pieces.
        for piece in text.chunks(PIPE_BUF) {
            let stderr = rustix::stdio::stderr();
            let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
            if !matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1..)) {
                return;
            }
            let _ = rustix::io::write(stderr, piece);
        }
    }
}

/// What the log's lines are left with: each comes in one piece.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        writer_leave(Entry::Text(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn writer_leave(entry: Entry) {
    if let Some(writer) = WRITER.get() {
        writer.leave(entry);
    }
}

/// Waits for whoever reads; whether somebody took it all.
fn write(entry: &Entry, journal: Option<&UnixDatagram>) -> bool {
    match (entry, journal) {
        (Entry::Text(text), _) => write_text(text).is_ok(),
        (Entry::Journal(entry), Some(journal)) => {
            journal::send(journal, Path::new(JOURNAL), entry).is_ok()
        }
        // Only who has a journal makes such entries.
        (Entry::Journal(_), None) => false,
    }
}

/// Past std's lock of stderr, which a full pipe would keep for ever.
fn write_text(mut text: &[u8]) -> rustix::io::Result<()> {
    let stderr = rustix::stdio::stderr();
    while !text.is_empty() {
        match rustix::io::write(stderr, text) {
            Ok(written) => text = text.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Somebody who has it, too, wants not to wait.
            Err(Errno::AGAIN) => {
                poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lost_text(count: u64) -> String {
    let lines = if count == 1 { "line" } else { "lines" };
    let were = if count == 1 { "was" } else { "were" };
    format!("{count} {lines} of the log {were} lost: whoever reads it was away or did not keep up")
}

fn lost_line(count: u64) -> Entry {
    let mut line = String::new();
    let _ = SystemTime.format_time(&mut TextWriter::new(&mut line));
    line.push_str(" ERROR ");
    line.push_str(&lost_text(count));
    line.push('\n');
    Entry::Text(line.into_bytes())
}

fn lost_entry(count: u64) -> Entry {
    Entry::Journal(journal::message(Level::ERROR, &lost_text(count)))
}

fn panic_text(panic: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => format!("\nthread '{name}' {panic}\n{backtrace}"),
        _ => format!("\nthread '{name}' {panic}"),
    }
}

fn libbpf_quiet() {
    bursar_kernel::log_libbpf(|line| tracing::debug!(target: "libbpf", "{line}"));
}

/// One line a fact, as `bursar events` says it, with its fields. Everything in it that a user chose has been made
/// printable.
pub(crate) fn event(event: &Event) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let says = event::line(event, Charset::Unicode);
    let account = text(&event.account);
    let kind = event::kind(event.event);
    let pid = event.pid.map(Pid::get);
    let uid = event.uid.map(Uid::get);
    // A level is no value.
    macro_rules! victim {
        ($level:ident $(, $more:ident = $value:expr)*) => {
            tracing::$level!(
                event = kind,
                account,
                uid,
                pid,
                comm = text(&event.comm),
                victim_bytes = event.victim_bytes.map(Bytes::get),
                held = event.held.map(Bytes::get),
                limit = event.limit.map(Bytes::get),
                $($more = $value,)*
                "{says}"
            )
        };
    }
    match event.event {
        EventKind::Kill => victim!(warn, latency_ns = event.latency_ns.map(Nanos::get)),
        EventKind::WouldKill => victim!(info),
        EventKind::Reaped => tracing::info!(
            event = kind,
            account,
            uid,
            pid,
            freed_bytes = event.freed_bytes.map(Bytes::get),
            duration_ns = event.duration_ns.map(Nanos::get),
            method = text(&event.method),
            found = event.found.join(" "),
            "{says}"
        ),
        EventKind::KillFailed | EventKind::NoVictim | EventKind::Lost => {
            tracing::error!(event = kind, account, uid, pid, "{says}");
        }
        EventKind::Refused | EventKind::WouldRefuse => tracing::info!(
            event = kind,
            account,
            uid,
            pid,
            comm = text(&event.comm),
            refusals = event.refusals,
            "{says}"
        ),
        EventKind::LimitChanged if event.overcommit.is_some() => tracing::warn!(
            event = kind,
            account,
            uid,
            held = event.held.map(Bytes::get),
            limit = event.limit.map(Bytes::get),
            "{says}"
        ),
        EventKind::LimitChanged if event.actor.is_some() => audit(event, kind, &account, &says),
        _ => tracing::info!(event = kind, account, uid, pid, "{says}"),
    }
}

/// Who changed a limit: shown whatever `log.level` is.
fn audit(event: &Event, kind: &str, account: &str, says: &str) {
    let json = |spec: &Option<Box<EntrySpec>>| serde_json::to_string(spec).unwrap_or_default();
    let (mut actor_uid, mut actor_pid, mut login) = (None, None, None);
    let (mut said, mut file) = ("", "");
    match event.actor.as_deref() {
        Some(Actor::Request {
            uid,
            pid,
            login_uid,
            said_by,
        }) => {
            (actor_uid, actor_pid) = (Some(uid.get()), Some(pid.get()));
            login = login_uid.map(Uid::get);
            said = said_by.as_deref().unwrap_or_default();
        }
        Some(Actor::Clock { file: of } | Actor::Reload { file: of }) => file = of,
        None => {}
    }
    let reason = event.stated_reason.as_ref().map_or("", Reason::as_str);
    tracing::info!(
        target: AUDIT,
        event = kind,
        account,
        old = json(&event.old),
        new = json(&event.new),
        actor_uid,
        actor_pid,
        login_uid = login,
        said_by = said,
        file,
        reason,
        "{says}"
    );
}

/// Loading parses megabytes of BTF; glibc keeps the room for more of the same, which never comes.
pub(crate) fn trim_memory() {
    // SAFETY: takes a number and touches only the allocator's own free lists.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const IN_CHILD: &str = "BURSARD_TEST_PANICS";

    /// Alone in a process of its own: the log and what is done at a panic are the whole process's.
    #[test]
    fn a_panic_is_printed_after_what_was_logged_before() {
        if std::env::var_os(IN_CHILD).is_some() {
            start(LogLevel::Info).unwrap();
            tracing::info!("logged before");
            panic!("this is the panic");
        }
        let name = "log::tests::a_panic_is_printed_after_what_was_logged_before";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(IN_CHILD, "1")
            .env_remove("JOURNAL_STREAM")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let logged = said.find(" INFO logged before\n").unwrap();
        let panicked = said.find("panicked at crates/daemon/src/log.rs:").unwrap();
        let told = said.find("this is the panic").unwrap();
        assert!(logged < panicked && panicked < told, "{said}");
    }

    #[test]
    fn what_was_lost_is_said_as_a_line_of_the_log() {
        let Entry::Text(line) = lost_line(2) else {
            panic!("not a line");
        };
        let line = String::from_utf8(line).unwrap();
        assert!(
            line.ends_with(
                "Z ERROR 2 lines of the log were lost: whoever reads it was away or did not keep up\n"
            ),
            "{line}"
        );
    }
}
