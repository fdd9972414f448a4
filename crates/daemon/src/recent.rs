// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes of whom something was told a short while ago, so that it is told once.

use std::collections::VecDeque;

use crate::killer::Chosen;

/// More than are told of while one of them is still there; the oldest are forgotten.
const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Recent(VecDeque<Chosen>);

impl Recent {
    /// Whether it is new; it is not, from now on.
    pub(crate) fn is_new(&mut self, process: Chosen) -> bool {
        if self.0.iter().any(|it| it.is(&process)) {
            return false;
        }
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(process);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use bursar_model::{Nanos, Pid, Uid};

    use super::*;

    fn process(started: u64, number: u64) -> Chosen {
        Chosen {
            pid: Pid::new(7),
            uid: Uid::new(60001),
            started: (started > 0).then_some(Nanos::new(started)),
            number: NonZeroU64::new(number),
        }
    }

    #[test]
    fn a_process_is_new_once_and_its_pid_with_another_beginning_again() {
        let mut recent = Recent::default();
        assert!(recent.is_new(process(1, 0)));
        assert!(!recent.is_new(process(1, 0)));
        assert!(recent.is_new(process(2, 0)));
    }

    #[test]
    fn a_number_in_pidfs_says_more_than_a_beginning() {
        let mut recent = Recent::default();
        assert!(recent.is_new(process(1, 5)));
        assert!(!recent.is_new(process(0, 5)));
        assert!(recent.is_new(process(1, 6)));
    }

    #[test]
    fn whoever_may_be_another_is_new() {
        let mut recent = Recent::default();
        assert!(recent.is_new(process(0, 0)));
        assert!(recent.is_new(process(0, 0)));
        assert!(recent.is_new(process(1, 0)));
    }

    #[test]
    fn it_stays_small() {
        let mut recent = Recent::default();
        for started in 1..3 * KEPT as u64 {
            assert!(recent.is_new(process(started, 0)));
        }
        assert_eq!(recent.0.len(), KEPT);
        assert!(!recent.is_new(process(3 * KEPT as u64 - 1, 0)));
    }
}
