// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that say who is a user and who is in which group. What other sources of names say is asked for now and
//! then (`names.rs`).

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use bursar_host::FileWatch;

const DIRECTORY: &str = "/etc";
/// group(5) has the members; gshadow(5) has them again and nobody reads them there.
const FILES: [&str; 3] = ["passwd", "group", "nsswitch.conf"];

/// Whether they have changed.
#[derive(Debug)]
pub(crate) struct AccountFiles(Option<FileWatch>);

impl AccountFiles {
    pub(crate) fn watch() -> Self {
        let watch = FileWatch::of_several(Path::new(DIRECTORY), &FILES);
        let watch = watch.inspect_err(|error| {
            tracing::info!(%error, "changes of users and groups are seen some minutes later");
        });
        Self(watch.ok())
    }

    /// Readable when they may have changed.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.0.as_ref().is_some_and(FileWatch::take_news)
    }
}
