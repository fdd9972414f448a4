// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small file of ours, written by a thread: a busy disk takes seconds to synchronise it, and the loop has kills to
//! attend to.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bursar_host::{replace_file, thread};

/// What could not be written is tried again after so long: nothing else is to be written, perhaps for months.
const AGAIN: Duration = Duration::from_secs(60);
/// Root's, as its directory.
const MODE: u32 = 0o640;
/// A disk that hangs does not hold up bursard's end for longer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A file, and the thread that writes it.
#[derive(Debug)]
pub(crate) struct KeptFile {
    path: PathBuf,
    /// What comes of it when it cannot be written.
    consequence: &'static str,
    latest: Latest,
    /// Tells the thread, and is told nothing until it ends. None: there is no room for a thread.
    writer: Option<(Sender<()>, Receiver<()>)>,
}

/// What the file is to say, until the thread takes it: a disk that hangs keeps one text here, and no more.
type Latest = Arc<Mutex<Option<String>>>;

impl KeptFile {
    /// Starts the thread, which has this name.
    pub(crate) fn start(name: &str, path: PathBuf, consequence: &'static str) -> Self {
        let latest = Latest::default();
        let ((tell, told), (at_end, ended)) = (channel(), channel());
        let (theirs, at) = (Arc::clone(&latest), path.clone());
        let work = move || {
            write_all(&told, &theirs, &at, consequence, AGAIN);
            drop::<Sender<()>>(at_end);
        };
        let writer = thread::spawn(name, work).inspect_err(|error| {
            tracing::warn!(%error, file = %path.display(), "is written without a thread of its own");
        });
        Self {
            writer: writer.ok().map(|_| (tell, ended)),
            latest,
            path,
            consequence,
        }
    }

    /// Has it say this soon. What it was to say before, and does not yet, is left out.
    pub(crate) fn write(&self, text: String) {
        let Some((tell, _)) = &self.writer else {
            if let Err(error) = replace_file(&self.path, &text, MODE) {
                warn(&error, &self.path, self.consequence);
            }
            return;
        };
        let before = put(&self.latest, Some(text));
        // Whoever has not taken what was there has been told.
        if before.is_none() {
            // A supervised thread does not end before us.
            let _ = tell.send(());
        }
    }
}

fn put(latest: &Mutex<Option<String>>, text: Option<String>) -> Option<String> {
    let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *latest, text)
}

/// Writes until nobody has anything to say any more. What could not be written is tried again after `again`, and said
/// when that begins.
fn write_all(
    told: &Receiver<()>,
    latest: &Latest,
    path: &Path,
    consequence: &str,
    again: Duration,
) {
    let mut unwritten = None;
    loop {
        let heard = match unwritten {
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(_) => told.recv_timeout(again),
        };
        let is_last = heard == Err(RecvTimeoutError::Disconnected);
        let before = unwritten.take();
        let has_failed = before.is_some();
        let Some(text) = put(latest, None).or(before) else {
            match is_last {
                true => return,
                false => continue,
            }
        };
        if let Err(error) = replace_file(path, &text, MODE) {
            if !has_failed {
                warn(&error, path, consequence);
            }
            unwritten = Some(text);
        }
        if is_last {
            return;
        }
    }
}

fn warn(error: &io::Error, path: &Path, consequence: &str) {
    tracing::warn!(%error, file = %path.display(), "could not be kept: {consequence}");
}

impl Drop for KeptFile {
    /// Waits until it says what it is to say, [`TIMEOUT`] at most.
    fn drop(&mut self) {
        if let Some((tell, ended)) = self.writer.take() {
            drop(tell);
            if ended.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!(file = %self.path.display(), "may not say all: the disk does not keep up");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_says_in_the_end_what_it_was_last_to_say() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("owners.toml");
        for last in [1, 2, 100] {
            let file = KeptFile::start("owners", path.clone(), "nothing comes of it");
            for number in 0..=last {
                file.write(number.to_string());
            }
            drop(file);
            assert_eq!(fs::read_to_string(&path).unwrap(), last.to_string());
        }
    }

    #[test]
    fn what_could_not_be_written_is_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("late/names.toml");
        let ((tell, told), latest) = (channel(), Latest::default());
        let (theirs, at) = (Arc::clone(&latest), path.clone());
        let again = Duration::from_millis(1);
        let writer = std::thread::spawn(move || write_all(&told, &theirs, &at, "", again));
        put(&latest, Some("a".to_owned()));
        tell.send(()).unwrap();
        while latest.lock().unwrap().is_some() {
            std::thread::yield_now();
        }
        fs::create_dir(folder.path().join("late")).unwrap();
        while !path.exists() {
            std::thread::yield_now();
        }
        drop(tell);
        writer.join().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a");
    }

    #[test]
    fn a_file_that_cannot_be_written_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none/owners.toml");
        let file = KeptFile::start("owners", path.clone(), "nothing comes of it");
        file.write("a".to_owned());
        drop(file);
        assert!(!path.exists());
    }
}
