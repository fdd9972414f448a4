// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a file could not be used or written.

use std::io;
use std::path::PathBuf;

use bursar_model::Who;

use crate::Finding;

/// Why a file could not be used or written. What was in force before stays.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// What it says is wrong. All that was found, at least one.
    #[error("{}", first_of(.0))]
    Invalid(Vec<Finding>),
    /// It cannot be read.
    #[error("{}: cannot {action}: {source}; {remedy}", .path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// It cannot be written; it is as it was before.
    #[error("{}: cannot {action}: {source}; nothing was changed, see to the disk and the directory's \
             permissions and try again", .path.display())]
    Unwritable {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody wrote to it after it was read: writing now would undo that.
    #[error("{}: was changed by somebody since it was read; nothing was changed, reload bursard \
             (systemctl reload bursard) and try again", .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// It is not there, although limits that came from it are in force.
    #[error("{}: does not exist, and limits are in force, which stay: put it back (if paths.limits in \
             bursar.toml names another file than before, correct that); to clear all limits leave an empty \
             {kind} there", .path.display())]
    Missing {
        /// The file or directory.
        path: PathBuf,
        /// Which of the two it was.
        kind: &'static str,
    },
    /// A change would change nothing, because a later file has an entry for the same WHO.
    #[error("{}:{line}: {who}: this drop-in overrides limits.toml, the only file that bursar limit writes; nothing was \
             changed: edit the drop-in and reload bursard (systemctl reload bursard)", .path.display())]
    Overridden {
        /// The later file.
        path: PathBuf,
        /// The line of its entry.
        line: usize,
        /// Whose entry.
        who: Who,
    },
    /// An entry is written in a way that cannot be changed without disturbing others.
    #[error("{}: {who}: is written in a way that cannot be changed automatically; edit the file by hand",
            .path.display())]
    Uneditable {
        /// The file.
        path: PathBuf,
        /// Whose entry.
        who: Who,
    },
}

impl ConfigError {
    /// All that is wrong with what the file says; empty where the file itself is the trouble.
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Invalid(findings) => findings,
            _ => &[],
        }
    }

    /// Whether only somebody who changes the files mends it: a daemon ends with 2, and systemd does not start it again
    /// (RestartPreventExitStatus=). What could not be read may be the next time: after a disk's error, without memory,
    /// before its file system is mounted.
    pub const fn is_lasting(&self) -> bool {
        match self {
            Self::Invalid(_)
            | Self::Missing { .. }
            | Self::Overridden { .. }
            | Self::Uneditable { .. } => true,
            Self::Unreadable { .. } | Self::Unwritable { .. } | Self::Changed { .. } => false,
        }
    }
}

fn first_of(findings: &[Finding]) -> String {
    match findings {
        [] => "the configuration is wrong".to_owned(),
        [only] => only.to_string(),
        [first, rest @ ..] => {
            format!("{first} (and {} more: see `bursar check`)", rest.len())
        }
    }
}
