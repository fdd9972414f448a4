// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger check: what the kernel half's ledger has beside what /proc says, account by account.
//!
//! A look at ten thousand processes takes a third of a second, so a thread of its own does it, and only
//! when somebody asks. Neither side stands still meanwhile: the ledger is counted anew before and after,
//! and read again and again between, and what it was then bounds what /proc may say. A sum can stand still
//! while processes end and others begin: whoever begins after /proc was listed may be in the ledger alone,
//! and whoever ends in /proc alone. What is out is looked at again; only what is out each time, while the
//! ledger stood still, is said to be.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_host::{
    Memory, Proc, ProcessQuery, UserNamespaces, UsernsOwner, Waker, order_of_memory,
};
use bursar_model::{AccountId, Bytes, Pid};
use bursar_policy::{Agreement, Span, agreement};
use bursar_watchdog::{Blocklist, TimedQuery};

use crate::backend::{Ledger, Sum};
use crate::control::ClientId;
use crate::entered::Entered;
use crate::payers::Payers;

/// All of it ends after this, whatever has been looked at by then.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often something that is out is looked at.
const ROUNDS: u32 = 3;
/// Processes between two looks at the ledger.
const STRIDE: usize = 8;
/// Processes by which it is found out whether /proc is exact.
const SAMPLES: usize = 16;
/// A larger one takes too long to read to the page.
const LARGEST_SAMPLE: Bytes = Bytes::from_mib(64);
/// Before 6.2 a thread may keep back so many faults of each member.
const KEPT_BACK_PAGES: u64 = 64;

/// One account, compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    /// `None`: not all processes could be looked at in time.
    pub(crate) agreement: Option<Agreement>,
    pub(crate) sum: Sum,
    pub(crate) by_proc: Bytes,
    pub(crate) processes_by_proc: u32,
    pub(crate) bound: Bytes,
    pub(crate) apart: Bytes,
    pub(crate) moved: Bytes,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) accounts: Vec<Compared>,
    pub(crate) looked_at: u64,
    pub(crate) left: u64,
    pub(crate) rounds: u32,
    pub(crate) duration: Duration,
    pub(crate) proc_is_exact: bool,
    pub(crate) unfit: u64,
}

/// Who asked, and what was found for him.
pub(crate) type News = (ClientId, Result<Findings>);

/// Sends out one check at a time and hears what it found.
#[derive(Debug)]
pub(crate) struct LedgerChecker {
    outbox: SyncSender<News>,
    inbox: Receiver<News>,
    waker: Waker,
    blocklist: Arc<Blocklist>,
    is_busy: bool,
}

impl LedgerChecker {
    pub(crate) fn new(blocklist: Arc<Blocklist>) -> Result<Self> {
        let waker = Waker::new().context("make an eventfd")?;
        let (outbox, inbox) = sync_channel(1);
        Ok(Self {
            outbox,
            inbox,
            waker,
            blocklist,
            is_busy: false,
        })
    }

    /// Whether a check is under way.
    pub(crate) const fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Begins a check; what it finds is for [`Self::drain`].
    pub(crate) fn begin(
        &mut self,
        client: ClientId,
        ledger: Ledger,
        payers: Payers,
        entered: Entered,
    ) -> Result<()> {
        let proc = Proc::host()?;
        let query = TimedQuery::new("check-query", Arc::clone(&self.blocklist))?;
        let (outbox, waker) = (self.outbox.clone(), self.waker.clone());
        let work = move || {
            let check = Check::new(ledger, payers, entered, proc, query);
            let found = check.and_then(|mut it| it.look());
            // The daemon ends: nobody waits for it any more.
            let _ = outbox.send((client, found));
            waker.wake();
        };
        bursar_host::thread::spawn("ledger-check", work)
            .context("start the thread that checks the ledger")?;
        self.is_busy = true;
        Ok(())
    }

    /// What has been found.
    pub(crate) fn drain(&mut self) -> Option<News> {
        self.waker.clear();
        let news = self.inbox.try_recv().ok()?;
        self.is_busy = false;
        Some(news)
    }
}

impl AsFd for LedgerChecker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// A process as /proc shows it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    pid: Pid,
    memory: Memory,
    threads: u32,
    is_dying: bool,
}

/// An account while it is looked at.
#[derive(Debug)]
struct Track {
    ledger: Option<(Span, Sum)>,
    processes: Vec<Seen>,
    /// Held at the end by address spaces that the ledger did not have before /proc was listed.
    begun: Bytes,
}

struct Check {
    ledger: Ledger,
    payers: Payers,
    entered: Entered,
    proc: Proc,
    namespaces: UserNamespaces,
    query: TimedQuery,
    /// Whether /proc was exact, of those looked at for that.
    exact: Vec<bool>,
    looked_at: u64,
    left: u64,
}

