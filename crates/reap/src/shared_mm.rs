// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who keeps a dead process's memory: a living process with the same address space (vfork, CLONE_VM),
//! and processes that map the same shared memory.

use bursar_host::{Proc, SharedMemory, share_memory};
use bursar_model::{Bytes, Pid, printable};

use crate::case::Shared;
use crate::job::Victim;
use crate::report::{Report, Stays};
use bursar_watchdog::Abandoned;
use bursar_watchdog::Guard;

/// More processes are not looked through.
const MOST_PROCESSES: usize = 32_768;
const MOST_NAMED: usize = 8;
/// Names are as long as users like.
const LONGEST_NAME: usize = 80;

/// A living process with the same address space as a victim.
///
/// # Errors
/// [`Abandoned`].
pub(crate) fn find(proc: &Proc, victim: &Victim, guard: &Guard) -> Result<Option<Pid>, Abandoned> {
    let pid = victim.pidfd.pid();
    // Whether it is the victim itself that kcmp waits for: else whoever it is compared with would be taken for that.
    let itself = || share_memory(pid, pid);
    if guard.call(proc, pid, victim.owner, itself)?.is_none() {
        return Ok(None);
    }
    let others = proc.pids().into_iter().flatten().take(MOST_PROCESSES);
    for other in others.filter_map(Result::ok).filter(|&it| it != pid) {
        // kcmp waits for a process in the middle of an execve, which may wait for its old memory; so does its stat.
        // "The same" can be "none": threads of the kernel and those that have just let go.
        let is_it = || share_memory(pid, other) == Some(true) && lives(proc, other);
        if guard.call(proc, other, None, is_it)? == Some(true) {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Whether a process has memory and nobody has killed it.
pub(crate) fn lives(proc: &Proc, pid: Pid) -> bool {
    let status = proc.status(pid).ok().flatten();
    let stat = proc.stat(pid).ok().flatten();
    status.is_some_and(|it| it.memory.is_some() && !it.is_kill_pending)
        && stat.is_some_and(|it| !it.is_exiting)
}

/// What of `shared` stays, of which the victim had touched `bytes`, and who maps it. What nobody else
/// maps and no name keeps goes with its last process; `None` when all of it does.
///
/// # Errors
/// [`Abandoned`].
fn what_stays(
    proc: &Proc,
    shared: &[SharedMemory],
    bytes: Bytes,
    victim: Pid,
    guard: &Guard,
) -> Result<Option<Stays>, Abandoned> {
    let mut is_held: Vec<bool> = shared.iter().map(|it| it.is_named).collect();
    let mut holders = Vec::new();
    let pids = proc.pids().into_iter().flatten().filter_map(Result::ok);
    for pid in pids.filter(|&pid| pid != victim).take(MOST_PROCESSES) {
        let maps = guard.call(proc, pid, None, || proc.shared_memory(pid))?;
        let Some(Ok(Some(maps))) = maps else {
            continue;
        };
        let mut maps_some = false;
        for (of, held) in shared.iter().zip(&mut is_held) {
            if maps.iter().any(|it| it.id == of.id) {
                *held = true;
                maps_some = true;
            }
        }
        if maps_some && holders.len() < MOST_NAMED {
            holders.push(pid);
        }
    }
    let held = shared.iter().zip(&is_held).filter(|(_, held)| **held);
    let names: Vec<String> = held
        .take(MOST_NAMED)
        .map(|(it, _)| printable(&it.name, LONGEST_NAME))
        .collect();
    Ok((!names.is_empty()).then_some(Stays {
        bytes,
        names,
        holders,
    }))
}

/// Finishes a report with who holds the shared memory that its victim left behind.
///
/// # Errors
/// [`Abandoned`].
pub(crate) fn complete(
    proc: &Proc,
    (mut report, shared): (Report, Shared),
    guard: &Guard,
) -> Result<Report, Abandoned> {
    report.stays = what_stays(proc, &shared.pieces, shared.bytes, report.pid, guard)?;
    Ok(report)
}
