// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be done to a victim so that it can exit: its threads raised and let onto every CPU, itself
//! moved out of a cgroup that holds it back. Each as far as permissions allow; what is refused is left.

use bursar_host::{Cgroup, Changed, Controller, Pidfd, sched};
use bursar_model::Pid;

use crate::observer::Observer;

/// A victim with more threads has the others left as they are.
pub(crate) const MOST_THREADS: usize = 64;

/// The threads of a victim that can still be named. The pidfd says afterwards that they were its own.
pub(crate) fn threads(observer: &Observer, pidfd: &Pidfd) -> Vec<Pid> {
    let pid = pidfd.pid();
    let mut threads = observer.proc.threads(pid, MOST_THREADS).unwrap_or_default();
    // The numbers were read from a directory named by number: its process must not have ended before.
    if has_ended(pidfd) {
        threads.clear();
    }
    threads
}

pub(crate) fn has_ended(pidfd: &Pidfd) -> bool {
    pidfd
        .wait_readable(Some(std::time::Duration::ZERO))
        .unwrap_or(true)
}

/// Lets them run on every CPU.
pub(crate) fn widen(threads: &[Pid]) {
    for &thread in threads {
        let _ = sched::allow_all_cpus(thread);
    }
}

/// Lets them run on every CPU but the calling thread's. The kernel wakes a thread where it slept or where it
/// is woken from, and leaves it there beside whoever runs there, for milliseconds, though another CPU is idle.
pub(crate) fn send_elsewhere(threads: &[Pid]) {
    let here = sched::own_cpu();
    for &thread in threads {
        let _ = sched::allow_all_cpus_but(thread, here);
    }
}

/// Moves a process out of the group that holds it back, to ours, or to the topmost one.
pub(crate) fn move_out(observer: &Observer, pidfd: &Pidfd, controller: Controller) -> Changed {
    let holds_back = |group: &Cgroup| match controller {
        Controller::Cpu => group.quota_permille().is_some(),
        Controller::Freezer => group.is_frozen(),
    };
    let Some(group) = observer.cgroups.of(pidfd.pid(), controller) else {
        return Changed::Gone;
    };
    let own = observer.cgroups.own(controller);
    for target in own.into_iter().chain([group.top()]) {
        if holds_back(&target) || has_ended(pidfd) {
            continue;
        }
        match target.take_in(pidfd.pid()) {
            Changed::Denied => {}
            changed => return changed,
        }
    }
    Changed::Denied
}
