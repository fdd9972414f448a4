// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminals a user sits at, and one line of text to each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bursar_model::{Pid, Uid, printable};
use rustix::fs::{FileType, Mode, OFlags};

use crate::bytes::words;
use crate::{Device, HostError, Proc, ProcessQuery};

/// A user with more terminals is told on so many of them only.
pub const MAX_TERMINALS: usize = 64;

/// The most that is written to a terminal, characters.
pub const MAX_NOTIFICATION: usize = 400;

/// The terminals of this machine.
#[derive(Debug)]
pub struct Terminals<'a> {
    proc: &'a Proc,
    dev: PathBuf,
    sys: PathBuf,
}

/// What a user runs, and where he sits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserTerminals {
    /// All of his processes.
    pub processes: Vec<Pid>,
    /// Their controlling terminals, at most [`MAX_TERMINALS`].
    pub terminals: BTreeSet<Device>,
}

/// How telling a user went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notified {
    /// Terminals that took the text.
    pub written: u32,
    /// Terminals that did not: stopped with ^S, just closed, or not the user's after all.
    pub failed: u32,
}

impl<'a> Terminals<'a> {
    /// Those of the processes in `proc`, as devices under `dev` (`/dev`), which `sys` (`/sys`) names
    /// where they are unusual.
    pub fn at(proc: &'a Proc, dev: &Path, sys: &Path) -> Self {
        Self {
            proc,
            dev: dev.to_owned(),
            sys: sys.to_owned(),
        }
    }

    /// This machine's.
    pub fn host(proc: &'a Proc) -> Self {
        Self::at(proc, Path::new("/dev"), Path::new("/sys"))
    }

    /// The processes of these users and their controlling terminals, by one scan of all processes; users without any are
    /// left out. A process belongs to its real uid. Who owns a terminal is checked when it is opened.
    ///
    /// # Errors
    /// When /proc cannot be listed. What cannot be read about one process concerns only that one.
    pub fn of_users(
        &self,
        users: &BTreeSet<Uid>,
        ask: &mut impl ProcessQuery,
    ) -> Result<BTreeMap<Uid, UserTerminals>, HostError> {
        let mut by_user: BTreeMap<Uid, UserTerminals> = BTreeMap::new();
        let mut owners = BTreeMap::new();
        for pid in self.proc.pids()? {
            let pid = pid?;
            // Whose it is nobody delays; so whom he is told by is his own affair.
            let Ok(Some(status)) = self.proc.status(pid) else {
                continue;
            };
            if users.contains(&status.uid) {
                by_user.entry(status.uid).or_default().processes.push(pid);
                owners.insert(pid, status.uid);
            }
        }
        let of = |proc: &Proc, pid| proc.stat(pid).ok().flatten()?.terminal;
        let all = owners.keys().copied().collect();
        for (pid, terminal) in ask.ask_each(all, of) {
            let user_terminals = owners.get(&pid).and_then(|uid| by_user.get_mut(uid));
            if let (Some(user_terminals), Some(terminal)) = (user_terminals, terminal)
                && user_terminals.terminals.len() < MAX_TERMINALS
            {
                user_terminals.terminals.insert(terminal);
            }
        }
        Ok(by_user)
    }

    /// Writes one line to each of his terminals that `uid` owns: on a line of its own, without anything that a
    /// terminal would obey, at most [`MAX_NOTIFICATION`] characters. Waits for none of them.
    pub fn tell(&self, uid: Uid, user_terminals: &UserTerminals, text: &str) -> Notified {
        let line = format!("\r\n{}\r\n", harmless(text));
        let mut told = Notified::default();
        for &device in &user_terminals.terminals {
            let opened = self
                .path_of(device)
                .and_then(|path| open_if_owned(&path, device, uid));
            // Once: a terminal that takes half a line is stopped, and we do not wait for it.
            let written =
                opened.and_then(|terminal| rustix::io::write(terminal, line.as_bytes()).ok());
            if written == Some(line.len()) {
                told.written = told.written.saturating_add(1);
            } else {
                told.failed = told.failed.saturating_add(1);
            }
        }
        told
    }

