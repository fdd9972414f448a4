// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of a guest, for programs (a status) and for people (a story).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::console::tail;
use crate::program;
use crate::suite::Suite;

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The command ended with this status (128 + n for signal n, as in a shell).
    Exited(u8),
    /// It did not end in this time, boot included.
    TimedOut(Duration),
    /// The kernel stopped for good.
    Panicked,
    /// The machine went without a word of the command; here is what is known.
    Died(String),
    /// Somebody pressed Ctrl-C, or sent SIGTERM or SIGHUP.
    Interrupted,
}

/// What came of a guest.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which suite's kernel it ran.
    pub suite: Suite,
    /// What `uname -r` says in it.
    pub release: String,
    /// How it ended.
    pub ending: Ending,
    /// What the kernel complained of.
    pub complaints: Vec<String>,
    /// Whether complaints make the run a failure.
    pub complaints_fail: bool,
    /// Files that were to be copied out and are not there.
    pub missing: Vec<PathBuf>,
    /// From QEMU's start to the command's.
    pub boot: Option<Duration>,
    /// How long the run took in all, the making of the initramfs included.
    pub total: Duration,
    /// `console.log`, `dmesg.log` and `qemu.log` are here.
    pub logs: PathBuf,
}

impl Report {
    /// The status to exit with: the command's own; 124 when time ran out; 125 when the guest
    /// failed, its kernel complained or a file is missing; 130 when interrupted.
    pub fn status(&self) -> u8 {
        match &self.ending {
            Ending::Exited(0) if self.complaints_fail && !self.complaints.is_empty() => 125,
            Ending::Exited(0) if !self.missing.is_empty() => 125,
            Ending::Exited(status) => *status,
            Ending::TimedOut(_) => 124,
            Ending::Panicked | Ending::Died(_) => 125,
            Ending::Interrupted => 130,
        }
    }

    /// What happened, for a person: the first line says how it ended.
    pub fn story(&self) -> Vec<String> {
        let boot = self.boot.map_or("never ready".to_owned(), |boot| {
            format!("ready after {:.1} s", boot.as_secs_f64())
        });
        let ending = match &self.ending {
            Ending::Exited(status) => format!("exit {status}"),
            Ending::TimedOut(after) => format!("timed out after {} s", after.as_secs()),
            Ending::Panicked => "the kernel panicked".to_owned(),
            Ending::Died(why) => format!("the guest died: {why}"),
            Ending::Interrupted => "interrupted".to_owned(),
        };
        let total = self.total.as_secs_f64();
        let mut story = vec![format!(
            "{} {}: {ending} ({boot}, {total:.1} s in all)",
            self.suite, self.release
        )];
        for path in &self.missing {
            story.push(format!("the guest has no file {path:?} to copy out"));
        }
        let verdict = if self.complaints_fail {
            ""
        } else {
            " (allowed)"
        };
        for complaint in &self.complaints {
            story.push(format!("the kernel complained{verdict}: {complaint}"));
        }
        if matches!(
            self.ending,
            Ending::TimedOut(_) | Ending::Panicked | Ending::Died(_)
        ) {
            let console = lossy(&self.logs.join("console.log"));
            story.extend(
                tail(&console, 30)
                    .into_iter()
                    .map(|line| format!("| {line}")),
            );
        }
        if self.status() != 0 {
            story.push(format!("logs: {}", self.logs.display()));
        }
        story
    }
}

/// Why a machine went without a panic.
pub(super) fn death(console: &str, qemu: &str, status: Option<ExitStatus>) -> String {
    if let Some((_, why)) = console
        .lines()
        .rev()
        .find_map(|line| line.split_once("bursar-vm: "))
    {
        return why.trim().to_owned();
    }
    let said = program::last_lines(qemu.as_bytes());
    match status {
        Some(status) if !status.success() => format!("QEMU: {status}: {said}"),
        _ => "it was powered off or rebooted before the command ended".to_owned(),
    }
}

/// A log is for people and need not be there.
pub(super) fn lossy(path: &Path) -> String {
    fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ending: Ending, complaints: &[&str], complaints_fail: bool) -> Report {
        Report {
            suite: Suite::Trixie,
            release: "6.12-x".to_owned(),
            ending,
            complaints: complaints.iter().map(|&text| text.to_owned()).collect(),
            complaints_fail,
            missing: Vec::new(),
            boot: Some(Duration::from_millis(1900)),
            total: Duration::from_millis(2500),
            logs: PathBuf::from("/nonexistent"),
        }
    }

    #[test]
    fn the_commands_own_status_is_the_status_unless_the_guest_failed() {
        let warning = ["WARNING: CPU: 0"];
        for (ending, complaints, fail, status) in [
            (Ending::Exited(0), &[][..], true, 0),
            (Ending::Exited(7), &[][..], true, 7),
            (Ending::Exited(0), &warning[..], true, 125),
            (Ending::Exited(0), &warning[..], false, 0),
            (Ending::Exited(7), &warning[..], true, 7),
            (Ending::TimedOut(Duration::from_secs(1)), &[][..], true, 124),
            (Ending::Panicked, &[][..], false, 125),
            (Ending::Died("x".to_owned()), &[][..], true, 125),
            (Ending::Interrupted, &[][..], true, 130),
        ] {
            assert_eq!(
                report(ending.clone(), complaints, fail).status(),
                status,
                "{ending:?} {complaints:?}"
            );
        }
    }

    #[test]
    fn a_file_that_is_missing_fails_a_command_that_passed() {
        let mut report = report(Ending::Exited(0), &[], true);
        report.missing.push(PathBuf::from("/root/result.json"));
        assert_eq!(report.status(), 125);
        assert!(report.story()[1].contains("/root/result.json"));
    }

    #[test]
    fn the_story_begins_with_the_ending() {
        let story = report(Ending::Exited(0), &[], true).story();
        assert_eq!(
            story,
            ["trixie 6.12-x: exit 0 (ready after 1.9 s, 2.5 s in all)"]
        );
    }
}
