// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that stand still whatever they are told.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::wait::until;

/// A group in the freezer of either version; thawed and gone when dropped.
pub(crate) struct Freezer {
    path: PathBuf,
    is_v2: bool,
}

impl Freezer {
    pub(crate) fn new() -> Result<Self> {
        let is_v2 = Path::new("/sys/fs/cgroup/cgroup.procs").exists();
        let root = if is_v2 {
            "/sys/fs/cgroup"
        } else {
            "/sys/fs/cgroup/freezer"
        };
        let path = Path::new(root).join(format!("bursar-e2e-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("make {path:?}"))?;
        Ok(Self { path, is_v2 })
    }

    pub(crate) fn freeze(&self, pid: u32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())?;
        let (order, value, state, wanted) = if self.is_v2 {
            ("cgroup.freeze", "1", "cgroup.events", "frozen 1")
        } else {
            ("freezer.state", "FROZEN", "freezer.state", "FROZEN")
        };
        fs::write(self.path.join(order), value)?;
        until("its being frozen", || {
            Ok(fs::read_to_string(self.path.join(state))?
                .contains(wanted)
                .then_some(()))
        })
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let (order, value) = if self.is_v2 {
            ("cgroup.freeze", "0")
        } else {
            ("freezer.state", "THAWED")
        };
        let _ = fs::write(self.path.join(order), value);
        let _ = until("an empty group", || {
            Ok(fs::remove_dir(&self.path).is_ok().then_some(()))
        });
    }
}
