// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Up to which kill a user has been told at his logins: one small file a user, in the state directory, written only
//! when there was something to be told.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bursar_host::make_directory;
use bursar_model::Uid;

use crate::history::STATE;

/// An event's time is shorter.
const LONGEST: u64 = 64;

#[derive(Debug)]
pub(crate) struct Briefings(PathBuf);

impl Briefings {
    pub(crate) fn new(state: &Path) -> Self {
        Self(state.join("briefed"))
    }

    /// The time of the last event that this user was told of, as events have it; before the first: nothing.
    pub(crate) fn last(&self, uid: Uid) -> Option<String> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.path(uid));
        let mut text = String::new();
        file.ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// He was told of what happened until then.
    pub(crate) fn told(&self, uid: Uid, time: &str) -> io::Result<()> {
        make_directory(&self.0, STATE)?;
        // Half a line after a crash would be less than the time: he is told once more.
        let new = self.path(uid).with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&new)?;
        writeln!(file, "{time}")?;
        fs::rename(new, self.path(uid))
    }

    fn path(&self, uid: Uid) -> PathBuf {
        self.0.join(uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_is_remembered_by_himself_and_over_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let briefings = || Briefings::new(state.path());
        let (alice, bob) = (Uid::new(60_001), Uid::new(60_002));
        assert_eq!(briefings().last(alice), None);
        let (first, second) = ("2026-11-21T05:00:00.000000Z", "2026-11-22T05:00:00.000000Z");
        briefings().told(alice, first).unwrap();
        briefings().told(alice, second).unwrap();
        briefings().told(bob, first).unwrap();
        assert_eq!(briefings().last(alice).as_deref(), Some(second));
        assert_eq!(briefings().last(bob).as_deref(), Some(first));
    }
}
