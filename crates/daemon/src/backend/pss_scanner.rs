// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that says how much of an account is counted more than once: on the kernel half's question,
//! at once, and then again and again while the account stays near a bound. And once of accounts whose processes
//! were there before their limit, so that it need not be asked when that is passed.

mod counters;
mod initial_scans;
mod smaps_reader;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bursar_host::{Rollup, clock};
use bursar_kernel::{Found, Outcome, PssScans, Sharer, Slot};
use bursar_model::{Bytes, PageSize, Pages};
use bursar_reap::Priority;
use bursar_watchdog::{Blocklist, Outcome as WorkerOutcome};

pub(super) use counters::ScanCounters;
use initial_scans::InitialScans;
use smaps_reader::{Order, SmapsReader};

/// Requests that wait. One that finds no room is asked again by the kernel half, later.
const UNANSWERED: usize = 256;

/// Renewals of all accounts together take at most one part in so many of a core's time …
const RENEWAL_SHARE: u32 = 20;
/// … but come no more often, and no more seldom, than this.
const OFTEN: Duration = Duration::from_millis(50);
const SELDOM: Duration = Duration::from_secs(1);
/// Requests for one account are answered as often as they come, but after a PSS scan that cost so much
/// nobody looks at it for so many times as long …
const ANSWER_SHARE: u32 = 2;
/// … or this long: the kernel half waits 500 ms for a PSS scan to begin (victim.bpf.h), and no longer.
const LONGEST_REST: Duration = Duration::from_millis(300);
/// One that keeps others waiting for longer than this: it is made no more often than renewals are, and
/// meanwhile its account counts in full. At once where the processor time is spent (some five million
/// mappings of pages); where the PSS scanner slept, on locks that a starved process holds or one that
/// wants it so, when it comes again and again.
const LONG: Duration = Duration::from_millis(100);
/// So many PSS scans in a row that slept for long are no accident.
const ALWAYS: u32 = 3;
/// Copies are watched for so long after the last correction.
const LINGER: Duration = Duration::from_secs(5);
/// Whoever reads what one process shares, and sleeps in that for so long without a moment of work, is lost there: the
/// kernel half waits for a second. While others wait for a PSS scan [`LONG`] is enough.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two looks at him.
const LOOK: Duration = Duration::from_millis(20);
/// What could not be done is tried again after this.
const AGAIN: Duration = Duration::from_millis(100);

/// What is scanned, and how.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) page: PageSize,
    /// S1's literal RSS: file pages count too.
    pub(super) count_file: bool,
    /// Answers have to come while memory grows.
    pub(super) priority: Priority,
    /// Whom nobody is to ask for his memory.
    pub(super) blocklist: Arc<Blocklist>,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub(super) struct ScanRequests {
    sender: SyncSender<Request>,
    initial_scans: Arc<InitialScans>,
}

/// Why the PSS scanner is woken.
#[derive(Debug)]
enum Request {
    Of(Slot),
    /// There are initial scans to do.
    InitialScan,
}

impl ScanRequests {
    /// No room: it is asked again, and what is not answered is decided without.
    pub(super) fn ask(&self, slot: Slot) {
        let _ = self.sender.try_send(Request::Of(slot));
    }

    /// Accounts whose processes were there before somebody looked. When there is time.
    pub(super) fn add_initial(&self, slots: impl IntoIterator<Item = Slot>) {
        if self.initial_scans.add(slots) {
            // No room: then it is awake.
            let _ = self.sender.try_send(Request::InitialScan);
        }
    }
}

/// Starts the thread. It ends when the last holder of [`ScanRequests`] does.
pub(super) fn start(
    pss_scans: PssScans,
    method: Method,
    counters: Arc<ScanCounters>,
) -> Result<ScanRequests> {
    let method = Arc::new(method);
    let reader = smaps_reader::start(&pss_scans, &method)?;
    let (sender, asked) = sync_channel(UNANSWERED);
    let initial_scans = Arc::<InitialScans>::default();
    let requests = ScanRequests {
        sender,
        initial_scans: Arc::clone(&initial_scans),
    };
    std::thread::Builder::new()
        .name("pss-scanner".to_owned())
        .spawn(move || {
            method.priority.take();
            let mut pss_scanner = PssScanner {
                pss_scans,
                asked,
                reader: Some(reader),
                method,
                counters,
                accounts: BTreeMap::new(),
                initial_scans,
                next_initial_scan: Instant::now(),
                is_watching: false,
                attaching: Cost::default(),
                reading: Duration::ZERO,
                has_lost: false,
            };
            pss_scanner.work();
        })
        .context("start the thread that looks for shared pages")?;
    Ok(requests)
}

