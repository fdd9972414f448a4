// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells that a file was written anew, without looking at it again and again. Its directory is watched:
//! who edits a file properly puts another one in its place. Where the file is a link, what it leads to is
//! not watched.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use crate::HostError;

/// Files of one directory, which may not be there yet; the directory is.
#[derive(Debug)]
pub struct FileWatch {
    inotify: OwnedFd,
    names: Vec<OsString>,
}

impl FileWatch {
    /// Watches the file at `path` from now on.
    ///
    /// # Errors
    /// When its directory cannot be watched.
    pub fn new(path: &Path) -> Result<Self, HostError> {
        let failed = || HostError::new("watch", path, Errno::INVAL);
        let directory = path.parent().ok_or_else(failed)?;
        let name = path.file_name().ok_or_else(failed)?;
        Self::of_several(directory, &[name])
    }

    /// Watches the files with these names in `directory` from now on.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn of_several(directory: &Path, names: &[impl AsRef<OsStr>]) -> Result<Self, HostError> {
        let failed = |errno| HostError::new("watch", directory, errno);
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).map_err(failed)?;
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, directory, changes).map_err(failed)?;
        Ok(Self {
            inotify,
            names: names.iter().map(|it| it.as_ref().to_owned()).collect(),
        })
    }

    /// Whether it has changed since the last call, or may have.
    pub fn take_news(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut is_news = false;
        while let Ok(event) = reader.next() {
            // Without a name it is of the directory itself, or of events that found no room.
            let name = event.file_name().map(|it| it.to_bytes().to_vec());
            is_news |= name.is_none_or(|it| self.names.contains(&OsString::from_vec(it)));
        }
        is_news
    }
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_written_replaced_or_removed_is_news_once_and_its_neighbours_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let watch = FileWatch::new(&path).unwrap();
        assert!(!watch.take_news());
        fs::write(folder.path().join("subuid+"), "a").unwrap();
        assert!(!watch.take_news());
        fs::rename(folder.path().join("subuid+"), &path).unwrap();
        assert!(watch.take_news());
        assert!(!watch.take_news());
        fs::write(&path, "b").unwrap();
        assert!(watch.take_news());
        fs::remove_file(&path).unwrap();
        assert!(watch.take_news());
        assert!(!watch.take_news());
    }

    #[test]
    fn several_files_are_watched_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let watch = FileWatch::of_several(folder.path(), &["passwd", "group"]).unwrap();
        for (name, is_news) in [("group", true), ("shadow", false), ("passwd", true)] {
            fs::write(folder.path().join(name), "a").unwrap();
            assert_eq!(watch.take_news(), is_news, "{name}");
        }
    }

    #[test]
    fn without_a_directory_there_is_nothing_to_watch() {
        assert!(FileWatch::new(Path::new("/nonexistent/subuid")).is_err());
        assert!(FileWatch::new(Path::new("/")).is_err());
    }
}
