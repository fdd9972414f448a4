// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar run --on-notice`: a shell command of the user's runs at each notice of the account that the program pays
//! into. bursar stays the program's parent, hands on signals and ends as the program ends.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use bursar_model::WatchLevel;
use bursar_protocol::Reached;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use super::signals::{self, Signals};
use crate::caller::Caller;
use crate::complaint::complain;
use crate::failure::Failure;
use crate::launch::Launch;
use crate::level_wait::LevelWait;

/// A signal that is on its way when we begin to wait is seen after this.
const GLANCE: Duration = Duration::from_secs(60);

/// Runs the program. Comes back only when it could not be run.
pub(super) fn run(command: String, launch: &Launch, caller: &Caller) -> Failure {
    match begin(command, launch, caller) {
        Ok((mut signals, program)) => loop {
            if let Some(status) = reap(program) {
                end_as(status);
            }
            signals.wait(GLANCE);
            signals.forward(program);
        },
        Err(failure) => failure,
    }
}

fn begin(command: String, launch: &Launch, caller: &Caller) -> Result<(Signals, Pid), Failure> {
    let signals = Signals::catch()?;
    // First: a program whose notices cannot be had is not begun without them.
    let wait = LevelWait::begin(caller.socket.clone(), WatchLevel::Notice, true)?;
    let child = launch.spawn()?;
    let program = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let program = program.ok_or_else(|| Failure::failed("the program's process has no number"))?;
    let socket = caller.socket.clone();
    let attend = move || attend(wait, &command, program, &socket);
    let thread = thread::Builder::new().name("notices".into()).spawn(attend);
    if let Err(error) = thread {
        complain(&format!(
            "--on-notice: the program runs, and nothing is done at a notice: {error}"
        ));
    }
    Ok((signals, program))
}

/// Runs the command at each notice, one after the other.
fn attend(mut wait: LevelWait, command: &str, program: Pid, socket: &PathBuf) {
    loop {
        match wait.next(None) {
            Ok(Some(reached)) => act(command, &reached, program, socket),
            Ok(None) => {}
            Err(Failure::Wrong(_, message)) => {
                return complain(&format!(
                    "--on-notice: the program goes on, and nothing is done at a notice any more: {message}"
                ));
            }
            Err(Failure::Answered | Failure::Unread | Failure::Answer(_)) => return,
        }
    }
}

fn act(command: &str, reached: &Reached, program: Pid, socket: &PathBuf) {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .env("BURSAR_PID", program.as_raw_nonzero().to_string())
        .env("BURSAR_SOCKET", socket)
        .env("BURSAR_HELD", reached.held.get().to_string());
    if let Some(limit) = reached.limit {
        shell.env("BURSAR_LIMIT", limit.get().to_string());
    }
    // The command says itself what went wrong in it.
    if let Err(error) = shell.status() {
        complain(&format!("--on-notice: the command was not run: {error}"));
    }
}

/// How the program ended, if it has. Stops with it when it stopped.
fn reap(program: Pid) -> Option<WaitStatus> {
    loop {
        match waitpid(Some(program), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => signals::stop(),
            Ok(Some((_, status))) if status.exited() || status.signaled() => return Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        signals::end_by(signal);
    }
    std::process::exit(status.exit_status().unwrap_or(1))
}
