// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells that files were written anew, without looking at them again and again. Their directories are watched:
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

/// Files with these names in directories, which are there; the files may not be yet.
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
        let mut watch = Self::of_none()?;
        watch.add(directory)?;
        watch.names = names.iter().map(|it| it.as_ref().to_owned()).collect();
        Ok(watch)
    }

    /// Watches the files at these paths from now on, as far as their directories can be watched. A file of the same
    /// name in the directory of another one counts as well.
    ///
    /// # Errors
    /// When nothing can be watched here.
    pub fn of_paths<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, HostError> {
        let mut watch = Self::of_none()?;
        for path in paths {
            let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
                continue;
            };
            if watch.add(directory).is_ok() {
                watch.names.push(name.to_owned());
            }
        }
        Ok(watch)
    }

    fn of_none() -> Result<Self, HostError> {
        let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
        let failed = |errno| HostError::new("watch", Path::new("/"), errno);
        Ok(Self {
            inotify: inotify::init(flags).map_err(failed)?,
            names: Vec::new(),
        })
    }

    /// The same directory once more is no second watch.
    fn add(&self, directory: &Path) -> Result<(), HostError> {
        let changes = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.inotify, directory, changes)
            .map(|_| ())
            .map_err(|errno| HostError::new("watch", directory, errno))
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
    fn files_of_several_directories_are_watched_and_one_that_is_missing_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a/one", "b/two", "c/three"].map(|it| folder.path().join(it));
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        let watch = FileWatch::of_paths(paths.iter().map(|it| it.as_path())).unwrap();
        for (name, is_news) in [("a/one", true), ("b/two", true), ("b/other", false)] {
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
