// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals: what is sent to the rlimit gate is meant for the command.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::consts::{SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::siginfo::Cause;

use crate::failure::Failure;

const FORWARDED: [i32; 8] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
];

/// Signals on their way to the command.
#[derive(Debug)]
pub(super) struct Signals(SignalDelivery<UnixStream, WithOrigin>);

impl Signals {
    /// From now on none of them ends or stops us. What the caller ignores (nohup) stays ignored, also
    /// by the command.
    pub(super) fn catch() -> Result<Self, Failure> {
        let failed = |error| Failure::failed(format!("cannot catch signals: {error}"));
        let ignored = ignored();
        let caught = FORWARDED
            .into_iter()
            .filter(|signal| ignored >> (signal - 1) & 1 == 0)
            .chain([SIGCHLD]);
        let (read, write) = UnixStream::pair().map_err(failed)?;
        let delivery = SignalDelivery::with_pipe(read, write, WithOrigin::default(), caught);
        Ok(Self(delivery.map_err(failed)?))
    }

    /// Whether one came within `pause`.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        let timeout = Timespec::try_from(pause).ok();
        let mut watched = [PollFd::new(self.0.get_read(), PollFlags::IN)];
        // EINTR: one came.
        poll(&mut watched, timeout.as_ref()).map_or(true, |ready| ready > 0)
    }

    /// Hands on to `command` what came. What the terminal sent (Ctrl-C, Ctrl-Z, hanging up) went to
    /// the whole foreground group, and the command is in ours: it has it already.
    pub(super) fn forward(&mut self, command: Pid) {
        for origin in self.0.pending() {
            let is_from_terminal = matches!(origin.cause, Cause::Kernel);
            if origin.signal == SIGCHLD || is_from_terminal {
                continue;
            }
            if let Some(signal) = Signal::from_named_raw(origin.signal) {
                // Gone already: then there is nobody to tell.
                let _ = kill_process(command, signal);
            }
        }
    }
}

/// Bit n − 1 is set when we ignore signal n; nothing when the kernel does not say.
fn ignored() -> u64 {
    // Our own name is any bytes.
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Stops as the command did, so that the shell that started us takes the terminal back.
pub(super) fn stop() {
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Ends by the signal that ended the command, as far as one can; then by the exit code that shells
/// give it.
pub(super) fn end_by(signal: i32) -> ! {
    // The core, if there is one, is the command's.
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: rustix::process::getrlimit(rustix::process::Resource::Core).maximum,
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    match signal {
        // Of these we have handlers, and SIGQUIT's default action cannot be had back from safe code.
        SIGQUIT => {}
        SIGHUP | SIGINT | SIGTERM | SIGUSR1 | SIGUSR2 => {
            let _ = emulate_default_handler(signal);
        }
        other => {
            // Twice: Rust's own handler of SIGSEGV and SIGBUS takes the first and goes away.
            for _ in 0..2 {
                if let Some(signal) = Signal::from_named_raw(other) {
                    let _ = kill_process(getpid(), signal);
                }
            }
        }
    }
    std::process::exit(128 + signal)
}
