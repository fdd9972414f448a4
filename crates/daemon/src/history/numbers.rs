// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of events: 1, 2, 3 …, each given once, also by whoever runs after us. Who has read up to one
//! asks for those after it, and a gap says how many it has missed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::reserve::{Reserve, open_file};

/// Gives numbers. The last one is written down before anybody hears of it: events that find no room in the files
/// have one, too, and are gone when we are killed. That holds until the machine stops; beyond that a block of numbers
/// is set aside on the disk (reserve.rs).
#[derive(Debug, Default)]
pub(super) struct Numbers {
    last: u64,
    file: Option<File>,
    reserve: Option<Reserve>,
}

impl Numbers {
    /// Goes on after what the files in `directory` say, and after `stored`, whichever is more. `boot` names the start
    /// of this machine.
    pub(super) fn open(directory: &Path, stored: u64, boot: &str) -> Self {
        let path = directory.join("events.number");
        let mut text = String::new();
        let file = open_file(&path)
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
        let written: Option<u64> = text.trim().parse().ok();
        let path = directory.join("events.reserved");
        let reserve = Reserve::open(&path, boot, written.is_some()).inspect_err(|error| {
            tracing::error!(
                path = %path.display(), %error,
                "numbers of events are not set aside: after a power failure some may be given twice"
            );
        });
        let (mut reserve, skipped) = reserve.map_or((None, None), |(it, to)| (Some(it), to));
        let known = stored.max(written.unwrap_or(0));
        let last = known.max(skipped.unwrap_or(0));
        if last > known {
            tracing::warn!(
                "events after number {known} that were not on the disk are gone, after a power failure or another \
                 end without a word; numbers go on after {last}"
            );
        }
        if let Some(reserve) = &mut reserve {
            reserve.ask_for(last);
        }
        Self {
            last,
            file,
            reserve,
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
            // Whoever runs after us goes on after those set aside.
            let _ = file.set_len(0);
            self.file = None;
        }
        if let Some(reserve) = &mut self.reserve {
            reserve.cover(self.last);
        }
        self.last
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        if let Some(reserve) = &mut self.reserve {
            reserve.close(self.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "8f1c1a2e-0000-4000-8000-000000000001";
    const NEXT: &str = "8f1c1a2e-0000-4000-8000-000000000002";

    #[test]
    fn no_number_is_given_twice_whoever_was_killed_in_between() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Numbers::open(directory.path(), 0, BOOT);
        assert_eq!([first.give(), first.give()], [1, 2]);
        std::mem::forget(first);
        let mut second = Numbers::open(directory.path(), 1, BOOT);
        assert_eq!((second.last(), second.give()), (2, 3));
    }

    #[test]
    fn no_number_is_given_twice_after_a_power_failure() {
        let directory = tempfile::tempdir().unwrap();
        let (number, reserved) = (
            directory.path().join("events.number"),
            directory.path().join("events.reserved"),
        );
        let mut told = 0;
        for count in [1, 600, 5_000] {
            // What was not waited for is as it was before.
            let kept = std::fs::read(&number).unwrap_or_default();
            let mut numbers = Numbers::open(directory.path(), 0, BOOT);
            for _ in 0..count {
                let next = numbers.give();
                assert!(next > told, "{next} after {told}");
                told = next;
            }
            std::mem::forget(numbers);
            std::fs::write(&number, kept).unwrap();
            // The next start is another boot.
            let text = std::fs::read_to_string(&reserved).unwrap();
            std::fs::write(&reserved, text.replace(BOOT, NEXT)).unwrap();
            let next = Numbers::open(directory.path(), 0, BOOT);
            assert!(next.last() >= told && next.last() <= told + 1024);
            std::mem::forget(next);
            std::fs::write(&reserved, text.replace(BOOT, NEXT)).unwrap();
        }
    }

    #[test]
    fn nothing_is_skipped_after_an_orderly_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Numbers::open(directory.path(), 0, BOOT);
        (1..=700).for_each(|number| assert_eq!(first.give(), number));
        drop(first);
        let mut second = Numbers::open(directory.path(), 0, NEXT);
        assert_eq!(second.give(), 701);
    }

    #[test]
    fn what_is_stored_counts_where_the_file_says_less_or_nonsense() {
        let directory = tempfile::tempdir().unwrap();
        for text in [&b""[..], b"\xff\xfe", b"many", b"00000000000000000003\n"] {
            std::fs::write(directory.path().join("events.number"), text).unwrap();
            std::fs::write(directory.path().join("events.reserved"), text).unwrap();
            assert_eq!(Numbers::open(directory.path(), 7, BOOT).give(), 8);
        }
        let nowhere = Path::new("/proc/nowhere");
        assert_eq!(Numbers::open(nowhere, 7, BOOT).give(), 8);
    }
}
