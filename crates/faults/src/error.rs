// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why something about faults could not be done; by what the caller can do about it.

use std::io;
use std::path::PathBuf;

use bursar_host::HostError;
use bursar_model::Pid;

/// Why something about faults could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// We may not.
    #[error("cannot {what}: {reason}")]
    NotPermitted {
        /// What was tried.
        what: String,
        /// Why not, and what would help.
        reason: String,
    },
    /// This kernel cannot watch faults.
    #[error("cannot {what}: {reason}; only rates from /proc/PID/stat are to be had here")]
    Unsupported {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        reason: String,
    },
    /// There is no such process.
    #[error("there is no process {0}")]
    NoProcess(Pid),
    /// The process has no memory of its own to fault on.
    #[error("process {0} is a kernel thread: it has no memory of its own and takes no page faults")]
    KernelThread(Pid),
    /// A limit or the machine's memory is too small for what was asked.
    #[error("{0}")]
    TooLarge(String),
    /// A program cannot be treated as asked.
    #[error("cannot lock the memory of {program:?}: {reason}")]
    Unsuitable {
        /// Its path.
        program: PathBuf,
        /// Why, and what would help.
        reason: String,
    },
    /// The machine could not be asked.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Anything else.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn last_os(what: impl Into<String>) -> Self {
        Self::io(what)(io::Error::last_os_error())
    }
}

pub(crate) const ATTACH: &str = "attach the programs that watch page faults";

/// What libbpf refused, for people.
pub(crate) fn refused(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
    move |error| {
        let reason = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        if error.kind() == libbpf_rs::ErrorKind::PermissionDenied
            && !rustix::process::geteuid().is_root()
        {
            return Error::NotPermitted {
                what: what.to_owned(),
                reason: format!("{reason}; run as root"),
            };
        }
        Error::Unsupported { what, reason }
    }
}
