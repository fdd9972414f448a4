// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace buffer of our own, in which one event of the kernel's is on. It is removed with us; what a daemon that was
//! killed has left, and what its event costs everybody, is removed by the next one.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PREFIX: &str = "bursar-";

/// See the module.
#[derive(Debug)]
pub(crate) struct TraceInstance {
    path: PathBuf,
    /// `kmem/rss_stat`.
    event: &'static str,
}

impl TraceInstance {
    /// Makes `bursar-WHAT-PID`, with a buffer of so many KiB for each CPU.
    pub(crate) fn make(
        tracefs: &Path,
        what: &str,
        event: &'static str,
        buffer_kib: u32,
    ) -> Result<Self> {
        let instances = tracefs.join("instances");
        clear_away(&instances);
        let path = instances.join(format!("{PREFIX}{what}-{}", std::process::id()));
        fs::create_dir(&path)
            .with_context(|| format!("make the trace instance {path:?} (is tracefs mounted?)"))?;
        let instance = Self { path, event };
        instance.set("buffer_size_kb", &buffer_kib.to_string())?;
        Ok(instance)
    }

    /// Writes one of its files.
    pub(crate) fn set(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("write {text:?} to {path:?}"))
    }

    /// Switches the event on; its lines come out of this pipe, which does not block.
    pub(crate) fn listen(&self) -> Result<File> {
        self.set(&self.switch(), "1")?;
        let path = self.path.join("trace_pipe");
        File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .with_context(|| format!("open {path:?}"))
    }

    fn switch(&self) -> String {
        format!("events/{}/enable", self.event)
    }
}

impl Drop for TraceInstance {
    fn drop(&mut self) {
        let _ = self.set(&self.switch(), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// Those of processes that there are no more, whatever they listened to: the kernel switches the event off with them.
fn clear_away(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.strip_prefix(PREFIX);
        let Some(pid) = ours.and_then(|it| it.rsplit('-').next()) else {
            continue;
        };
        let Ok(pid) = pid.parse::<u32>() else {
            continue;
        };
        if pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
