// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last defence (S1 section 3.4): should the whole machine run out first, the kernel's own OOM
//! killer finds processes of users with limits before any other.
//!
//! It goes by oom_score_adj, which is raised for them, never lowered, and put back when the limit
//! goes. Children inherit it, so what a limited user starts is covered from its first moment; what
//! root starts on his behalf (sudo) inherits it too and is given its own value back.

use std::collections::HashMap;

use bursar_host::{Adjusted, Proc, StartTime, UserNamespaces};
use bursar_model::{Pid, Uid};

use crate::scope::Payers;

/// Below everything: the kernel never chooses it, and neither do we.
const UNTOUCHABLE: i16 = -1000;

/// Keeps oom_score_adj as the limits want it.
#[derive(Debug)]
pub(crate) struct Defence {
    raised: i16,
    /// What processes had before, as far as we raised them ourselves.
    original: HashMap<(Pid, StartTime), i16>,
}

impl Defence {
    pub(crate) fn new(raised: i16) -> Self {
        Self {
            raised,
            original: HashMap::new(),
        }
    }

    /// Looks at every process of the machine. Returns how many could not be helped.
    pub(crate) fn review(&mut self, proc: &Proc, payers: &Payers) -> u32 {
        // By who pays, as the kernel half does that says who is not covered.
        let mut namespaces = UserNamespaces::new(proc).ok();
        self.visit(proc, |pid, uid| {
            let payer = namespaces.as_mut().map_or(uid, |it| {
                let answer = it.answer(proc, pid, uid);
                payers.payer(answer)
            });
            payers.is_limited(payer)
        })
    }

    /// Nobody has a limit any more.
    pub(crate) fn stand_down(&mut self, proc: &Proc) {
        self.visit(proc, |_, _| false);
    }

    fn visit(&mut self, proc: &Proc, mut is_limited: impl FnMut(Pid, Uid) -> bool) -> u32 {
        let mut helpless = 0;
        let mut seen = HashMap::new();
        let Ok(pids) = proc.pids() else { return 0 };
        for pid in pids.filter_map(Result::ok) {
            if pid.get() == 1 || pid.get() == std::process::id() {
                continue;
            }
            let Ok(Some(stat)) = proc.stat(pid) else {
                continue;
            };
            // Bound to this very process: what we write cannot hit a later one of the same pid.
            let Ok(Some(process)) = proc.process_since(pid, stat.start) else {
                continue;
            };
            let Ok(Some(status)) = process.status() else {
                continue;
            };
            if status.memory.is_none() {
                continue;
            }
            let Ok(Some(now)) = process.oom_score_adj() else {
                continue;
            };
            let key = (pid, stat.start);
            let wanted = match is_limited(pid, status.uid) {
                true if now < self.raised && now > UNTOUCHABLE => self.raised,
                // Ours, or inherited from one of ours: nobody else uses this value.
                false if now == self.raised => self.original.get(&key).copied().unwrap_or(0),
                _ => {
                    self.keep(&mut seen, key);
                    continue;
                }
            };
            match process.set_oom_score_adj(wanted) {
                Ok(Adjusted::Done) if wanted == self.raised => {
                    seen.insert(key, now);
                }
                Ok(Adjusted::Done | Adjusted::Gone) => {}
                Ok(Adjusted::Denied) | Err(_) => helpless += 1,
            }
        }
        // What has ended is forgotten.
        self.original = seen;
        helpless
    }

    fn keep(&self, seen: &mut HashMap<(Pid, StartTime), i16>, key: (Pid, StartTime)) {
        if let Some(&original) = self.original.get(&key) {
            seen.insert(key, original);
        }
    }
}
