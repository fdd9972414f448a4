// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Says how much of an account is counted more than once: on the kernel half's question, at once, and then again and
//! again while the account stays near a bound. And once of accounts whose processes were there before their limit, so
//! that it need not be asked when that is passed.
//!
//! One thread decides what is scanned when ([`schedule`]); each scan under way has a reader of its own, so an account
//! whose scan is dear, or whose processes keep its reader waiting, costs no other one its turn.

mod counters;
mod given_back;
mod initial_scans;
mod method;
mod scan_worker;
mod schedule;
mod smaps_reader;

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bursar_kernel::{PssScans, Slot};

pub(super) use counters::ScanCounters;
use given_back::GivenBack;
use initial_scans::InitialScans;
pub(super) use method::Method;
use scan_worker::{Progress, ScanWorker};
use schedule::{Finished, Schedule};
use smaps_reader::Wake;

/// Requests that wait. One that finds no room is asked again by the kernel half, later.
const UNANSWERED: usize = 256;
/// Copies are watched for so long after the last correction, or question.
const LINGER: Duration = Duration::from_secs(5);
/// Between two looks at a reader that may hang.
const LOOK: Duration = Duration::from_millis(20);
/// While an account is above its notice it is asked so often whether pages have been given back.
const GIVEN_BACK_EVERY: Duration = Duration::from_secs(1);

/// Where requests go.
#[derive(Debug, Clone)]
pub(super) struct ScanRequests {
    sender: Arc<Sender>,
    initial_scans: Arc<InitialScans>,
    given_back: Arc<Mutex<GivenBack>>,
}

/// With the last of these the thread ends: readers must not keep its channel open.
#[derive(Debug)]
struct Sender {
    sender: SyncSender<Request>,
    wake: Wake,
}

