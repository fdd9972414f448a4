// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells that something came into directories, went, or was given to somebody else.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::HostError;

/// Directories, which may go.
#[derive(Debug)]
pub struct DirectoryWatch {
    inotify: OwnedFd,
}

impl DirectoryWatch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When nothing can be watched here.
    pub fn new() -> Result<Self, HostError> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let failed = |errno| HostError::new("watch", Path::new("/"), errno);
        let inotify = inotify::init(flags).map_err(failed)?;
        Ok(Self { inotify })
    }

    /// Watches these as well, as far as they are there; one that is watched already is no second watch.
    pub fn add(&self, directories: &[PathBuf]) {
        let changes = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        for directory in directories {
            let _ = inotify::add_watch(&self.inotify, directory, changes);
        }
    }

    /// Whether anything of that has happened since the last call.
    pub fn take_news(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut is_news = false;
        while reader.next().is_ok() {
            is_news = true;
        }
        is_news
    }
}

impl AsFd for DirectoryWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_comes_and_goes_is_news_once() {
        let folder = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new().unwrap();
        watch.add(&[folder.path().to_owned(), "/nonexistent".into()]);
        assert!(!watch.take_news());
        fs::create_dir(folder.path().join("a")).unwrap();
        assert!(watch.take_news());
        assert!(!watch.take_news());
        fs::remove_dir(folder.path().join("a")).unwrap();
        assert!(watch.take_news());
    }
}
