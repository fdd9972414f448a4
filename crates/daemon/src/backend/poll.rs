// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The poll trigger: a look at all of /proc every 200 ms. It exists for machines without BPF and as
//! the comparison in the benchmarks: what S1 section 2.2 says of it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_config::Program;
use bursar_host::{ExemptCgroups, Timer};
use bursar_model::{AccountId, BackendKind, Bytes, KernelHalfStatus, Trigger, Uid};
use bursar_policy::Plan;
use bursar_watchdog::TimedQuery;

use super::Backend;
use super::reading::Reading;
use super::scan::Scan;
use crate::fact::{Fact, Victim};
use crate::payers::Coverage;
use crate::reservations::Holdings;

/// A scan of /proc every so many milliseconds.
#[derive(Debug)]
pub(crate) struct PollBackend {
    scan: Scan,
    timer: Timer,
}

impl PollBackend {
    pub(crate) fn start(
        coverage: Coverage,
        counts_files: bool,
        milliseconds: u64,
        query: TimedQuery,
        exempt: Arc<ExemptCgroups>,
    ) -> Result<Self> {
        let scan = Scan::new(coverage, counts_files, Trigger::Poll, query, exempt)?;
        let timer = Timer::polled().context("make a timer")?;
        let every = Duration::from_millis(milliseconds);
        timer.set(every, every).context("set a timer")?;
        Ok(Self { scan, timer })
    }
}

impl Holdings for PollBackend {
    /// The last look may be 200 ms old: a promise needs a look of its own.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes> {
        self.scan.held_of(id)
    }

    fn slack(&self) -> Bytes {
        Bytes::ZERO
    }
}

impl Backend for PollBackend {
    fn apply(&mut self, plan: &Plan) -> Result<()> {
        self.scan.apply(plan);
        Ok(())
    }

    fn wake(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn drain(&mut self) -> Result<Vec<Fact>> {
        // Several ticks missed are one scan.
        let _ = self.timer.take_expiry();
        self.scan.run()
    }

    fn readings(&self) -> Vec<Reading> {
        self.scan.readings()
    }

    fn measure(
        &mut self,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
        _closing: &BTreeSet<AccountId>,
    ) -> Result<BTreeMap<AccountId, Bytes>> {
        self.scan.measure(projections)
    }

    fn spare(&mut self, programs: &[Program]) -> Result<()> {
        self.scan.spare(programs);
        Ok(())
    }

    fn kill_failed(&mut self, victim: &Victim) {
        self.scan.kill_failed(victim);
    }

    fn subuids_met(&self) -> Result<BTreeSet<Uid>> {
        Ok(self.scan.subuids_met())
    }

    fn recount(&mut self) -> Result<()> {
        Ok(())
    }

    fn status(&self) -> KernelHalfStatus {
        KernelHalfStatus {
            timer: true,
            ..self.scan.status(BackendKind::Poll)
        }
    }

    fn error_bound(&self) -> Bytes {
        // Nothing bounds what is allocated between two looks but the speed of the machine.
        Bytes::MAX
    }
}
