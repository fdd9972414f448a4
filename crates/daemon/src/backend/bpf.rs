// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half as a backend: it decides alone, we hand it accounts and read its events.

mod apply;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use bursar_config::Program;
use bursar_host::clock;
use bursar_kernel::{
    AccountReading, History, KernelEventKind, KernelHalf, Options, Settings, Slot, Started,
};
use bursar_model::{
    AccountId, BackendKind, Bounds, Bytes, Correction, ExemptCgroup, GateStatus, KernelHalfStatus,
    Measure, PageSize, Pages, Uid,
};
use bursar_policy::{Coverage, Plan, Subordinates};

use super::Backend;
use super::kernel_features::KernelFeatures;
use super::projection::Projections;
use super::pss_scanner::{Method, ScanCounters, ScanRequests, start};
use super::reading::Reading;
use super::ring_reader::{ReaderContext, RingEvent, RingReader};
use crate::fact::Fact;
use crate::killer::KillOutcome;
use crate::reaper::ReapHandle;
use crate::reservations::Holdings;
use crate::spared_programs::program_files;

/// The kernel half, its accounts and its events.
#[derive(Debug)]
pub(crate) struct BpfBackend {
    kernel: KernelFeatures,
    ring_reader: RingReader,
    root: PathBuf,
    /// Whom `default` covers.
    coverage: Coverage,
    usual: Measure,
    pss_scans: Arc<ScanCounters>,
    requests: ScanRequests,
    /// What the kernel half that is being replaced remembers; used once, at the first apply.
    inherited: HashMap<AccountId, History>,
    in_charge: bool,
    /// Where new accounts may lie, as of the last change of limits.
    vacant: Vec<Slot>,
    /// Where accounts lay when they were last asked for; looked at before it is believed.
    slots: HashMap<AccountId, Slot>,
    /// What the kernel half was last told of them.
    subordinates: Option<Subordinates>,
}

impl BpfBackend {
    pub(crate) fn start(
        root: &Path,
        options: Options,
        settings: Settings,
        usual: Measure,
        handle: ReapHandle,
    ) -> Result<(Self, Started)> {
        let (mut kernel_half, started) = KernelHalf::start(root, &options)?;
        kernel_half.configure(&settings)?;
        let method = Method {
            page: options.page_size,
            count_file: options.count_file,
            priority: handle.priority(),
            blocklist: Arc::clone(handle.blocklist()),
        };
        let pss_scans = Arc::default();
        let requests = start(kernel_half.pss_scans()?, method, Arc::clone(&pss_scans))?;
        let context = ReaderContext {
            handle,
            requests: requests.clone(),
            killer: kernel_half.oom_killer()?,
        };
        let ring_reader = RingReader::start(kernel_half.event_source()?, context)?;
        let inherited = kernel_half.inherited().into_iter().collect();
        let in_charge = started == Started::Adopted;
        let coverage = Coverage {
            uid_min: settings.uid_min,
            exempt: settings.exempt.clone(),
        };
        Ok((
            Self {
                kernel: KernelFeatures::new(kernel_half, options, settings),
                ring_reader,
                root: root.to_owned(),
                coverage,
                usual,
                pss_scans,
                requests,
                inherited,
                vacant: Vec::new(),
                in_charge,
                slots: HashMap::new(),
                subordinates: None,
            },
            started,
        ))
    }

    /// The kernel half gives accounts that it opens itself a slot that was nobody's before: few are used up
    /// for a question.
    fn spare_slots(&self) -> usize {
        (self.kernel.half.accounts().capacity() / 16).max(1)
    }

    /// What those hold who pay into nothing, by accounts opened for the question.
    fn count_apart(&self, ids: &[AccountId]) -> Result<BTreeMap<AccountId, Pages>> {
        let accounts = self.kernel.half.accounts();
        let mut opened = BTreeMap::new();
        let laid = ids.iter().try_for_each(|&id| {
            let slot = accounts.open_account(id, false, !self.in_charge, History::default())?;
            opened.insert(id, slot);
            if id.uid().is_none() {
                accounts.let_pay(id, slot)?;
            }
            Ok(())
        });
        let counted = laid.and_then(|()| {
            // First, for the re-sum takes over what was counted. Where it cannot be done, or not to the end,
            // what processes map counts, as ever.
            let _ = self.kernel.half.count_files();
            self.kernel.half.resum_now()
        });
        let held = |slot: Slot| accounts.account(slot).map(|it| it.held);
        let found = opened
            .iter()
            .filter_map(|(&id, &slot)| Some((id, held(slot)?)));
        let found = found.collect();
        accounts.close_accounts(&opened.into_values().collect())?;
        // A slot is free for another when nothing is charged to it any more.
        self.kernel.half.resum_now()?;
        counted?;
        Ok(found)
    }