/// An account that is near a bound and shares pages.
#[derive(Debug, Clone, Copy)]
struct Round {
    due: Option<Instant>,
    /// Before this not even on a question.
    not_before: Instant,
    /// Of its last PSS scan.
    cost: Cost,
    /// PSS scans in a row that slept for long.
    sleeps: u32,
    /// As of its last PSS scan.
    shares: bool,
}

/// What a PSS scan took.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// Of a processor.
    work: Duration,
    /// In all.
    wall: Duration,
}

struct PssScanner {
    pss_scans: PssScans,
    asked: Receiver<Request>,
    /// None where the last one was lost and no other could be had.
    reader: Option<SmapsReader>,
    method: Arc<Method>,
    counters: Arc<ScanCounters>,
    accounts: BTreeMap<Slot, Round>,
    initial_scans: Arc<InitialScans>,
    /// Before this none is looked at.
    next_initial_scan: Instant,
    is_watching: bool,
    /// How much of the PSS scan under way went to that.
    attaching: Cost,
    /// The reader's processor time for the PSS scan under way.
    reading: Duration,
    /// Whether the PSS scan under way has cost us a reader.
    has_lost: bool,
}

impl PssScanner {
    fn work(&mut self) {
        if let Err(error) = self.pss_scans.be_there() {
            tracing::warn!(%error, "shared pages count in each process: the kernel half cannot ask");
        }
        loop {
            let now = Instant::now();
            self.accounts
                .retain(|_, round| round.due.is_some() || round.not_before > now);
            self.counters
                .note_accounts(self.accounts.values().filter(|it| it.shares).count());
            let next = self.accounts.values().filter_map(|it| it.due);
            let next = next.chain(self.initial_scan_due()).min();
            let heard = match next {
                Some(due) => self
                    .asked
                    .recv_timeout(due.saturating_duration_since(Instant::now())),
                None if self.is_watching => self.asked.recv_timeout(LINGER),
                None => self
                    .asked
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match heard {
                Ok(asked) => {
                    self.hear(asked);
                    self.hear_others();
                }
                Err(RecvTimeoutError::Timeout) if next.is_none() => self.watch(false),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let due: Vec<Slot> = self
                .accounts
                .iter()
                .filter(|(_, round)| round.due.is_some_and(|due| due <= now))
                .map(|(&slot, _)| slot)
                .collect();
            let is_idle = due.is_empty();
            for slot in due {
                self.see_to(slot, Reason::Request);
            }
            if is_idle
                && self
                    .initial_scan_due()
                    .is_some_and(|due| due <= Instant::now())
            {
                self.do_initial_scan();
            }
        }
    }

    /// When there is time for the next.
    fn initial_scan_due(&self) -> Option<Instant> {
        (!self.initial_scans.is_empty()).then_some(self.next_initial_scan)
    }

    fn do_initial_scan(&mut self) {
        // One of whom it was asked is looked at for that.
        let newcomer = self.initial_scans.next();
        let newcomer = newcomer.filter(|slot| !self.is_asked_of(*slot));
        let Some(slot) = newcomer else { return };
        let work = self.see_to(slot, Reason::InitialScan);
        self.next_initial_scan = Instant::now() + RENEWAL_SHARE * work;
    }

    fn hear(&mut self, asked: Request) {
        let slot = match asked {
            Request::Of(slot) => slot,
            Request::InitialScan => return,
        };
        tracing::debug!(?slot, "asked");
        let now = Instant::now();
        let round = self.accounts.entry(slot).or_insert(Round {
            due: None,
            not_before: now,
            cost: Cost::default(),
            sleeps: 0,
            shares: false,
        });
        let soonest = round.not_before.max(now);
        round.due = Some(round.due.map_or(soonest, |due| due.min(soonest)));
    }

    fn hear_others(&mut self) {
        while let Ok(asked) = self.asked.try_recv() {
            self.hear(asked);
        }
    }

    /// Whether the kernel half waits for a PSS scan of it.
    fn is_asked_of(&mut self, slot: Slot) -> bool {
        self.hear_others();
        let round = self.accounts.get(&slot);
        round.is_some_and(|it| it.due.is_some())
    }

    /// Whether a PSS scan of another account is due.
    fn others_wait(&mut self, slot: Slot) -> bool {
        self.hear_others();
        let now = Instant::now();
        let mut others = self.accounts.iter().filter(|&(&other, _)| other != slot);
        others.any(|(_, round)| round.due.is_some_and(|due| due <= now))
    }

    fn watch(&mut self, on: bool) {
        if self.is_watching == on {
            return;
        }
        let began = Stopwatch::start();
        let outcome = self.pss_scans.watch(on);
        let took = began.read();
        if on {
            self.attaching = took;
        }
        tracing::debug!(on, ?took, "watch for copies");
        if let Err(error) = outcome {
            tracing::warn!(%error, "copies of shared pages are seen by PSS scans only");
        }
        self.is_watching = on;
        self.counters.note_watching(on);
    }

    /// The processor time that it took.
    fn see_to(&mut self, slot: Slot, reason: Reason) -> Duration {
        let began = Stopwatch::start();
        let interval = self.interval();
        let last = self.accounts.get(&slot).copied();
        // However long its next PSS scan takes: as long as this one, probably.
        let wall = last.map_or(Duration::ZERO, |it| it.cost.wall);
        let outcome = self.scan(slot, reason, 2 * (interval + wall) + AGAIN);
        let mut cost = began.read().less(self.attaching);
        self.attaching = Cost::default();
        cost.work += std::mem::take(&mut self.reading);
        let has_lost = std::mem::take(&mut self.has_lost);
        let now = Instant::now();
        self.counters
            .count(cost.wall, matches!(outcome, Ok(Some(_))));
        tracing::debug!(?slot, ?cost, ?outcome, "scanned");
        let sleeps = if has_lost {
            ALWAYS
        } else if cost.wall > LONG {
            last.map_or(0, |it| it.sleeps).saturating_add(1)
        } else {
            0
        };
        let not_before = now + cost.rest(sleeps);
        match outcome {
            Ok(outcome) => {
                // Where there is nothing to renew the kernel half asks when that may have changed.
                let shares = outcome.is_some_and(|it| it.is_near && it.correction.get() > 0);
                // To attach takes longer than to look, and somebody waits for the answer. What is
                // copied meanwhile the next PSS scan finds, during which the watch begins.
                let pause = if self.is_watching {
                    interval
                } else {
                    Duration::ZERO
                };
                // Whoever costs us readers is looked at no more often than he may ask.
                let soonest = if has_lost { not_before } else { now + pause };
                let round = Round {
                    due: shares.then_some(soonest),
                    not_before,
                    cost: if shares { cost } else { Cost::default() },
                    sleeps,
                    shares,
                };
                self.accounts.insert(slot, round);
            }
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "a PSS scan failed");
                if let Some(round) = self.accounts.get_mut(&slot) {
                    round.due = Some(now + AGAIN);
                }
            }
        }
        cost.work
    }

