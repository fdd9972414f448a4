// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be done to a victim so that it can exit: its threads raised and let onto every CPU, itself moved out of a
//! cgroup that holds it back. Each as far as permissions allow; what is refused is left.

use std::path::Path;

use bursar_host::{Cgroup, Changed, Controller, Pidfd, sched};
use bursar_model::Pid;

use crate::observer::Observer;
use crate::priority;

/// A victim with more threads has the others left as they are.
const MOST_THREADS: usize = 64;

/// Puts the victim's threads before others and onto every CPU; whether any was raised.
pub(crate) fn raise(observer: &Observer, pidfd: &Pidfd) -> bool {
    let pid = pidfd.pid();
    let mut is_any = false;
    for thread in threads(observer, pidfd) {
        // A thread that has ended while its process lives on may have left its number to somebody else.
        if thread != pid && !Path::new(&format!("/proc/{pid}/task/{thread}")).exists() {
            continue;
        }
        let _ = sched::allow_all_cpus(thread);
        is_any |= priority::raise(thread);
    }
    is_any
}

/// The threads of a victim that can still be named.
fn threads(observer: &Observer, pidfd: &Pidfd) -> Vec<Pid> {
    let threads = observer.proc.threads(pidfd.pid(), MOST_THREADS);
    // The numbers were read from a directory named by number: its process must not have ended before.
    match pidfd.has_ended().unwrap_or(true) {
        true => Vec::new(),
        false => threads.unwrap_or_default(),
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
        if holds_back(&target) || pidfd.has_ended().unwrap_or(true) {
            continue;
        }
        match target.take_in(pidfd.pid()) {
            Changed::Denied => {}
            changed => return changed,
        }
    }
    Changed::Denied
}
