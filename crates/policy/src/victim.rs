// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chooses the victim for the trace and poll backends, and whom `kill = "graceful"` asks to end with every backend. The
//! same rule as `rank_of()` in
//! `crates/kernel/src/bpf/include/rules.h` (S1 section 3.5); a property test in `crates/ledger-model` holds them together.

use std::cmp::Reverse;

use bursar_model::{Bytes, Pid};

/// A process of the account that is over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// Its process.
    pub pid: Pid,
    /// What it holds.
    pub held: Bytes,
    /// Sent SIGKILL already, by whomever: its memory is on its way back.
    pub is_dying: bool,
    /// Never a victim: pid 1, kernel threads, oom_score_adj −1000, bursard.
    pub is_protected: bool,
    /// Its oom_score_adj: above 0 its user has put it in front by so much.
    pub raised: i16,
    /// It runs a program that an administrator has listed.
    pub is_spared: bool,
}

/// The least oom_score_adj: the kernel never chooses such a process, and neither do we (include/uapi/linux/oom.h).
pub const OOM_SCORE_ADJ_MIN: i16 = -1000;

/// Whether a process is never a victim: pid 1, `own` (bursard), or with the least oom_score_adj.
pub fn is_protected(pid: Pid, own: u32, oom_score_adj: i16) -> bool {
    pid.get() <= 1 || pid.get() == own || oom_score_adj <= OOM_SCORE_ADJ_MIN
}

/// `raised` counts only for processes that hold at least the limit, shifted right by this.
const RAISED_FROM_SHIFT: u32 = 4;
/// Who holds so much is spared no more.
const SPARED_BELOW_SHIFT: u32 = 2;

/// Whether a process of a spared program goes after others: while it holds less than a quarter of the limit.
pub fn goes_last(held: Bytes, limit: Bytes, is_spared: bool) -> bool {
    is_spared && held.get() < limit.get() >> SPARED_BELOW_SHIFT
}

/// Who of two dies: the one of the higher rank. Of those that hold a sixteenth of the limit at least whoever its user
/// has put first, else the largest. Who goes last counts as one that holds less.
pub fn rank(held: Bytes, limit: Bytes, raised: i16, is_spared: bool) -> (Option<i16>, Bytes) {
    let counts = held.get() >= limit.get() >> RAISED_FROM_SHIFT;
    let counts = counts && !goes_last(held, limit, is_spared);
    (counts.then(|| raised.max(0)), held)
}

/// What follows for the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Without the dying it is within its limit.
    Within,
    /// This one dies.
    Victim(Pid),
    /// It is over and nothing of it may be killed.
    Nobody,
}

/// Chooses for one account. Of equals the first one given dies.
pub fn choose(processes: &[Weighed], limit: Bytes) -> Choice {
    let living = processes.iter().filter(|process| !process.is_dying);
    let held = living
        .clone()
        .fold(Bytes::ZERO, |sum, process| sum.saturating_add(process.held));
    if held <= limit {
        return Choice::Within;
    }
    first(processes, limit)
}

/// Who of an account dies first, whether or not it is over its limit. `limit`: what it is killed for; of an account
/// without a limit its notice.
pub fn first(processes: &[Weighed], limit: Bytes) -> Choice {
    let living = processes.iter().filter(|process| !process.is_dying);
    living
        .filter(|process| !process.is_protected)
        // Of equals min_by_key() gives the first.
        .min_by_key(|it| Reverse(rank(it.held, limit, it.raised, it.is_spared)))
        .map_or(Choice::Nobody, |process| Choice::Victim(process.pid))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn process(pid: u32, mib: u64) -> Weighed {
        Weighed {
            pid: Pid::new(pid),
            held: Bytes::from_mib(mib),
            is_dying: false,
            is_protected: false,
            raised: 0,
            is_spared: false,
        }
    }

    #[test]
    fn a_spared_program_goes_after_others_that_hold_a_sixteenth_and_is_none_from_a_quarter_on() {
        let limit = Bytes::from_mib(80);
        let mut processes = [process(10, 19), process(11, 5), process(12, 62)];
        processes[0].is_spared = true;
        let choice = |processes: &[Weighed]| choose(processes, limit);
        assert_eq!(choice(&processes), Choice::Victim(Pid::new(12)));
        processes[2].is_protected = true;
        assert_eq!(choice(&processes), Choice::Victim(Pid::new(11)));
        processes[1].held = Bytes::from_mib(4);
        assert_eq!(
            choice(&processes),
            Choice::Victim(Pid::new(10)),
            "others hold too little"
        );
        processes[1].held = Bytes::from_mib(5);
        processes[0].held = Bytes::from_mib(20);
        assert_eq!(
            choice(&processes),
            Choice::Victim(Pid::new(10)),
            "a quarter"
        );
    }

    #[test]
    fn of_spared_programs_alone_the_largest_dies() {
        let mut processes = [1, 2, 3, 4, 5].map(|pid| process(pid, 17 + u64::from(pid == 3)));
        for process in &mut processes {
            process.is_spared = true;
            process.raised = i16::from(process.pid == Pid::new(1));
        }
        assert_eq!(
            choose(&processes, Bytes::from_mib(80)),
            Choice::Victim(Pid::new(3))
        );
    }

    #[test]
    fn whom_its_user_has_put_first_dies_first_unless_that_frees_next_to_nothing() {
        let mut processes = [process(10, 60), process(11, 20), process(12, 3)];
        processes[1].raised = 300;
        processes[2].raised = 1000;
        assert_eq!(
            choose(&processes, Bytes::from_mib(80)),
            Choice::Victim(Pid::new(11))
        );
    }

    #[test]
    fn the_largest_dies_and_only_above_the_limit() {
        let processes = [process(10, 30), process(11, 40), process(12, 5)];
        assert_eq!(choose(&processes, Bytes::from_mib(75)), Choice::Within);
        assert_eq!(
            choose(&processes, Bytes::from_mib(74)),
            Choice::Victim(Pid::new(11))
        );
    }

    #[test]
    fn one_breach_has_one_victim() {
        let mut processes = [process(10, 30), process(11, 40), process(12, 5)];
        processes[1].is_dying = true;
        assert_eq!(choose(&processes, Bytes::from_mib(40)), Choice::Within);
    }

    #[test]
    fn the_protected_count_and_are_spared() {
        let mut processes = [process(1, 90), process(11, 40)];
        processes[0].is_protected = true;
        assert_eq!(
            choose(&processes, Bytes::from_mib(64)),
            Choice::Victim(Pid::new(11))
        );
        processes[1].is_protected = true;
        assert_eq!(choose(&processes, Bytes::from_mib(64)), Choice::Nobody);
    }

    proptest! {
        #[test]
        fn no_victim_is_smaller_than_another_that_may_die(
            sizes in prop::collection::vec((0u64..100, any::<bool>(), any::<bool>()), 0..12),
            limit in 0u64..400,
        ) {
            let processes: Vec<_> = sizes.iter().zip(2u32..).map(|(&(mib, is_dying, is_protected), pid)| {
                Weighed { is_dying, is_protected, ..process(pid, mib) }
            }).collect();
            if let Choice::Victim(pid) = choose(&processes, Bytes::from_mib(limit)) {
                let victim = processes.iter().find(|it| it.pid == pid).unwrap();
                prop_assert!(!victim.is_dying && !victim.is_protected);
                for other in processes.iter().filter(|it| !it.is_dying && !it.is_protected) {
                    prop_assert!(other.held <= victim.held);
                }
            }
        }
    }
}