    fn to_reading(&self, account: &AccountReading) -> Reading {
        let page = self.page();
        let bytes = |pages: Option<Pages>| pages.map(|it| it.to_bytes(page));
        let bounds = &account.bounds;
        Reading {
            id: account.id,
            is_default: account.is_default,
            held: account.held.to_bytes(page),
            correction: account.corrected.map(|it| {
                let now = clock::monotonic().get();
                Correction {
                    bytes: it.pages.to_bytes(page),
                    age_ns: now.saturating_sub(it.at.get()),
                    left_ns: it.until.get().saturating_sub(now),
                }
            }),
            dying: account.dying.to_bytes(page),
            unkillable: account.unkillable.to_bytes(page),
            committed: (bounds.measure == Measure::Committed || bounds.private.is_some())
                .then(|| account.committed.to_bytes(page)),
            unmapped: account.unmapped.to_bytes(page),
            stuck: account.stuck.to_bytes(page),
            reserved: account.reserved.to_bytes(page),
            // Raised when a batch is booked, and `held` before that.
            maxheld: account.history.maxheld.max(account.held).to_bytes(page),
            processes: account.processes,
            // They were checked on their way in; two writes apart they may disagree for a moment.
            bounds: Bounds::new(
                bytes(bounds.notice),
                bytes(bounds.barrier),
                bytes(bounds.limit),
            )
            .unwrap_or_default()
            .in_mode(bounds.mode),
            failcnt: account.history.failcnt,
            kills: account.history.kills,
            notices: account.history.notices,
        }
    }

    /// An account that is open.
    fn find(&mut self, id: AccountId) -> Option<AccountReading> {
        let accounts = self.kernel.half.accounts();
        let is_it = |account: &AccountReading| account.id == id && account.is_open;
        let remembered = self.slots.get(&id).and_then(|&slot| accounts.account(slot));
        let found = remembered.filter(is_it);
        let account = found.or_else(|| accounts.all().find(is_it))?;
        self.slots.insert(id, account.slot);
        Some(account)
    }

    fn page(&self) -> PageSize {
        self.kernel.options.page_size
    }

    /// What events tell, and what halves that are gone had told.
    fn facts_of(&mut self, all: Vec<RingEvent>) -> Vec<Fact> {
        let page = self.page();
        let tell = |one: RingEvent| match (Fact::from_kernel_event(one.event, page)?, one.outcome) {
            (fact, Some(KillOutcome::Gone)) if one.is_left => Some(fact),
            (Fact::KillUnknown(victim), Some(outcome)) => Some(Fact::KillTried(victim, outcome)),
            (fact, _) => Some(fact),
        };
        let undelivered = self.kernel.half.take_undelivered();
        let others = undelivered.events.len() as u64;
        self.kernel.recorded_events().expect_others(others);
        let before = Fact::from_undelivered(undelivered, page);
        before.chain(all.into_iter().filter_map(tell)).collect()
    }
}

impl Holdings for BpfBackend {
    /// The ledger's word: exact once something is promised near a bound (docs/design/19-stocks-near-a-bound.md), and
    /// some way below it short by less than the way to where it is near.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes> {
        let Some(account) = self.find(id) else {
            let alone = BTreeMap::from([(id, id.uid().into_iter().collect())]);
            let mut found = self.measure(&alone, &BTreeSet::new())?;
            return Ok(found.remove(&id).unwrap_or_default());
        };
        Ok(account.held.to_bytes(self.page()))
    }

    fn slack(&self) -> Bytes {
        self.error_bound()
    }

    fn reserved_now(&mut self, id: AccountId, reserved: Pages) -> Result<()> {
        match self.find(id) {
            Some(account) => Ok(self
                .kernel
                .half
                .accounts()
                .promise(account.slot, reserved)?),
            // Nobody reserves there of the kernel half, either.
            None => Ok(()),
        }
    }

    fn reserved_elsewhere(&mut self, id: AccountId) -> Bytes {
        self.find(id)
            .map_or(Bytes::ZERO, |it| it.reserved.to_bytes(self.page()))
    }

    fn keep_refusals(&mut self, id: AccountId, count: u64) -> Result<bool> {
        // Who has no account yet is not counted.
        if let Some(account) = self.find(id) {
            self.kernel
                .half
                .accounts()
                .count_refusals(account.slot, count)?;
        }
        Ok(true)
    }
}

impl Backend for BpfBackend {
    fn apply(&mut self, plan: &Plan) -> Result<()> {
        self.put_in_force(plan)
    }

