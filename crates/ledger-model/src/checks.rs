// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must not come of a sequence, looked for after each move.

use crate::adversary::{ADVERSARY, Breach, Game, HONEST};
use crate::ledger::{RESUM_MS, Rules};
use crate::world::{CHUNK, LIMIT};

/// An account may be above 1.25 limits for so long, but for what has been written to files so lately that no two
/// counts can have met it.
const LONGEST_MS: u32 = 2_000;
const COUNTED_AFTER_MS: u32 = 2 * RESUM_MS;

impl<R: Rules> Game<R> {
    pub(crate) fn look(&mut self) {
        let now = self.world.now_ms;
        let truth = self.world.truth(ADVERSARY);
        self.findings.most = self.findings.most.max(truth / CHUNK);
        self.written_ms.retain(|&at| now - at <= COUNTED_AFTER_MS);
        let uncounted = self.written_ms.len() as i64 * CHUNK;
        if truth - uncounted > LIMIT + LIMIT / 4 {
            let since = *self.above_since_ms.get_or_insert(now);
            self.findings.longest_ms = self.findings.longest_ms.max(now - since);
            if now - since > LONGEST_MS {
                self.findings.breach = Some(Breach::TooLong(now - since, truth / CHUNK));
            }
        } else {
            self.above_since_ms = None;
        }
        // Each address space is in its record to the chunk: whatever is there is in the sum, less what is there twice.
        let it = &self.ledger.accounts[ADVERSARY];
        if it.correction_until_ms == 0 {
            let (_, total) = self.ledger.level(&self.world, ADVERSARY);
            let twice = self.ledger.doubles(&self.world, ADVERSARY);
            let mapped = truth - self.world.kept_chunks(ADVERSARY) * CHUNK;
            // What is dying and shared goes with its credit.
            let dying: i64 = self.ledger.shared_by_dying(&self.world, ADVERSARY);
            if mapped > total + dying - it.sure_pages - twice {
                self.findings.breach = Some(Breach::NotTwice(twice / CHUNK));
            }
        }
        self.look_at_estimates();
        let honest = |&pid: &usize| self.world.processes[pid].account == HONEST;
        if self.ledger.killed.iter().any(honest) {
            self.findings.breach = Some(Breach::Innocent);
        }
    }

    /// What the wait for a PSS scan goes by: growth, and the level.
    fn look_at_estimates(&mut self) {
        if self.world.truth(ADVERSARY) <= LIMIT {
            return;
        }
        let held = self.ledger.held_once(&self.world, ADVERSARY);
        let growth = self.ledger.growth(&self.world, ADVERSARY);
        let (level, _) = self.ledger.level(&self.world, ADVERSARY);
        let most = |so_far: i64, pages: i64| so_far.max(pages / CHUNK);
        let it = &mut self.findings;
        it.untold = most(it.untold, held - LIMIT - growth);
        it.below = most(it.below, held - level);
    }
}