    /// Where a terminal is (Documentation/admin-guide/devices.txt). `None` when nobody names it.
    pub fn path_of(&self, device: Device) -> Option<PathBuf> {
        let name = match (device.major(), device.minor()) {
            (136..=143, minor) => {
                let number = (device.major() - 136)
                    .saturating_mul(256)
                    .saturating_add(minor);
                format!("pts/{number}")
            }
            (4, minor @ 1..=63) => format!("tty{minor}"),
            (4, minor @ 64..) => format!("ttyS{}", minor - 64),
            _ => self.name_in_sys(device)?,
        };
        Some(self.dev.join(name))
    }

    fn name_in_sys(&self, device: Device) -> Option<String> {
        let path = format!("dev/char/{}:{}/uevent", device.major(), device.minor());
        let uevent = fs::read(self.sys.join(path)).ok()?;
        let name = words(&uevent).find_map(|line| line.strip_prefix(b"DEVNAME="))?;
        let name = str::from_utf8(name).ok()?;
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        name.split('/').all(is_plain).then(|| name.to_owned())
    }
}

/// The terminal at `path`, opened for writing, if it is that device and belongs to `uid`. Asked of what
/// was opened, not of the path: `su` leaves processes of one user on another's terminal, and a path may
/// change hands.
fn open_if_owned(path: &Path, device: Device, uid: Uid) -> Option<OwnedFd> {
    let flags =
        OFlags::WRONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_terminal = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && rustix::fs::major(stat.st_rdev) == device.major()
        && rustix::fs::minor(stat.st_rdev) == device.minor();
    (is_terminal && stat.st_uid == uid.get()).then_some(file)
}

/// One line without anything that a terminal would obey. Backslashes stay single: most of the text has
/// passed the model's door before.
fn harmless(text: &str) -> String {
    let cut: String = text.chars().take(MAX_NOTIFICATION).collect();
    cut.split('\\')
        .map(|part| printable(part.as_bytes(), MAX_NOTIFICATION))
        .collect::<Vec<_>>()
        .join("\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_under_their_names() {
        let sys = tempfile::tempdir().unwrap();
        for (device, name) in [
            ("229:0", "hvc0"),
            ("1:1", "../../etc/shadow"),
            ("1:2", "a/b"),
            ("1:3", ""),
        ] {
            let directory = sys.path().join("dev/char").join(device);
            fs::create_dir_all(&directory).unwrap();
            let text = format!("MAJOR=229\nMINOR=0\nDEVNAME={name}\n");
            fs::write(directory.join("uevent"), text).unwrap();
        }
        let proc = Proc::host().unwrap();
        let terminals = Terminals::at(&proc, Path::new("/d"), sys.path());
        let table = [
            ((136, 0), Some("/d/pts/0")),
            ((136, 300), Some("/d/pts/300")),
            ((137, 1), Some("/d/pts/257")),
            ((4, 1), Some("/d/tty1")),
            ((4, 64), Some("/d/ttyS0")),
            ((4, 0), None),
            ((229, 0), Some("/d/hvc0")),
            ((1, 1), None),
            ((1, 2), Some("/d/a/b")),
            ((1, 3), None),
            ((1, 4), None),
        ];
        for ((major, minor), path) in table {
            assert_eq!(
                terminals.path_of(Device::new(major, minor)),
                path.map(PathBuf::from)
            );
        }
    }

    #[test]
    fn what_is_told_commands_no_terminal() {
        assert_eq!(
            harmless("killed \"a\\x1b\"\x1b[2J\nroot# "),
            r#"killed "a\x1b"\x1b[2J\nroot# "#
        );
        assert_eq!(harmless(&"x".repeat(1000)).len(), MAX_NOTIFICATION);
    }
}
