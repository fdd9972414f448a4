// SPDX-License-Identifier: Apache-2.0 OR MIT
//! kcmp(2): whether two processes have one memory (vfork, CLONE_VM).

use std::cmp::Ordering;

use bursar_model::Pid;

/// KCMP_VM, include/uapi/linux/kcmp.h.
const KCMP_VM: libc::c_int = 1;

/// An order of address spaces, so that many can be sorted: equal where two have the same one. `None`
/// when one of them is gone, we may not ask (ptrace access to both is needed), or this kernel has no
/// kcmp.
pub fn order_of_memory(one: Pid, other: Pid) -> Option<Ordering> {
    let one = libc::pid_t::try_from(one.get()).ok()?;
    let other = libc::pid_t::try_from(other.get()).ok()?;
    // SAFETY: takes integers only and touches no memory of ours.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0u64, 0u64) };
    match order {
        0 => Some(Ordering::Equal),
        1 => Some(Ordering::Less),
        2 => Some(Ordering::Greater),
        _ => None,
    }
}

/// Whether these two share one address space; `None` as for [`order_of_memory`].
pub fn share_memory(one: Pid, other: Pid) -> Option<bool> {
    order_of_memory(one, other).map(Ordering::is_eq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_with_itself_and_not_with_a_child() {
        let own = Pid::new(std::process::id());
        assert_eq!(share_memory(own, own), Some(true));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert_eq!(share_memory(own, Pid::new(child.id())), Some(false));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn with_nobody_there_is_no_answer() {
        assert_eq!(share_memory(Pid::new(1 << 30), Pid::new(1)), None);
    }
}
