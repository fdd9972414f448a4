// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oom_score_adj policy, S1's last defence (section 3.4): should the whole machine run out first, the kernel's own OOM
//! killer finds processes of users with limits before any other.
//!
//! It goes by oom_score_adj, which is raised for them, never lowered, and put back when the limit
//! goes. Children inherit it, so what a limited user starts is covered from its first moment; what
//! root starts on his behalf (sudo) inherits it too and is given its own value back.

use std::collections::HashMap;

use bursar_host::{Adjusted, Proc, ProcessQuery, StartTime, UserNamespaces, UsernsOwner};
use bursar_model::{Pid, Uid};

use crate::payers::Payers;

/// Below everything: the kernel never chooses it, and neither do we.
const UNTOUCHABLE: i16 = -1000;

/// Keeps oom_score_adj as the limits want it.
#[derive(Debug)]
pub(crate) struct OomScore {
    raised: i16,
    /// What processes had before, as far as we raised them ourselves, and it was not 0.
    original: HashMap<Pid, Original>,
}

#[derive(Debug, Clone, Copy)]
struct Original {
    /// Of the process that had it.
    start: StartTime,
    score: i16,
}

impl OomScore {
    pub(crate) fn new(raised: i16) -> Self {
        Self {
            raised,
            original: HashMap::new(),
        }
    }

    /// Looks at every process of the machine. Returns how many could not be helped.
    pub(crate) fn review(
        &mut self,
        proc: &Proc,
        payers: &Payers,
        ask: &mut impl ProcessQuery,
    ) -> u32 {
        // By who pays, as the kernel half does that says who is not covered.
        let mut namespaces = UserNamespaces::new(proc).ok();
        let is_limited = |pid, uid, ask: &mut _| {
            let owner = match &mut namespaces {
                Some(it) => it.owner_of(proc, pid, uid, ask).ok()?,
                None => UsernsOwner::itself(uid),
            };
            Some(payers.is_limited(payers.payer(owner)))
        };
        self.visit(proc, is_limited, ask)
    }

    /// Nobody has a limit any more.
    pub(crate) fn restore_oom_scores(&mut self, proc: &Proc, ask: &mut impl ProcessQuery) {
        self.visit(proc, |_, _, _| Some(false), ask);
    }

    fn visit<A: ProcessQuery>(
        &mut self,
        proc: &Proc,
        mut is_limited: impl FnMut(Pid, Uid, &mut A) -> Option<bool>,
        ask: &mut A,
    ) -> u32 {
        let mut helpless = 0;
        let mut seen = HashMap::new();
        let Ok(pids) = proc.pids() else { return 0 };
        for pid in pids.filter_map(Result::ok) {
            if pid.get() == 1 || pid.get() == std::process::id() {
                continue;
            }
            // Bound to this very process: what we read and write cannot hit a later one of the same pid, and while
            // it is there the pid is its own.
            let Ok(Some(process)) = proc.process(pid) else {
                continue;
            };
            // Who does not say since when he is there may be the one we know.
            let known = self.original.get(&pid).copied();
            let known = known.filter(|it| start_of(pid, ask).is_none_or(|start| start == it.start));
            let Ok(Some(status)) = process.status() else {
                continue;
            };
            if status.memory.is_none() {
                continue;
            }
            let Ok(Some(now)) = process.oom_score_adj() else {
                continue;
            };
            let wanted = match is_limited(pid, status.uid, ask) {
                Some(true) if now < self.raised && now > UNTOUCHABLE => self.raised,
                // Ours, or inherited from one of ours: nobody else uses this value.
                Some(false) if now == self.raised => known.map_or(0, |it| it.score),
                // Also who cannot be asked who pays for it: it keeps what it has.
                _ => {
                    seen.extend(known.map(|it| (pid, it)));
                    continue;
                }
            };
            let original = match now {
                0 => None,
                score => start_of(pid, ask).map(|start| Original { start, score }),
            };
            match process.set_oom_score_adj(wanted) {
                Ok(Adjusted::Done) if wanted == self.raised => {
                    seen.extend(original.map(|it| (pid, it)));
                }
                Ok(Adjusted::Done | Adjusted::Gone) => {}
                Ok(Adjusted::Denied) | Err(_) => helpless += 1,
            }
        }
        // What has ended is forgotten.
        self.original = seen;
        helpless
    }
}

/// When a process began, if it says so.
fn start_of(pid: Pid, ask: &mut impl ProcessQuery) -> Option<StartTime> {
    let stat = ask.ask(pid, Proc::stat)?;
    Some(stat.ok()??.start)
}
