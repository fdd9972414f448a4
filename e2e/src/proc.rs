// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What /proc says, independently of what bursar reads there.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// A number of /proc/PID/status, in the file's unit.
pub(crate) fn status_of(pid: u32, key: &str) -> Result<u64> {
    let text = fs::read(format!("/proc/{pid}/status")).context("read /proc/PID/status")?;
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("{key} in /proc/{pid}/status"))
}

/// Bytes that bursar should count for a process: anonymous, shared, swapped, page tables.
pub(crate) fn counted_bytes(pid: u32) -> Result<u64> {
    let keys = ["RssAnon", "RssShmem", "VmSwap", "VmPTE"];
    keys.iter()
        .try_fold(0, |sum, key| Ok(sum + status_of(pid, key)? * 1024))
}

/// What a user's processes have, as bursar should count it: each in full, and shared pages once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) processes: u32,
    pub(crate) in_full: u64,
    /// Without what has been given back with MADV_FREE and is still there.
    pub(crate) once: u64,
}

/// Adds up all processes with this real uid, bytes. Those that end meanwhile are left out.
pub(crate) fn shares_of(uid: u32) -> Result<Shares> {
    let mut sum = Shares::default();
    for pid in pids_of(uid)? {
        let Ok(in_full) = counted_bytes(pid) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else {
            continue;
        };
        let part = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
                .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let divided: u64 = ["Pss_Anon", "Pss_Shmem", "SwapPss"].map(part).iter().sum();
        let tables = status_of(pid, "VmPTE").unwrap_or(0);
        sum.processes += 1;
        sum.in_full += in_full;
        sum.once += (divided + tables).saturating_sub(part("LazyFree")) * 1024;
    }
    Ok(sum)
}

/// All processes with this real uid, for who asks why they are there.
pub(crate) fn described_of(uid: u32) -> Result<Vec<String>> {
    let mut described = Vec::new();
    for pid in pids_of(uid)? {
        let text = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let is_told = |line: &&str| {
            [
                "Name:", "State:", "Pid:", "PPid:", "Rss", "VmSwap:", "VmPTE:", "SigPnd:",
                "ShdPnd:",
            ]
            .iter()
            .any(|key| line.starts_with(key))
        };
        described.push(text.lines().filter(is_told).collect::<Vec<_>>().join(" "));
    }
    Ok(described)
}

/// All processes with this real uid.
pub(crate) fn pids_of(uid: u32) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<u32>().ok());
        pids.extend(
            pid.filter(|&pid| matches!(status_of(pid, "Uid"), Ok(of) if of == u64::from(uid))),
        );
    }
    Ok(pids)
}

/// How often each thread of a process went to sleep or was made to wait, by its name.
pub(crate) fn switches_by_thread(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        let path = task?.path();
        let text = fs::read_to_string(path.join("status")).context("read a thread's status")?;
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        let sum = all.entry(name.trim_end().to_owned()).or_default();
        for line in text.lines() {
            if let Some((key, value)) = line.split_once(':')
                && key.ends_with("ctxt_switches")
            {
                *sum += value
                    .trim()
                    .parse::<u64>()
                    .context("parse context switches")?;
            }
        }
    }
    Ok(all)
}

/// The same of all its threads.
pub(crate) fn context_switches(pid: u32) -> Result<u64> {
    Ok(switches_by_thread(pid)?.values().sum())
}

/// Open descriptors of a process, without its files of state: those are opened when something is first written, of
/// usage at the end of a minute.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    Ok(descriptor_targets(pid)?.len())
}

/// Its pidfds.
pub(crate) fn pidfds(pid: u32) -> Result<usize> {
    let targets = descriptor_targets(pid)?;
    Ok(targets.iter().filter(|to| to.contains("pidfd")).count())
}

/// Where those of [`descriptors`] lead, in order.
pub(crate) fn descriptor_targets(pid: u32) -> Result<Vec<String>> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).context("list descriptors")?;
    // One may be closed meanwhile.
    let targets = all.filter_map(|it| fs::read_link(it.ok()?.path()).ok());
    let targets = targets.map(|it| it.to_string_lossy().into_owned());
    let mut targets: Vec<_> = targets.filter(|to| !to.contains("/state/")).collect();
    targets.sort();
    Ok(targets)
}

