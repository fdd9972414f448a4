// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A memory cgroup with a limit: what systemd's `user-UID.slice` sets.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A memory cgroup of our own.
#[derive(Debug)]
pub(crate) struct Cgroup {
    directory: PathBuf,
}

impl Cgroup {
    /// Makes one with a limit.
    pub(crate) fn make(name: &str, limit_bytes: u64) -> Result<Self> {
        let (root, is_v2) = root()?;
        let directory = root.join(format!("bursar-bench-{}-{name}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("make the cgroup {directory:?}"))?;
        let group = Self { directory };
        let file = if is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        fs::write(group.directory.join(file), limit_bytes.to_string())
            .with_context(|| format!("set {file} in {:?}", group.directory))?;
        if is_v2 {
            // Else the machine's swap takes what is over the limit. Absent without swap accounting.
            let _ = fs::write(group.directory.join("memory.swap.max"), "0");
        }
        Ok(group)
    }

    /// The file through which a process enters.
    pub(crate) fn entrance(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that have just ended leave it a moment later.
        for _ in 0..200 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        eprintln!("the cgroup {:?} could not be removed", self.directory);
    }
}

/// Where memory cgroups are made on this machine, and of which version.
fn root() -> Result<(PathBuf, bool)> {
    let text = fs::read_to_string("/proc/mounts").context("read /proc/mounts")?;
    let mut v2 = None;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(&at), Some(&kind), Some(&options)) =
            (fields.get(1), fields.get(2), fields.get(3))
        else {
            continue;
        };
        if kind == "cgroup" && options.split(',').any(|it| it == "memory") {
            return Ok((PathBuf::from(at), false));
        }
        let has_memory = || {
            fs::read_to_string(Path::new(at).join("cgroup.subtree_control"))
                .is_ok_and(|it| it.split_whitespace().any(|it| it == "memory"))
        };
        if kind == "cgroup2" && has_memory() {
            v2 = Some((PathBuf::from(at), true));
        }
    }
    match v2 {
        Some(found) => Ok(found),
        None => {
            bail!("no memory cgroups: no v1 memory hierarchy, and v2 does not hand `memory` down")
        }
    }
}

/// Which version this machine has, for people.
pub(crate) fn version() -> String {
    match root() {
        Ok((at, true)) => format!("v2, {}", at.display()),
        Ok((at, false)) => format!("v1, {}", at.display()),
        Err(error) => format!("none: {error:#}"),
    }
}