impl Check {
    fn new(
        ledger: Ledger,
        payers: Payers,
        entered: Entered,
        proc: Proc,
        query: TimedQuery,
    ) -> Result<Self> {
        let namespaces = UserNamespaces::new(&proc)?;
        Ok(Self {
            ledger,
            payers,
            entered,
            proc,
            namespaces,
            query,
            exact: Vec::new(),
            looked_at: 0,
            left: 0,
        })
    }

    fn look(&mut self) -> Result<Findings> {
        let began = Instant::now();
        let deadline = began + TIMEOUT;
        let mut accounts: BTreeMap<AccountId, Compared> = BTreeMap::new();
        let mut rounds = 0;
        loop {
            rounds += 1;
            let tracks = self.walk(deadline)?;
            for (id, mut track) in tracks {
                let Some(fresh) = self.compare(id, &mut track) else {
                    continue;
                };
                // The best of all rounds; an unfinished one is no better than any other.
                match accounts.get(&id).map(|it| it.agreement) {
                    Some(Some(old)) if fresh.agreement.is_none_or(|new| new > old) => {}
                    _ => {
                        accounts.insert(id, fresh);
                    }
                }
            }
            let is_settled = |it: &Compared| it.agreement == Some(Agreement::Within);
            let is_late = Instant::now() >= deadline;
            if rounds >= ROUNDS || is_late || accounts.values().all(is_settled) {
                break;
            }
        }
        Ok(Findings {
            accounts: accounts.into_values().collect(),
            looked_at: self.looked_at,
            left: self.left,
            rounds,
            duration: began.elapsed(),
            proc_is_exact: self.is_exact(),
            unfit: self.ledger.unfit()?,
        })
    }

    /// All processes once, the ledger before, after and between.
    fn walk(&mut self, deadline: Instant) -> Result<BTreeMap<AccountId, Track>> {
        let mut tracks = BTreeMap::new();
        self.namespaces = UserNamespaces::new(&self.proc)?;
        (self.looked_at, self.left) = (0, 0);
        self.ledger.recount()?;
        let before = self.ledger.address_spaces()?;
        let pids: Vec<Pid> = self.proc.pids()?.filter_map(Result::ok).collect();
        for some in pids.chunks(STRIDE) {
            self.read_ledger(&mut tracks);
            if Instant::now() >= deadline {
                self.left = (pids.len() as u64).saturating_sub(self.looked_at);
                break;
            }
            for &pid in some {
                self.looked_at = self.looked_at.saturating_add(1);
                if let Some((id, seen)) = self.look_at(pid) {
                    track(&mut tracks, id).processes.push(seen);
                }
            }
        }
        self.ledger.recount()?;
        self.read_ledger(&mut tracks);
        for (it, held) in self.ledger.address_spaces()? {
            if !before.contains_key(&it) {
                let track = track(&mut tracks, it.0);
                track.begun = track.begun.saturating_add(held);
            }
        }
        Ok(tracks)
    }

    fn read_ledger(&self, tracks: &mut BTreeMap<AccountId, Track>) {
        for sum in self.ledger.sums() {
            let track = track(tracks, sum.id);
            let mut span = track
                .ledger
                .map_or(Span::new(sum.in_full), |(span, _)| span);
            span.include(sum.in_full);
            track.ledger = Some((span, sum));
        }
    }

    fn look_at(&mut self, pid: Pid) -> Option<(AccountId, Seen)> {
        let status = self.proc.status(pid).ok().flatten()?;
        // Another thread's where the first one has ended.
        let holder = status.tid;
        let memory = status.memory?;
        if self.payers.is_exempt(pid) {
            return None;
        }
        self.sample(holder, &memory);
        let id = match self.entered.account_of(pid, &self.payers) {
            Some(entered) => entered,
            None => {
                let owner =
                    (self.namespaces).owner_of(&self.proc, holder, status.uid, &mut self.query);
                let owner = owner.unwrap_or(UsernsOwner::itself(status.uid));
                self.payers.of(self.payers.payer(owner))?.0
            }
        };
        let seen = Seen {
            pid,
            memory,
            threads: status.threads,
            is_dying: status.is_kill_pending || status.is_dead,
        };
        Some((id, seen))
    }

    /// Page tables say exactly what is resident, whatever CPUs keep back of counters.
    fn sample(&mut self, pid: Pid, memory: &Memory) {
        if self.exact.len() < SAMPLES
            && memory.rss_anon <= LARGEST_SAMPLE
            && let Some(Ok(Some(rollup))) = self.query.ask(pid, Proc::rollup)
        {
            self.exact.push(rollup.anonymous == memory.rss_anon);
        }
    }

