// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of events: 1, 2, 3 …, each given once, also by whoever runs after us. Who has read up to one
//! asks for those after it, and a gap says how many it has missed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Gives numbers. The last one is written down before anybody hears of it: events that find no room in the files
/// have one, too, and are gone when we are killed.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: u64,
    file: Option<File>,
}

impl Numbers {
    /// Goes on after what the file at `path` says, and after `stored`, whichever is more.
    pub(super) fn open(path: &Path, stored: u64) -> Self {
        let mut text = String::new();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .and_then(|mut file| {
                // A file that is no text of ours says nothing.
                match (&mut file).take(64).read_to_string(&mut text) {
                    Err(error) if error.kind() != io::ErrorKind::InvalidData => Err(error),
                    _ => Ok(file),
                }
            })
            .inspect_err(|error| {
                tracing::error!(
                    path = %path.display(), %error,
                    "numbers of events are not written down: after a restart some may be given twice"
                );
            })
            .ok();
        let written = text.trim().parse().unwrap_or(0);
        Self {
            last: stored.max(written),
            file,
        }
    }

    pub(super) const fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn give(&mut self) -> u64 {
        self.last = self.last.saturating_add(1);
        // Always as long, in place: needs no room on a full disk.
        let text = format!("{:020}\n", self.last);
        if let Some(file) = &self.file
            && let Err(error) = file.write_all_at(text.as_bytes(), 0)
        {
            tracing::error!(%error, "numbers of events are not written down any more");
            self.file = None;
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_twice_whoever_was_killed_in_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        let mut first = Numbers::open(&path, 0);
        assert_eq!([first.give(), first.give()], [1, 2]);
        std::mem::forget(first);
        let mut second = Numbers::open(&path, 1);
        assert_eq!((second.last(), second.give()), (2, 3));
    }

    #[test]
    fn what_is_stored_counts_where_the_file_says_less_or_nonsense() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("number");
        for text in [&b""[..], b"\xff\xfe", b"many", b"00000000000000000003\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Numbers::open(&path, 7).give(), 8);
        }
        let nowhere = Path::new("/proc/nowhere/number");
        assert_eq!(Numbers::open(nowhere, 7).give(), 8);
    }
}