    fn wake(&self) -> BorrowedFd<'_> {
        self.ring_reader.as_fd()
    }

    fn drain(&mut self) -> Result<Vec<Fact>> {
        let all = self.ring_reader.drain();
        if all
            .iter()
            .any(|it| it.event.kind == KernelEventKind::Unrecorded)
        {
            self.kernel.half.find_unrecorded()?;
        }
        if all
            .iter()
            .any(|it| it.event.kind == KernelEventKind::CountFiles)
        {
            self.kernel.half.count_files()?;
        }
        Ok(self.facts_of(all))
    }

    fn readings(&self) -> Vec<Reading> {
        let accounts = self.kernel.half.accounts();
        accounts
            .all()
            .filter(|it| it.is_open)
            .map(|it| self.to_reading(&it))
            .collect()
    }

    fn spare(&mut self, programs: &[Program]) -> Result<()> {
        Ok(self.kernel.half.spare(&program_files(programs))?)
    }

    fn exempt(&mut self, groups: &[ExemptCgroup]) -> Result<()> {
        self.kernel.half.exempt(groups)?;
        // Who pays is worked out anew; of who was nobody's and sleeps nothing else tells.
        self.kernel.half.configure(&self.kernel.settings)?;
        if self.in_charge {
            self.kernel.half.resum_now()?;
        }
        Ok(())
    }

    fn subuids_met(&self) -> Result<BTreeSet<Uid>> {
        Ok(self.kernel.half.subordinates().met())
    }

    fn recount(&mut self) -> Result<()> {
        self.kernel.half.resum_now()?;
        Ok(())
    }

    fn measure(
        &mut self,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
        closing: &BTreeSet<AccountId>,
    ) -> Result<BTreeMap<AccountId, Bytes>> {
        let found = Projections::find(self.kernel.half.accounts(), projections, closing)?;
        let mut counted = BTreeMap::new();
        for some in found.uncounted().chunks(self.spare_slots()) {
            counted.extend(self.count_apart(some)?);
        }
        if counted.is_empty() {
            self.kernel.half.resum_now()?;
        }
        let page = self.page();
        let held = found
            .held(self.kernel.half.accounts(), &counted)?
            .into_iter();
        Ok(held.map(|(id, pages)| (id, pages.to_bytes(page))).collect())
    }

    fn status(&self) -> KernelHalfStatus {
        let Ok(facts) = self.kernel.half.facts() else {
            return KernelHalfStatus::default();
        };
        let gate = self.kernel.half.gate();
        let counter_cpus = self.kernel.online_cpus();
        let drift_repaired = facts.drift_repaired.to_bytes(self.page());
        KernelHalfStatus {
            attached: true,
            trigger: Some(BackendKind::Bpf),
            event_trigger: facts.event_trigger,
            timer: facts.timer_running,
            signals_others: facts.signals_others,
            resums: facts.resums,
            resum_ns: facts.resum.get(),
            resum_max_ns: facts.resum_max.get(),
            resum_processes: facts.resum_processes,
            decision_max_ns: facts.decision_max.get(),
            counter_cpus,
            counter_batch_pages: Options::counter_batch_of(counter_cpus),
            page_bytes: Pages::new(1).to_bytes(self.page()).get(),
            drift_repaired_bytes: drift_repaired,
            drift_repaired_bytes_per_resum: Bytes::new(
                drift_repaired.get().div_ceil(facts.resums.max(1)),
            ),
            drift_repairs: facts.drift_repairs,
            stale_records: facts.stale_records,
            missed_processes: facts.missed_processes,
            events_lost: facts.events_lost,
            events_unrecorded: facts.events_unrecorded,
            records_full: facts.records_full,
            accounts_full: facts.accounts_full,
            kills_retried: facts.kills_retried,
            skipped_runs: facts.skipped_runs,
            counts_files: facts.counts_files,
            files: facts.files,
            files_count_ns: facts.files_count.get(),
            files_count_max_ns: facts.files_count_max.get(),
            files_skipped: facts.files_skipped,
            members_lost: facts.members_lost,
            surveys: self.pss_scans.read(),
            gate: GateStatus {
                mode: gate.mode,
                reason: gate.reason.clone(),
                files: gate.files.clone(),
            },
        }
    }

    fn error_bound(&self) -> Bytes {
        self.kernel.error_bound()
    }

    fn kernel(&self) -> Option<&KernelFeatures> {
        Some(&self.kernel)
    }

    fn kernel_mut(&mut self) -> Option<&mut KernelFeatures> {
        Some(&mut self.kernel)
    }

    fn leave(&mut self, release: bool) -> (Vec<Fact>, Result<()>) {
        let last = self.ring_reader.end();
        let facts = self.facts_of(last);
        let released = match release {
            true => KernelHalf::release(&self.root).map(drop),
            false => Ok(()),
        };
        (facts, released.map_err(Into::into))
    }
}
