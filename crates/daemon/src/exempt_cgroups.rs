// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups whose processes are nobody's: follows those that come, go, or are given to a user.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bursar_host::{DirectoryWatch, ExemptCgroups, ResolvedCgroups};

/// The groups as an administrator has named them.
#[derive(Debug)]
pub(crate) struct ExemptFollower {
    groups: Arc<ExemptCgroups>,
    watch: Option<DirectoryWatch>,
    resolved: ResolvedCgroups,
}

impl ExemptFollower {
    pub(crate) fn new(groups: Arc<ExemptCgroups>) -> Self {
        let watch = (!groups.is_empty()).then(DirectoryWatch::new);
        let watch = watch.and_then(|it| {
            it.inspect_err(|error| {
                tracing::info!(%error, "control groups that come are seen at a reload only");
            })
            .ok()
        });
        Self {
            groups,
            watch,
            resolved: ResolvedCgroups::default(),
        }
    }

    /// Readable when one may have come or gone.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.watch.as_ref().is_some_and(DirectoryWatch::take_news)
    }

    /// Looks for them; `None`: they are what they were.
    pub(crate) fn find(&mut self) -> Option<&ResolvedCgroups> {
        if self.groups.is_empty() {
            return None;
        }
        let mut found = self.groups.resolve();
        if let Some(watch) = &self.watch {
            watch.add(&found.watched);
            // Again: something may have come before it was watched.
            found = self.groups.resolve();
            watch.add(&found.watched);
        }
        if found == self.resolved {
            return None;
        }
        for remark in &found.remarks {
            if !self.resolved.remarks.contains(remark) {
                tracing::warn!("{remark}");
            }
        }
        self.resolved = found;
        Some(&self.resolved)
    }

    /// Which groups are not exempt although they are named, and why.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.resolved.remarks
    }
}