    /// Between two PSS scans of an account.
    fn interval(&self) -> Duration {
        let cost: Duration = self.accounts.values().map(|it| it.cost.work).sum();
        (RENEWAL_SHARE * cost).clamp(OFTEN, SELDOM)
    }

    fn scan(&mut self, slot: Slot, reason: Reason, lifetime: Duration) -> Result<Option<Outcome>> {
        let Some(pss_scan) = self.pss_scans.begin(slot)? else {
            return Ok(None);
        };
        // Within a PSS scan, for the kernel half waits longer for one that has begun.
        if self.accounts.get(&slot).is_some_and(|it| it.shares) {
            self.watch(true);
        }
        let mut order = Some(Order::of(slot, self.pss_scans.sharers(&pss_scan)));
        while let Some(some) = order {
            order = self.read(slot, reason, &Arc::new(some))?;
        }
        // Nobody watches for copies of a newcomer's shared pages: what is known of each process stays, and is not
        // taken off.
        let lifetime = match reason {
            Reason::InitialScan if !self.is_asked_of(slot) => Duration::ZERO,
            Reason::InitialScan | Reason::Request => lifetime,
        };
        Ok(self.pss_scans.end(pss_scan, lifetime)?)
    }

    /// Has the processes read; what is left of them when the reader was lost at one.
    fn read(&mut self, slot: Slot, reason: Reason, order: &Arc<Order>) -> Result<Option<Order>> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => smaps_reader::start(&self.pss_scans, &self.method)?,
        };
        reader.send(Arc::clone(order));
        loop {
            let others_wait = self.others_wait(slot);
            if others_wait && reason == Reason::InitialScan {
                order.cut_short();
            }
            let patience = if others_wait { LONG } else { PATIENCE };
            match reader.wait(LOOK, patience) {
                WorkerOutcome::Pending(_) => {}
                WorkerOutcome::Done(done) => {
                    self.reading += done.work;
                    self.reader = Some(reader);
                    return done.outcome.map(|()| None);
                }
                // It counts in full.
                WorkerOutcome::Abandoned(_) => {
                    self.has_lost = true;
                    return Ok(order.rest());
                }
                WorkerOutcome::Panicked => bail!("the reader of a PSS scan is gone"),
            }
        }
    }
}

