// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why the machine could not be asked or told.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why the machine could not be asked or told; by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// We may not: a fact for the support table.
    #[error("cannot {action} {path:?}: {source}; run as root, or see which capability is missing")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// EPERM or EACCES.
        source: Errno,
    },
    /// This kernel cannot: a fact for the support table.
    #[error("cannot {action} {path:?}: {source}; this kernel does not have it")]
    Unsupported {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// ENOSYS, ENODEV or EOPNOTSUPP.
        source: Errno,
    },
    /// The kernel answers, and leaves out which page frames are meant.
    #[error(
        "{path:?} says everything but the numbers of page frames: those take CAP_SYS_ADMIN in the first user \
         namespace; give it that (for bursard under systemd, a drop-in with CapabilityBoundingSet=CAP_SYS_ADMIN)"
    )]
    FramesHidden {
        /// The page map that was tried.
        path: PathBuf,
    },
    /// Anything else.
    #[error("cannot {action} {path:?}: {source}")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: Errno,
    },
    /// It says something we do not understand: a newer kernel, or no kernel at all.
    #[error("cannot understand {path:?}: {source}; please report this with the file's content")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What about it.
        source: Malformed,
    },
}

/// What about a text is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) String);

impl HostError {
    pub(crate) fn new(action: &'static str, path: &Path, source: Errno) -> Self {
        let path = path.to_owned();
        match source {
            Errno::PERM | Errno::ACCESS => Self::Denied {
                action,
                path,
                source,
            },
            Errno::NOSYS | Errno::NODEV | Errno::OPNOTSUPP => Self::Unsupported {
                action,
                path,
                source,
            },
            _ => Self::Failed {
                action,
                path,
                source,
            },
        }
    }

    pub(crate) fn from_io(action: &'static str, path: &Path, source: &std::io::Error) -> Self {
        Self::new(
            action,
            path,
            Errno::from_io_error(source).unwrap_or(Errno::IO),
        )
    }
}

impl Malformed {
    /// What a reader outside this crate found wrong with a file.
    pub fn because(reason: impl Into<String>) -> Self {
        Self::new(reason)
    }

    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    pub(crate) fn at(self, path: &Path) -> HostError {
        HostError::Malformed {
            path: path.to_owned(),
            source: self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_on_what_why_and_what_to_do() {
        let path = Path::new("/proc/1/status");
        let table = [
            (
                HostError::new("read", path, Errno::ACCESS),
                "cannot read \"/proc/1/status\": Permission denied (os error 13); run as root, or see which capability is missing",
            ),
            (
                HostError::new("mount bpffs at", Path::new("/b"), Errno::NODEV),
                "cannot mount bpffs at \"/b\": No such device (os error 19); this kernel does not have it",
            ),
            (
                Malformed::new("no key Uid").at(path),
                "cannot understand \"/proc/1/status\": no key Uid; please report this with the file's content",
            ),
        ];
        for (error, text) in table {
            assert_eq!(error.to_string(), text);
        }
    }
}
