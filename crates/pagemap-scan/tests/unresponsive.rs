// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process that does not answer is missing from a count, and nobody else is. Needs root.

use std::process::Command;

use bursar_host::{Patient, Proc, ProcessQuery};
use bursar_model::{AccountId, Pid};
use bursar_pagemap_scan::{Pace, PagemapScanner};

/// Asks everybody but this one.
struct AllBut<'a>(&'a Proc, Pid);

impl ProcessQuery for AllBut<'_> {
    fn ask_each<T, Q>(&mut self, mut pids: Vec<Pid>, question: Q) -> Vec<(Pid, T)>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
    {
        pids.retain(|&pid| pid != self.1);
        Patient(self.0).ask_each(pids, question)
    }
}

#[test]
fn one_who_does_not_answer_is_missing_and_said_to_be() {
    let proc = Proc::host().unwrap();
    let mut children = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
    let [unresponsive, other] = [0, 1].map(|index: usize| Pid::new(children[index].id()));
    // Each of them has an account of its own, and all others have one.
    let account =
        |pid: Pid| AccountId::new(1 + u64::from(pid == unresponsive) + 2 * u64::from(pid == other));
    let mut scanner = PagemapScanner::new(Proc::host().unwrap());
    let count = scanner.count(
        Pace::FULL,
        &mut AllBut(&proc, unresponsive),
        |_, process| Some(account(process.pid)),
    );
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let count = count.unwrap();
    assert_eq!(count.of(account(unresponsive)), None);
    assert_eq!(count.of(account(other)).unwrap().processes, 1);
    assert!(count.facts.refused >= 1, "{:?}", count.facts);
    assert!(count.is_whole());
}
