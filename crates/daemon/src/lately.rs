// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes of whom something was told a short while ago, so that it is told once.

use std::collections::VecDeque;

use bursar_model::{Nanos, Pid};

/// More than are told of while one of them is still there; the oldest are forgotten.
const KEPT: usize = 1024;

/// A process is its pid and when it began: pids come again.
#[derive(Debug, Default)]
pub(crate) struct Lately(VecDeque<(Pid, Nanos)>);

impl Lately {
    /// Whether it is new; it is not, from now on.
    pub(crate) fn is_new(&mut self, pid: Pid, started: Nanos) -> bool {
        let process = (pid, started);
        if self.0.contains(&process) {
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
    use super::*;

    #[test]
    fn a_process_is_new_once_and_its_pid_with_another_beginning_again() {
        let pid = Pid::new(7);
        let mut lately = Lately::default();
        assert!(lately.is_new(pid, Nanos::new(1)));
        assert!(!lately.is_new(pid, Nanos::new(1)));
        assert!(lately.is_new(pid, Nanos::new(2)));
    }

    #[test]
    fn it_stays_small() {
        let mut lately = Lately::default();
        for started in 0..3 * KEPT as u64 {
            assert!(lately.is_new(Pid::new(7), Nanos::new(started)));
        }
        assert_eq!(lately.0.len(), KEPT);
        assert!(!lately.is_new(Pid::new(7), Nanos::new(3 * KEPT as u64 - 1)));
    }
}
