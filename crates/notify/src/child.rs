// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program of the administrator's, with a text on stdin, an environment of ours and a time limit.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bursar_model::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::delivery::Outcome;

/// All of the environment besides what the caller adds.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Exit codes of sysexits.h that say: later.
const LATER: [i32; 3] = [71, 74, 75];
/// Those of a shell or loader that could not start a program.
const NOT_STARTED: [i32; 2] = [126, 127];

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    Exit(i32),
    Signal(i32),
    /// It was killed, with all that it had begun in its process group.
    TimedOut,
    NotStarted(String),
}

/// Runs `command` until it ends, or for so long.
pub(crate) fn run(
    command: &[String],
    stdin: &[u8],
    environment: &[(&str, &str)],
    timeout: Duration,
) -> Ended {
    try_run(command, stdin, environment, timeout)
        .unwrap_or_else(|error| Ended::NotStarted(error.to_string()))
}

fn try_run(
    command: &[String],
    stdin: &[u8],
    environment: &[(&str, &str)],
    timeout: Duration,
) -> std::io::Result<Ended> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(Ended::NotStarted("no command".to_owned()));
    };
    // Of a file in memory a program may read as little as it likes, and nobody waits.
    let mut input = File::from(memfd_create("stdin", MemfdFlags::CLOEXEC)?);
    input.write_all(stdin)?;
    input.seek(SeekFrom::Start(0))?;
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("LANG", "C.UTF-8")
        .envs(environment.iter().copied())
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()?;
    // It has begun: what cannot be waited for is as what takes too long.
    let has_ended = wait(&child, timeout).unwrap_or(false);
    if !has_ended {
        end_all(&child);
    }
    let status = child.wait()?;
    Ok(match (has_ended, status.code(), status.signal()) {
        (false, ..) => Ended::TimedOut,
        (true, Some(code), _) => Ended::Exit(code),
        (true, None, signal) => Ended::Signal(signal.unwrap_or(0)),
    })
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

/// Whether it ends within that time.
fn wait(child: &Child, timeout: Duration) -> std::io::Result<bool> {
    let Some(pid) = pid(child) else {
        return Ok(false);
    };
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let until = Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Not waited for yet: nobody else has its number.
fn end_all(child: &Child) {
    if let Some(pid) = pid(child)
        && let Err(error) = kill_process_group(pid, Signal::KILL)
    {
        tracing::warn!(%error, "a program that took too long could not be killed");
    }
}

/// What a program's end means.
pub(crate) fn outcome(what: &str, ended: &Ended) -> Outcome {
    match ended {
        Ended::Exit(0) => Outcome::Delivered,
        Ended::Exit(code) if LATER.contains(code) => Outcome::later(format!("{what}: exit {code}")),
        Ended::Exit(code) if NOT_STARTED.contains(code) => {
            Outcome::Unreached(format!("{what}: exit {code}"))
        }
        Ended::Exit(code) => Outcome::Refused(format!("{what}: exit {code}")),
        Ended::Signal(signal) => Outcome::unsure(format!("{what}: ended by signal {signal}")),
        Ended::TimedOut => Outcome::unsure(format!("{what}: took too long")),
        Ended::NotStarted(error) => Outcome::Unreached(format!(
            "{what}: cannot be started: {}",
            printable(error.as_bytes(), 200)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, stdin: &str, timeout: Duration) -> Ended {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        run(
            &command,
            stdin.as_bytes(),
            &[("BURSAR_DELIVERY", "id-1")],
            timeout,
        )
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_program_reads_its_text_and_sees_no_environment_of_ours() {
        let script = r#"test "$(cat)" = text && test "$BURSAR_DELIVERY" = id-1 && test -z "$CARGO$HOME" && exit 3"#;
        assert_eq!(shell(script, "text", LONG), Ended::Exit(3));
        // More than a pipe takes, and nobody reads it.
        let much = "x".repeat(1 << 20);
        assert_eq!(shell("exit 0", &much, LONG), Ended::Exit(0));
        assert_eq!(shell("kill -9 $$", "", LONG), Ended::Signal(9));
        let none = run(&["/nowhere".to_owned()], b"", &[], LONG);
        assert!(matches!(none, Ended::NotStarted(_)));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_no_answer() {
        for ended in [
            shell("/nowhere/x", "", LONG),
            Ended::NotStarted(String::new()),
        ] {
            assert!(matches!(outcome("x", &ended), Outcome::Unreached(_)));
        }
        let later = outcome("x", &Ended::Exit(75));
        assert_eq!(later, Outcome::later("x: exit 75".to_owned()));
    }

    #[test]
    fn a_program_that_was_ended_may_have_told() {
        for ended in [Ended::Signal(9), Ended::TimedOut] {
            let outcome = outcome("x", &ended);
            assert!(matches!(outcome, Outcome::Later { is_unsure, .. } if is_unsure));
        }
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed_with_what_it_began() {
        let began = Instant::now();
        let ended = shell("sleep 100 & sleep 100", "", Duration::from_millis(100));
        assert_eq!(ended, Ended::TimedOut);
        assert!(began.elapsed() < LONG);
    }
}
