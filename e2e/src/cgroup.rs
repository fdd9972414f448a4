// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control group of either version for the processes of a story. It is gone when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::wait::until;

const ROOT: &str = "/sys/fs/cgroup";

pub(crate) struct Cgroup {
    path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// A group below the root of this controller: `memory`, `freezer`.
    pub(crate) fn new(controller: &str, name: &str) -> Result<Self> {
        let is_v2 = Path::new(ROOT).join("cgroup.procs").exists();
        let root = if is_v2 {
            PathBuf::from(ROOT)
        } else {
            Path::new(ROOT).join(controller)
        };
        // The freezer of version 2 is no controller: each group has it.
        if is_v2 && controller != "freezer" {
            fs::write(
                root.join("cgroup.subtree_control"),
                format!("+{controller}"),
            )
            .with_context(|| format!("let groups have {controller}"))?;
        }
        let path = root.join(format!("bursar-e2e-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("make {path:?}"))?;
        Ok(Self { path, is_v2 })
    }

    /// systemd's slice for a user, in a guest, which has no systemd.
    pub(crate) fn slice_of(uid: u32) -> Result<Self> {
        let users = Path::new(ROOT).join("user.slice");
        let path = users.join(format!("user-{uid}.slice"));
        fs::create_dir_all(&users).with_context(|| format!("make {users:?}"))?;
        for above in [Path::new(ROOT), &users] {
            fs::write(above.join("cgroup.subtree_control"), "+memory")
                .with_context(|| format!("let groups below {above:?} have memory"))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("make {path:?}"))?;
        Ok(Self { path, is_v2: true })
    }

    pub(crate) fn is_v2(&self) -> bool {
        self.is_v2
    }

    /// Where its files are.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result<()> {
        fs::write(self.path.join(file), value).with_context(|| format!("write {value} to {file}"))
    }

    pub(crate) fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(self.path.join(file)).with_context(|| format!("read {file}"))
    }

    /// The most memory that was ever charged to it, by the memory controller's own count.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let file = if self.is_v2 {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        self.read(file).ok()?.trim().parse().ok()
    }

    /// Moves a process into it. What the process has so far stays with the group that it was in.
    pub(crate) fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = until("an empty group", || {
            Ok(fs::remove_dir(&self.path).is_ok().then_some(()))
        });
    }
}

/// Bytes of private memory, shared memory and files in memory that the kernel's own count has for the group.
fn memory_of(stat: &Path) -> Result<u64> {
    let text = fs::read_to_string(stat)?;
    let names = ["rss ", "anon ", "shmem ", "swap "];
    let value = |name: &&str| text.lines().find_map(|line| line.strip_prefix(name));
    let values = names.iter().filter_map(value);
    Ok(values.filter_map(|it| it.parse::<u64>().ok()).sum())
}

/// The longest time for which a group had more than so much: looked at every 5 ms, by the memory controller's own
/// count, which knows memory without an owner and files without a name.
pub(crate) struct LongestAbove {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Duration>>,
}

impl LongestAbove {
    pub(crate) fn watch(group: &Cgroup, bytes: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stat = group.path().join("memory.stat");
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let (mut since, mut longest) = (None, Duration::ZERO);
            while !ends.load(Ordering::Relaxed) {
                if memory_of(&stat)? > bytes {
                    let since = *since.get_or_insert_with(Instant::now);
                    longest = longest.max(since.elapsed());
                } else {
                    since = None;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok(longest)
        });
        Self { is_over, thread }
    }

    pub(crate) fn end(self) -> Result<Duration> {
        self.is_over.store(true, Ordering::Relaxed);
        let outcome = self.thread.join();
        outcome.map_err(|_| anyhow!("whoever looked has panicked"))?
    }
}