/// Why an account is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It is near a bound.
    Request,
    /// Its processes were there before its limit.
    InitialScan,
}

/// Measures what a PSS scan takes, of this thread.
struct Stopwatch {
    work: Duration,
    wall: Instant,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            work: own_work(),
            wall: Instant::now(),
        }
    }

    fn read(&self) -> Cost {
        Cost {
            work: own_work().saturating_sub(self.work),
            wall: self.wall.elapsed(),
        }
    }
}

/// Processor time of this thread.
fn own_work() -> Duration {
    Duration::from_nanos(clock::thread_cpu_time().get())
}

impl Cost {
    fn less(self, part: Self) -> Self {
        Self {
            work: self.work.saturating_sub(part.work),
            wall: self.wall.saturating_sub(part.wall),
        }
    }

    /// After this PSS scan, the `sleeps`th in a row that took long.
    fn rest(self, sleeps: u32) -> Duration {
        if self.work > LONG {
            RENEWAL_SHARE * self.work
        } else if sleeps >= ALWAYS {
            RENEWAL_SHARE * self.wall
        } else {
            (ANSWER_SHARE * self.work).min(LONGEST_REST)
        }
    }
}

impl Method {
    /// How much of a process is counted elsewhere too. What it shares is at most twice that: of a page
    /// with k users each user's part is 1 − 1/k too many.
    fn weigh(&self, rollup: &Rollup, sharer: Sharer) -> Found {
        let less = |full: Bytes, divided: Bytes| full.saturating_sub(divided);
        let swapped = less(rollup.swap, rollup.swap_pss);
        // Shared memory as the kernel half knows it: the kernel gives its sum only divided.
        let shmem = less(sharer.shmem.to_bytes(self.page), rollup.pss_shmem);
        let resident = if self.count_file {
            less(rollup.rss, rollup.pss)
        } else {
            less(rollup.anonymous, rollup.pss_anon).saturating_add(shmem)
        };
        let once = if self.count_file {
            rollup.pss
        } else {
            rollup.pss_anon.saturating_add(rollup.pss_shmem)
        };
        let duplicate = resident.saturating_add(swapped);
        let twice = duplicate.saturating_add(duplicate);
        let shared = rollup
            .shared
            .saturating_add(rollup.swap)
            .min(twice)
            .max(duplicate);
        let pages = |bytes| self.page.pages_within(bytes);
        // Rounded towards what keeps the limit.
        let rounding = u64::from(duplicate.get() > 0);
        Found {
            shared: Pages::new(pages(shared).get().saturating_add(rounding)),
            duplicate: pages(duplicate),
            once: pages(once.saturating_add(rollup.swap_pss)),
            // Rounded up: what is in doubt counts as a file.
            duplicate_shmem: Pages::new(pages(shmem).get().saturating_add(rounding)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(work_ms: u64, wall_ms: u64) -> Cost {
        Cost {
            work: Duration::from_millis(work_ms),
            wall: Duration::from_millis(wall_ms),
        }
    }

    #[test]
    fn what_costs_much_rests_long() {
        assert_eq!(cost(3, 4).rest(0), Duration::from_millis(6));
        assert_eq!(cost(99, 99).rest(0), Duration::from_millis(198));
        assert_eq!(cost(200, 200).rest(1), Duration::from_secs(4));
    }

    #[test]
    fn who_slept_on_a_lock_now_and_then_is_answered_and_who_does_it_always_is_not() {
        assert_eq!(cost(3, 150).rest(1), Duration::from_millis(6));
        assert_eq!(cost(3, 150).rest(2), Duration::from_millis(6));
        assert_eq!(cost(3, 150).rest(3), Duration::from_secs(3));
    }
}
