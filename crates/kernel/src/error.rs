// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can go wrong between the two halves, by what the caller can do about it.

use std::io;
use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This kernel, or what confines us, does not allow it: another trigger has to do.
    #[error("this kernel does not let bursar load {object}: {reason}")]
    Unsupported {
        /// Which object.
        object: &'static str,
        /// The kernel's or libbpf's reason.
        reason: String,
    },
    /// Not root, or a root without the capability.
    #[error(
        "not permitted to {what}: {reason}; bursard needs CAP_BPF and CAP_PERFMON (see CapabilityBoundingSet= in bursard.service)"
    )]
    NotPermitted {
        /// To do what.
        what: &'static str,
        /// The kernel's reason.
        reason: String,
    },
    /// The pins cannot be put where the configuration says.
    #[error(
        "cannot keep pins in {path:?}: {source}; is a bpf file system mounted there? (mount -t bpf bpf /sys/fs/bpf)"
    )]
    Pins {
        /// The directory of the pins.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Something is pinned there that this build did not make, or half of it.
    #[error("the kernel half pinned in {path:?} cannot be taken over: {reason}")]
    Foreign {
        /// The directory of the pins.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No room for another account.
    #[error(
        "no room for another account: max_accounts in bursar.toml is {max_accounts}; raise it and restart bursard"
    )]
    AccountsFull {
        /// As configured.
        max_accounts: usize,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For a load or an attach that the kernel refused.
    pub(crate) fn unsupported(object: &'static str) -> impl Fn(libbpf_rs::Error) -> Self + Copy {
        move |error| {
            let reason = into_io(&error);
            if reason.kind() == io::ErrorKind::PermissionDenied
                && !rustix::process::geteuid().is_root()
            {
                return Self::NotPermitted {
                    what: "load BPF programs",
                    reason: reason.to_string(),
                };
            }
            Self::Unsupported {
                object,
                reason: reason.to_string(),
            }
        }
    }

    pub(crate) fn io(what: &'static str) -> impl Fn(libbpf_rs::Error) -> Self {
        move |error| Self::Io {
            what,
            source: into_io(&error),
        }
    }
}

/// libbpf-rs keeps the errno only as a kind and a text; both are kept.
fn into_io(error: &libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
        libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        libbpf_rs::ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}
