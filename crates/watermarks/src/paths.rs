// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the kernel's files are, so that tests can bring their own.

use std::path::{Path, PathBuf};

/// The roots of everything read and written here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// The directory of the file that keeps original values, `/var/lib/bursar`.
    pub state: PathBuf,
}

impl Paths {
    /// This machine's, with originals kept in `state`.
    pub fn host(state: &Path) -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            state: state.to_owned(),
        }
    }
}
