// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers set aside on disk before the first of them is told. After a power failure the files say less than was
//! told; numbers go on after those set aside, so that none is given to two events.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use bursar_host::thread;

/// Numbers that are set aside at once: so many are skipped after a power failure at most.
const BLOCK: u64 = 1024;
/// More are set aside when fewer are left. The disk has as long as that many events take.
const LOW: u64 = BLOCK / 2;
/// A disk that hangs holds up events for so long, once.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Of the thread, bytes.
const STACK: usize = 64 << 10;

/// A file of numbers, made where it is missing; nobody's link is followed.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

/// What the disk has set aside.
#[derive(Debug)]
pub(super) struct Reserve {
    ask: SyncSender<u64>,
    answers: Receiver<io::Result<u64>>,
    upto: u64,
    is_asked: bool,
    /// The disk did not do it in time.
    is_late: bool,
}

impl Reserve {
    /// Sets numbers aside in the file at `path`. Returns after which number to go on, if those before may have been
    /// told and nothing else says which: the number given last is not `written` down, or was by a machine that has
    /// stopped since. `boot` names the start of this one.
    pub(super) fn open(path: &Path, boot: &str, written: bool) -> io::Result<(Self, Option<u64>)> {
        let mut file = open_file(path)?;
        let mut text = Vec::new();
        (&mut file).take(128).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let mut words = text.split_ascii_whitespace();
        let before: Option<u64> = words.next().and_then(|it| it.parse().ok());
        let is_this_boot = words.next() == Some(boot);
        // The file itself is to be there after a power failure.
        file.sync_all()?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        let (ask, asked) = sync_channel::<u64>(2);
        let (answer, answers) = sync_channel(2);
        let boot = boot.to_owned();
        thread::spawn_small("numbers", STACK, move || {
            while let Ok(upto) = asked.recv() {
                // Always as long, in place: needs no room on a full disk.
                let text = format!("{upto:020} {boot}\n");
                let done = file.write_all_at(text.as_bytes(), 0);
                let done = done.and_then(|()| file.sync_data()).map(|()| upto);
                if answer.send(done).is_err() {
                    return;
                }
            }
        })?;
        let reserve = Self {
            ask,
            answers,
            upto: 0,
            is_asked: false,
            is_late: false,
        };
        Ok((reserve, before.filter(|_| !(is_this_boot && written))))
    }

    /// Sees to it that the disk has set this number aside, and those that come next before they come.
    pub(super) fn cover(&mut self, number: u64) {
        while let Ok(answer) = self.answers.try_recv() {
            self.hear(answer);
        }
        if self.upto < number.saturating_add(LOW) && !self.is_asked {
            self.ask_for(number);
        }
        if self.upto < number && !self.is_late {
            match self.answers.recv_timeout(TIMEOUT) {
                Ok(answer) => self.hear(answer),
                Err(_) => self.complain("the disk takes too long"),
            }
        }
    }

    /// Has those after this one set aside.
    pub(super) fn ask_for(&mut self, after: u64) {
        self.is_asked = self.ask.try_send(after.saturating_add(BLOCK)).is_ok();
    }

    /// Gives back those beyond the one given last: nothing is skipped after an orderly end.
    pub(super) fn close(&mut self, last: u64) {
        if self.is_asked && !self.is_late {
            let _ = self.answers.recv_timeout(TIMEOUT);
        }
        if self.ask.try_send(last).is_ok() {
            let _ = self.answers.recv_timeout(TIMEOUT);
        }
    }

    fn hear(&mut self, answer: io::Result<u64>) {
        self.is_asked = false;
        match answer {
            Ok(upto) => {
                self.upto = upto;
                if std::mem::take(&mut self.is_late) {
                    tracing::warn!("numbers of events are set aside on the disk again");
                }
            }
            Err(error) => self.complain(&error.to_string()),
        }
    }

    fn complain(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_late, true) {
            tracing::error!(
                "numbers of events are not set aside on the disk: {why}; after a power failure now some would be \
                 given twice, see to the disk"
            );
        }
    }
}
