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
    /// Whether what was found last is in force.
    is_in_force: bool,
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
            is_in_force: true,
        }
    }

    /// Readable when one may have come or gone.
    pub(crate) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn take_news(&self) -> bool {
        self.watch.as_ref().is_some_and(DirectoryWatch::take_news)
    }

    /// Looks for them, to be put in force; `None`: they are what is in force.
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
        if found == self.resolved && self.is_in_force {
            return None;
        }
        for remark in &found.remarks {
            if !self.resolved.remarks.contains(remark) {
                tracing::warn!("{remark}");
            }
        }
        self.resolved = found;
        self.is_in_force = false;
        Some(&self.resolved)
    }

    /// What was found last is in force.
    pub(crate) const fn note_in_force(&mut self) {
        self.is_in_force = true;
    }

    /// Which groups are not exempt although they are named, and why.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.resolved.remarks
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::CgroupHierarchy;

    use super::*;

    #[test]
    fn what_could_not_be_put_in_force_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        // As root it is watched; as another user it is remarked upon.
        let patterns = ["/jobs".to_owned()];
        let groups = ExemptCgroups::on(&patterns, CgroupHierarchy::Unified, folder.path());
        let mut follower = ExemptFollower::new(Arc::new(groups));
        let first = follower.find().cloned();
        assert!(first.is_some());
        assert_eq!(follower.find().cloned(), first);
        follower.note_in_force();
        assert_eq!(follower.find(), None);
    }
}
