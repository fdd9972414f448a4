// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loop over /proc every few milliseconds with S1's rule: what a script would do, and what S1
//! section 2.2 says of it holds.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The running loop; it ends when dropped.
#[derive(Debug)]
pub(crate) struct Poller {
    end: Arc<AtomicBool>,
    limit_bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    /// Kills the largest process of `uid` whenever all of them are found to hold more than the limit.
    pub(crate) fn start(uid: u32, every: Duration) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let limit_bytes = Arc::new(AtomicU64::new(u64::MAX));
        let (stop, limit) = (Arc::clone(&end), Arc::clone(&limit_bytes));
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(every);
                look(uid, limit.load(Ordering::Relaxed));
            }
        });
        Self {
            end,
            limit_bytes,
            thread: Some(thread),
        }
    }

    pub(crate) fn limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(uid: u32, limit_bytes: u64) {
    let Ok(entries) = fs::read_dir("/proc") else {
        return;
    };
    let pids = entries
        .filter_map(Result::ok)
        .filter_map(|it| it.file_name().to_string_lossy().parse::<i32>().ok());
    let mut held: Vec<(u64, i32)> = pids
        .filter_map(|pid| Some((held_by(pid, uid)?, pid)))
        .collect();
    held.sort_unstable();
    if held.iter().map(|it| it.0).sum::<u64>() > limit_bytes
        && let Some(&(_, victim)) = held.last()
    {
        // SAFETY: plain numbers; the pid was a process of the bench's own throw-away user just now.
        unsafe { libc::kill(victim, libc::SIGKILL) };
    }
}

/// What a living process of this user holds, bytes.
fn held_by(pid: i32, uid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |key: &str| {
        status.lines().find_map(|line| {
            line.strip_prefix(key)?
                .strip_prefix(':')?
                .split_whitespace()
                .next()
        })
    };
    if field("Uid")?.parse::<u32>().ok()? != uid {
        return None;
    }
    // A process that was sent SIGKILL is no longer counted.
    let pending = u64::from_str_radix(field("ShdPnd")?, 16).ok()?
        | u64::from_str_radix(field("SigPnd")?, 16).ok()?;
    if pending & (1 << (libc::SIGKILL - 1)) != 0 {
        return None;
    }
    let keys = ["RssAnon", "RssShmem", "VmSwap", "VmPTE"];
    let kibibytes = keys
        .iter()
        .filter_map(|key| field(key)?.parse::<u64>().ok());
    Some(kibibytes.sum::<u64>() * 1024)
}
