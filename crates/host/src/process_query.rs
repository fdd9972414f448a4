// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asking processes what they can keep us waiting with.
//!
//! A process can make it last for ever to be asked for its memory (smaps_rollup, maps, pagemap), while one of its
//! threads keeps that locked; and for its stat, its namespaces, its files and whether it shares its memory (kcmp),
//! while it is in the middle of an execve that waits for such memory. What it cannot delay: its status, comm,
//! uid_map, oom_score_adj and list of threads.

use bursar_model::Pid;

use crate::Proc;

/// Somebody who can be sent to ask. It is a reader's caller who knows what may wait, and for how long.
pub trait ProcessQuery {
    /// Asks each of these processes the same, in order: what those have said who said anything in time.
    fn ask_each<T, Q>(&mut self, pids: Vec<Pid>, question: Q) -> Vec<(Pid, T)>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static;

    /// Asks one of them.
    fn ask<T, Q>(&mut self, pid: Pid, question: Q) -> Option<T>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
    {
        self.ask_each(vec![pid], question).pop().map(|(_, it)| it)
    }
}

/// Asks by itself, and waits for as long as it takes.
#[derive(Debug)]
pub struct Patient<'a>(pub &'a Proc);

impl ProcessQuery for Patient<'_> {
    fn ask_each<T, Q>(&mut self, pids: Vec<Pid>, question: Q) -> Vec<(Pid, T)>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
    {
        let ask = |pid| (pid, question(self.0, pid));
        pids.into_iter().map(ask).collect()
    }
}
