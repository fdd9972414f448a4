// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The directory of pins: what keeps the kernel half alive without us.
//!
//! Each kernel half has a directory of its own below the configured one, named after the build and
//! the options it was loaded with, so that a new one can be made beside the old one and take over
//! without a moment in which no limit holds.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, MapHandle, ProgramHandle};

use crate::Error;

/// The pins of one kernel half.
#[derive(Debug, Clone)]
pub(crate) struct Pins {
    directory: PathBuf,
}

impl Pins {
    pub(crate) fn new(root: &Path, name: &str) -> Self {
        Self {
            directory: root.join(name),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn map(&self, name: &str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(self.path(name)).map_err(|error| self.foreign(name, &error))
    }

    pub(crate) fn program(&self, name: &str) -> Result<ProgramHandle, Error> {
        ProgramHandle::from_pinned_path(self.path(name)).map_err(|error| self.foreign(name, &error))
    }

    pub(crate) fn link(&self, name: &str) -> Result<Link, Error> {
        Link::open(self.path(name)).map_err(|error| self.foreign(name, &error))
    }

    fn foreign(&self, name: &str, error: &libbpf_rs::Error) -> Error {
        Error::Foreign {
            path: self.directory.clone(),
            reason: format!("{name}: {error}"),
        }
    }

    /// Whether all of these are there.
    pub(crate) fn has_all<N: AsRef<Path>>(&self, names: impl IntoIterator<Item = N>) -> bool {
        names
            .into_iter()
            .all(|name| self.directory.join(name).exists())
    }

    /// Takes these away, in this order. What is not there need not go, and what cannot be removed is
    /// found there by the next look.
    pub(crate) fn unlink<N: AsRef<Path>>(&self, names: impl IntoIterator<Item = N>) {
        for name in names {
            let _ = fs::remove_file(self.directory.join(name));
        }
    }

    /// Makes an empty directory for them; what a crash left there is removed first.
    pub(crate) fn create(&self) -> Result<(), Error> {
        self.remove()?;
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory);
        made.map_err(|source| Error::Pins {
            path: self.directory.clone(),
            source,
        })
    }

    /// Takes them all away. The programs detach with their links, which therefore go first.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        let failed = |source| Error::Pins {
            path: self.directory.clone(),
            source,
        };
        let mut names = match fs::read_dir(&self.directory) {
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        names.sort_by_key(|name| !name.to_string_lossy().starts_with("link_"));
        for name in names {
            match fs::remove_file(self.directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        fs::remove_dir(&self.directory).map_err(failed)
    }
}

/// Every kernel half that has pins below `root`, whoever made it.
pub(crate) fn all(root: &Path) -> Result<Vec<Pins>, Error> {
    let failed = |source| Error::Pins {
        path: root.to_owned(),
        source,
    };
    let mut found = Vec::new();
    match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(failed(error)),
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(failed)?;
                let is_half = entry.file_name().to_string_lossy().starts_with("half-");
                if is_half && entry.file_type().map_err(failed)?.is_dir() {
                    found.push(Pins {
                        directory: entry.path(),
                    });
                }
            }
        }
    }
    Ok(found)
}