    /// Where the counters that /proc shows are not exact, hardly any process's agrees with its page tables;
    /// where they are, those of all that stand still.
    fn is_exact(&self) -> bool {
        let equal = self.exact.iter().filter(|&&it| it).count();
        equal > 0 && equal * 2 >= self.exact.len()
    }

    /// `None` where neither has anything.
    fn compare(&mut self, id: AccountId, track: &mut Track) -> Option<Compared> {
        let (ledger, sum) = track
            .ledger
            .unwrap_or_else(|| (Span::new(Bytes::ZERO), Sum::nothing(id)));
        let bound = self.bound(&track.processes);
        let mut proc = self.add_up(track);
        if agreement(&ledger, &proc, bound) != Agreement::Within && proc.least() > ledger.most() {
            drop_mm_sharers(&mut track.processes, &mut self.query);
            for seen in &mut track.processes {
                seen.is_dying |= !matches!(self.proc.status(seen.pid), Ok(Some(_)));
            }
            proc = self.add_up(track);
        }
        if ledger.most() == Bytes::ZERO && proc.most() == Bytes::ZERO {
            return None;
        }
        let less_shared = proc.least().saturating_sub(sum.correction);
        Some(Compared {
            agreement: (self.left == 0).then(|| agreement(&ledger, &proc, bound)),
            sum,
            by_proc: less_shared.saturating_add(sum.unmapped),
            processes_by_proc: u32::try_from(track.processes.len()).unwrap_or(u32::MAX),
            bound,
            apart: ledger.distance(&proc),
            moved: ledger.spread().max(track.begun),
        })
    }

    /// What living processes have, and what they have with those that are dying or have ended, which may
    /// have left the ledger's sum already, and with those that began too late to be looked at.
    fn add_up(&self, track: &Track) -> Span {
        let sum = |some: &dyn Fn(&Seen) -> bool| {
            let counted = track.processes.iter().filter(|it| some(it));
            counted.fold(Bytes::ZERO, |sum, it| {
                sum.saturating_add(self.counted(&it.memory))
            })
        };
        let mut span = Span::new(sum(&|it| !it.is_dying));
        span.include(sum(&|_| true).saturating_add(track.begun));
        span
    }

    /// As the kernel half counts a process (docs/explanation/accounting.md).
    fn counted(&self, memory: &Memory) -> Bytes {
        let file = if self.ledger.counts_file {
            memory.rss_file
        } else {
            Bytes::ZERO
        };
        memory.held().saturating_add(file)
    }

    /// What the ledger allows; where /proc is not exact also what that leaves out of each counter.
    fn bound(&self, processes: &[Seen]) -> Bytes {
        if self.is_exact() {
            return self.ledger.bound;
        }
        let page = self.ledger.page_bytes();
        processes.iter().fold(self.ledger.bound, |sum, it| {
            let by_cpus = self.ledger.batch.scaled(self.ledger.cpus.into(), 1);
            let by_threads = page.scaled(KEPT_BACK_PAGES.saturating_mul(it.threads.into()), 1);
            let memory = &it.memory;
            let counters = [memory.rss_anon, memory.rss_shmem, memory.swap];
            let used = counters.iter().filter(|it| **it > Bytes::ZERO).count() as u64;
            let used = used.max(1).saturating_add(self.ledger.counts_file.into());
            sum.saturating_add(by_cpus.max(by_threads).scaled(used, 1))
        })
    }
}

fn track(tracks: &mut BTreeMap<AccountId, Track>, id: AccountId) -> &mut Track {
    tracks.entry(id).or_insert(Track {
        ledger: None,
        processes: Vec::new(),
        begun: Bytes::ZERO,
    })
}

/// Of processes that share one address space (vfork, CLONE_VM) one is left: the ledger has it once. Who
/// cannot be compared stays.
fn drop_mm_sharers(processes: &mut Vec<Seen>, ask: &mut impl ProcessQuery) {
    let mut known: Vec<Seen> = Vec::with_capacity(processes.len());
    let mut unresponsive = Vec::new();
    for one in processes.drain(..) {
        // Who does not answer would not when others are compared with him, either.
        if ask
            .ask(one.pid, |_, pid| order_of_memory(pid, pid))
            .is_none()
        {
            unresponsive.push(one);
            continue;
        }
        let place = known.binary_search_by(|other| {
            let other = other.pid;
            let order = ask.ask(one.pid, move |_, pid| order_of_memory(other, pid));
            order.flatten().unwrap_or(Ordering::Less)
        });
        if let Err(place) = place {
            known.insert(place, one);
        }
    }
    known.extend(unresponsive);
    *processes = known;
}