impl Sender {
    fn send(&self, request: Request) {
        let _ = self.sender.try_send(request);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Why the PSS scanner is woken.
#[derive(Debug)]
enum Request {
    Of(Slot),
    /// There are initial scans to do.
    InitialScan,
    /// This account is above its notice.
    Noticed(Slot),
    /// A reader has something to say.
    Read,
}

impl ScanRequests {
    /// No room: it is asked again, and what is not answered is decided without.
    pub(super) fn ask(&self, slot: Slot) {
        self.sender.send(Request::Of(slot));
    }

    /// Accounts whose processes were there before somebody looked. When there is time.
    pub(super) fn add_initial(&self, slots: impl IntoIterator<Item = Slot>) {
        if self.initial_scans.add(slots) {
            // No room: then it is awake.
            self.sender.send(Request::InitialScan);
        }
    }

    /// An account may soon be over its limit: the kernel half has to know by then whether pages have been given back.
    pub(super) fn note_given_back(&self, slot: Slot) {
        look_for_given_back(&self.given_back);
        self.sender.send(Request::Noticed(slot));
    }
}

fn look_for_given_back(given_back: &Mutex<GivenBack>) {
    let mut given_back = given_back.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = given_back.look() {
        tracing::debug!(
            error = format!("{error:#}"),
            "pages given back are not known"
        );
    }
}

/// Starts the thread. It ends when the last holder of [`ScanRequests`] does.
pub(super) fn start(
    pss_scans: PssScans,
    method: Method,
    counters: Arc<ScanCounters>,
) -> Result<ScanRequests> {
    let (sender, asked) = sync_channel(UNANSWERED);
    let initial_scans = Arc::<InitialScans>::default();
    let given_back = Arc::new(Mutex::new(GivenBack::open(pss_scans.given_back()?)?));
    // What was given back before an account is opened is none of its doubt.
    look_for_given_back(&given_back);
    let wake: Wake = Arc::new(Mutex::new(Some(sender.clone())));
    let sender = Sender {
        sender,
        wake: Arc::clone(&wake),
    };
    let requests = ScanRequests {
        sender: Arc::new(sender),
        initial_scans: Arc::clone(&initial_scans),
        given_back: Arc::clone(&given_back),
    };
    let method = Arc::new(method);
    // A bursard before may have left it so: until nobody needs it.
    let is_watching = pss_scans.is_watching();
    let workers = (0..PssScans::PLACES).map(ScanWorker::new).collect();
    let mut pss_scanner = PssScanner {
        pss_scans,
        asked,
        wake,
        workers,
        method,
        counters,
        schedule: Schedule::default(),
        initial_scans,
        next_initial_scan: Instant::now(),
        given_back,
        next_given_back: None,
        is_watching,
        last_needed: Instant::now(),
    };
    let work = move || {
        pss_scanner.method.priority.take();
        pss_scanner.work();
    };
    bursar_host::thread::spawn("pss-scanner", work)
        .context("start the thread that looks for shared pages")?;
    Ok(requests)
}

struct PssScanner {
    pss_scans: PssScans,
    asked: Receiver<Request>,
    wake: Wake,
    workers: Vec<ScanWorker>,
    method: Arc<Method>,
    counters: Arc<ScanCounters>,
    schedule: Schedule,
    initial_scans: Arc<InitialScans>,
    /// Before this none is made.
    next_initial_scan: Instant,
    given_back: Arc<Mutex<GivenBack>>,
    /// `None`: no account is above its notice.
    next_given_back: Option<Instant>,
    is_watching: bool,
    /// When a correction was last in force, or a question open.
    last_needed: Instant,
}

impl PssScanner {
    fn work(&mut self) {
        if let Err(error) = self.pss_scans.be_there() {
            tracing::warn!(%error, "shared pages count in each process: the kernel half cannot ask");
        }
        loop {
            let heard = match self.next_due() {
                Some(due) => {
                    let span = due.saturating_duration_since(Instant::now());
                    self.asked.recv_timeout(span)
                }
                None => {
                    let heard = self.asked.recv();
                    heard.map_err(|_| RecvTimeoutError::Disconnected)
                }
            };
            match heard {
                Ok(asked) => self.hear(&asked),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(asked) = self.asked.try_recv() {
                self.hear(&asked);
            }
            self.attend();
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let is_busy = self.workers.iter().any(ScanWorker::is_busy);
        let look = is_busy.then(|| now + LOOK);
        let scans = self.free_worker().and_then(|_| self.schedule.next_due());
        let initial = self.initial_scan_due();
        let unwatch = self.is_watching.then(|| self.last_needed + LINGER);
        [look, scans, initial, unwatch, self.next_given_back]
            .into_iter()
            .flatten()
            .min()
    }

    fn hear(&mut self, asked: &Request) {
        match asked {
            Request::Of(slot) => self.schedule.ask(*slot, Instant::now()),
            Request::Noticed(slot) => {
                if self.pss_scans.may_have_given_back(*slot) {
                    self.schedule.ask(*slot, Instant::now());
                }
                let next = Instant::now() + GIVEN_BACK_EVERY;
                self.next_given_back.get_or_insert(next);
            }
            Request::InitialScan | Request::Read => {}
        }
    }

    /// Everything that is due.
    fn attend(&mut self) {
        for place in 0..self.workers.len() {
            self.attend_to(place);
        }
        let now = Instant::now();
        if self.next_given_back.is_some_and(|due| due <= now) {
            look_for_given_back(&self.given_back);
            let next = now + GIVEN_BACK_EVERY;
            self.next_given_back = self.pss_scans.is_anybody_noticed().then_some(next);
        }
        while let Some(place) = self.free_worker() {
            let Some(slot) = self.schedule.take_due(now) else {
                break;
            };
            self.begin(place, slot, Reason::Request);
        }
        if self.initial_scan_due().is_some_and(|due| due <= now) {
            self.begin_initial_scan();
        }
        self.counters.note_accounts(self.schedule.sharing());
        if self.schedule.sharing() > 0 || self.is_answering() {
            self.last_needed = now;
        } else if self.is_watching && now >= self.last_needed + LINGER {
            self.watch(false);
        }
    }

    /// Whether a scan is under way that somebody waits for.
    fn is_answering(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|it| it.reason() == Some(Reason::Request))
    }

    fn free_worker(&self) -> Option<usize> {
        self.workers.iter().position(|worker| !worker.is_busy())
    }

    /// When there is time for the next; one at a time.
    fn initial_scan_due(&self) -> Option<Instant> {
        let is_under_way = self
            .workers
            .iter()
            .any(|it| it.reason() == Some(Reason::InitialScan));
        let is_due = !is_under_way && !self.initial_scans.is_empty();
        (is_due && self.free_worker().is_some()).then_some(self.next_initial_scan)
    }

    fn begin_initial_scan(&mut self) {
        // One that was asked of is looked at for that.
        let initial = self.initial_scans.next();
        let initial = initial.filter(|slot| !self.schedule.is_asked_of(*slot));
        if let (Some(slot), Some(place)) = (initial, self.free_worker()) {
            self.begin(place, slot, Reason::InitialScan);
        }
    }

    fn begin(&mut self, place: usize, slot: Slot, reason: Reason) {
        let Some(worker) = self.workers.get_mut(place) else {
            return;
        };
        if reason == Reason::Request {
            look_for_given_back(&self.given_back);
        }
        let begun = worker.begin(slot, reason, &self.pss_scans, &self.method, &self.wake);
        match begun {
            // While others read, for the kernel half waits longer for a scan that has begun.
            Ok(true) if reason == Reason::Request => self.watch(true),
            Ok(true) => {}
            Ok(false) => self
                .schedule
                .finished(slot, Instant::now(), &Finished::nothing()),
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "a PSS scan failed");
                self.schedule.failed(slot, Instant::now());
            }
        }
    }

    fn attend_to(&mut self, place: usize) {
        let Some(worker) = self.workers.get_mut(place) else {
            return;
        };
        match worker.check(&self.pss_scans, &self.method, &self.wake) {
            Ok(Progress::UnderWay) => {}
            Ok(Progress::Ended) => self.end(place),
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "a PSS scan failed");
                if let Some(slot) = worker.give_up() {
                    self.schedule.failed(slot, Instant::now());
                }
            }
        }
    }

    /// Hands over what was found.
    fn end(&mut self, place: usize) {
        let Some(scan) = self.workers.get_mut(place).and_then(ScanWorker::take) else {
            return;
        };
        // Nobody watches for copies of shared pages in an initial scan: what is known of each process stays, and is not
        // taken off.
        let is_asked = scan.reason == Reason::Request || self.schedule.is_asked_of(scan.slot);
        let lifetime = if is_asked {
            self.watch(true);
            schedule::lifetime(scan.cost)
        } else {
            Duration::ZERO
        };
        let outcome = self.pss_scans.end(scan.pss_scan, lifetime);
        tracing::debug!(slot = ?scan.slot, cost = ?scan.cost, ?outcome, "scanned");
        let is_whole = matches!(outcome, Ok(Some(_)));
        self.counters.count(scan.cost.wall, is_whole);
        let now = Instant::now();
        match outcome {
            Ok(outcome) => {
                let shares = outcome.is_some_and(|it| it.is_near && it.correction.get() > 0);
                let finished = Finished {
                    cost: scan.cost,
                    pages: scan.pages,
                    has_lost: scan.has_lost,
                    shares,
                };
                self.schedule.finished(scan.slot, now, &finished);
            }
            Err(error) => {
                tracing::debug!(%error, "a PSS scan failed");
                self.schedule.failed(scan.slot, now);
            }
        }
        if scan.reason == Reason::InitialScan {
            self.next_initial_scan = now + schedule::RENEWAL_SHARE * scan.cost.work;
        }
    }

    /// On before anything is taken off an account: what is copied from then on counts.
    fn watch(&mut self, on: bool) {
        if self.is_watching == on {
            return;
        }
        let begun = Instant::now();
        if let Err(error) = self.pss_scans.watch(on) {
            tracing::warn!(%error, "copies of shared pages are seen by PSS scans only");
        }
        tracing::debug!(on, took = ?begun.elapsed(), "watch");
        self.is_watching = on;
        self.counters.note_watching(on);
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