/// The system calls in which a process's threads sleep.
pub(crate) fn calls_asleep(pid: u32) -> Result<Vec<i64>> {
    let mut calls = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        // One may end meanwhile; who is awake is "running".
        let text = fs::read_to_string(task?.path().join("syscall")).unwrap_or_default();
        calls.extend(text.split(' ').next().and_then(|it| it.parse::<i64>().ok()));
    }
    Ok(calls)
}

/// What in a process goes by time: a thread that waits for no longer than that, or that runs, or a timer that is set.
pub(crate) fn awaits_a_time(pid: u32) -> Result<Option<String>> {
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        let path = task?.path();
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let call = read("syscall");
        if !waits_for_ever(&call) {
            return Ok(Some(format!("{}: {call}", read("comm").trim_end())));
        }
    }
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).context("list descriptors")? {
        // One may be closed meanwhile.
        let facts = fs::read_to_string(entry?.path()).unwrap_or_default();
        let value = facts
            .lines()
            .find_map(|line| line.strip_prefix("it_value: "));
        if let Some(value) = value.filter(|it| *it != "(0, 0)") {
            return Ok(Some(format!("a timer: {value}")));
        }
    }
    Ok(None)
}

/// Whether a thread is in a call that ends when something happens only, by what /proc/PID/task/TID/syscall says.
fn waits_for_ever(call: &str) -> bool {
    let words: Vec<&str> = call.split_whitespace().collect();
    let argument = |index: usize| {
        let text = words.get(index + 1)?.strip_prefix("0x")?;
        u64::from_str_radix(text, 16).ok()
    };
    let number = words.first().and_then(|it| it.parse::<i64>().ok());
    match number {
        // Milliseconds, an int. (arm64 has the newer calls only.)
        #[cfg(target_arch = "x86_64")]
        Some(libc::SYS_epoll_wait) => argument(3).is_some_and(|it| (it as i32) < 0),
        #[cfg(target_arch = "x86_64")]
        Some(libc::SYS_poll) => argument(2).is_some_and(|it| (it as i32) < 0),
        Some(libc::SYS_epoll_pwait) => argument(3).is_some_and(|it| (it as i32) < 0),
        // A struct timespec, or nothing.
        Some(libc::SYS_futex) => argument(3) == Some(0),
        Some(libc::SYS_ppoll) => argument(2) == Some(0),
        _ => false,
    }
}

/// Time on a CPU of all its threads so far, those that have ended included, to the tick of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("read /proc/PID/stat")?;
    let fields = text.rsplit_once(')').context("a comm")?.1;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let sum = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    Ok(Duration::from_millis(sum.context("its times")? * 10))
}

/// Who is a child of its first thread.
///
/// # Errors
/// It is gone.
pub(crate) fn children_of(pid: u32) -> Result<Vec<u32>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(text
        .split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_no_time_waits_for_ever() {
        for (call, expected) in [
            (
                "281 0x72 0x7fff 0x10 0xffffffffffffffff 0x0 0x0 0x7f 0x55",
                true,
            ),
            ("281 0x72 0x7fff 0x10 0x3a98 0x0 0x0 0x7f 0x55", false),
            ("202 0x55dd 0x89 0xffffffff 0x0 0x0 0x55dd 0x7f 0x55", true),
            (
                "202 0x55dd 0x89 0xffffffff 0x7fbb 0x0 0x55dd 0x7f 0x55",
                false,
            ),
            ("271 0x7fbb 0x2 0x0 0x0 0x8 0x7f 0x7f 0x55", true),
            ("271 0x7fbb 0x2 0x7fbb 0x0 0x8 0x7f 0x7f 0x55", false),
            ("230 0x0 0x0 0x7fbb 0x0 0x0 0x0 0x7f 0x55", false),
            ("running", false),
            ("", false),
        ] {
            assert_eq!(waits_for_ever(call), expected, "{call}");
        }
    }
}
