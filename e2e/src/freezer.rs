// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that stand still whatever they are told.

use anyhow::Result;

use crate::cgroup::Cgroup;
use crate::wait::until;

/// A group in the freezer of either version; thawed and gone when dropped.
pub(crate) struct Freezer(Cgroup);

impl Freezer {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Cgroup::new("freezer", "frozen")?))
    }

    pub(crate) fn freeze(&self, pid: u32) -> Result<()> {
        self.0.add(pid)?;
        let (order, value, state, wanted) = if self.0.is_v2() {
            ("cgroup.freeze", "1", "cgroup.events", "frozen 1")
        } else {
            ("freezer.state", "FROZEN", "freezer.state", "FROZEN")
        };
        self.0.write(order, value)?;
        until("its being frozen", || {
            Ok(self.0.read(state)?.contains(wanted).then_some(()))
        })
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let (order, value) = if self.0.is_v2() {
            ("cgroup.freeze", "0")
        } else {
            ("freezer.state", "THAWED")
        };
        let _ = self.0.write(order, value);
    }
}
