// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control group of its own for each victim: it says exactly what the victim holds, whatever the rest
//! of the machine does, and can throttle and freeze it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One group, in version 1 or 2; gone when dropped.
#[derive(Debug)]
pub(crate) struct Group {
    memory: PathBuf,
    cpu: PathBuf,
    freezer: PathBuf,
    is_v2: bool,
}

fn make(parent: &str, name: &str) -> Result<PathBuf> {
    let path = Path::new("/sys/fs/cgroup").join(parent).join(name);
    fs::create_dir_all(&path).with_context(|| format!("make the group {path:?}"))?;
    Ok(path)
}

impl Group {
    pub(crate) fn new(name: &str, throttled: bool) -> Result<Self> {
        let name = format!("reap-bench-{}-{name}", std::process::id());
        let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        if is_v2 {
            let wanted = if throttled {
                "+memory +cpu"
            } else {
                "+memory -cpu"
            };
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", wanted)
                .context("enable controllers")?;
            let path = make("", &name)?;
            return Ok(Self {
                memory: path.clone(),
                cpu: path.clone(),
                freezer: path,
                is_v2,
            });
        }
        Ok(Self {
            memory: make("memory", &name)?,
            cpu: make("cpu", &name)?,
            freezer: make("freezer", &name)?,
            is_v2,
        })
    }

    fn directories(&self) -> Vec<&PathBuf> {
        if self.is_v2 {
            vec![&self.memory]
        } else {
            vec![&self.memory, &self.cpu, &self.freezer]
        }
    }

    /// Its CPU part only where that is to throttle: a group of its own has a share of its own, and the
    /// nice values in it compete with nobody outside.
    pub(crate) fn take_in(&self, pid: u32, throttled: bool) -> Result<()> {
        for directory in self.directories() {
            if directory == &self.cpu && !self.is_v2 && !throttled {
                continue;
            }
            fs::write(directory.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("move {pid} to {directory:?}"))?;
        }
        Ok(())
    }

    /// What it is charged, bytes.
    pub(crate) fn held(&self) -> Result<fs::File> {
        let name = if self.is_v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        fs::File::open(self.memory.join(name)).context("open the group's usage")
    }

    /// So many percent of one CPU.
    pub(crate) fn limit_cpu(&self, percent: u64) -> Result<()> {
        let quota = percent * 1000;
        if self.is_v2 {
            return fs::write(self.cpu.join("cpu.max"), format!("{quota} 100000"))
                .context("set cpu.max");
        }
        fs::write(self.cpu.join("cpu.cfs_quota_us"), quota.to_string())
            .context("set cpu.cfs_quota_us")
    }

    pub(crate) fn freeze(&self) -> Result<()> {
        if self.is_v2 {
            fs::write(self.freezer.join("cgroup.freeze"), "1").context("freeze")?;
        } else {
            fs::write(self.freezer.join("freezer.state"), "FROZEN").context("freeze")?;
        }
        let (name, wanted) = if self.is_v2 {
            ("cgroup.events", "frozen 1")
        } else {
            ("freezer.state", "FROZEN")
        };
        bursar_e2e::until("the group being frozen", || {
            Ok(fs::read_to_string(self.freezer.join(name))?
                .contains(wanted)
                .then_some(()))
        })
    }

    /// So that whoever is left in it can go.
    pub(crate) fn let_go(&self) {
        if self.is_v2 {
            let _ = fs::write(self.freezer.join("cgroup.freeze"), "0");
            let _ = fs::write(self.cpu.join("cpu.max"), "max");
        } else {
            let _ = fs::write(self.freezer.join("freezer.state"), "THAWED");
            let _ = fs::write(self.cpu.join("cpu.cfs_quota_us"), "-1");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.let_go();
        for directory in self.directories() {
            let _ = bursar_e2e::until("the group being empty", || {
                Ok(fs::remove_dir(directory).is_ok().then_some(()))
            });
        }
    }
}
