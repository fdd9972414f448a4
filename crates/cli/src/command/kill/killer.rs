// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals processes and has their memory taken back: however many there are, and however few descriptors.
//!
//! - Signals come first. Whoever multiplies gains time by everything that is done between two of them, and one that is
//!   slow to go delays nobody's.
//! - The reapers follow 512 victims at a time, so they are handed some after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bursar_host::{Pidfd, Sent, Signal, clock, raise_descriptors};
use bursar_model::{Bytes, Nanos, Pid};
use bursar_reap::{Job, JobKind, ReapError, ReapEvent, Reaper, Report, Victim};
use bursar_watchdog::Owner;

use super::outcome::Outcome;
use super::target::{Denied, Target};

/// So many at most are looked at before they are signalled. That says more of each, and compares it with every process
/// of the machine: 5,000 with 5,000 took longer than anybody waits. Of more all are signalled first.
const LOOKED_AT_FIRST: usize = 32;
/// Victims that the reapers get together.
const BATCH: usize = 128;
/// Who begins processes while they are signalled is looked after so many times before the reapers begin.
const PASSES: usize = 8;
/// How long a batch may take to be gone; the reapers give up on one victim after 30 s.
const TIMEOUT: Duration = Duration::from_secs(35);
/// Descriptors, of which half are for processes.
const ENOUGH: u64 = 64 << 10;

/// A process, held if it may be killed.
pub(super) type Opened = (Pid, Result<Target, Denied>);

/// One that was sent SIGKILL at this moment; 0: it is yet to be.
type Signalled = (Target, Nanos);

pub(super) struct Killer {
    reaper: Reaper,
    reports: Receiver<Box<Report>>,
    next_tag: u64,
    /// Processes that can be held at a time.
    room: usize,
}

/// A victim of which no report has come yet.
struct Awaited {
    pidfd: Arc<Pidfd>,
    comm: String,
    private: Option<Bytes>,
}

impl Killer {
    /// Before any process is held: the reapers need descriptors themselves.
    pub(super) fn new() -> Result<Self, ReapError> {
        let descriptors = raise_descriptors(ENOUGH).min(ENOUGH);
        let (outbox, reports) = channel();
        let outbox = Mutex::new(outbox);
        let reaper = Reaper::start(move |event| {
            if let (ReapEvent::Settled(report), Ok(outbox)) = (event, outbox.lock()) {
                // Nobody listens any more: the command has ended.
                let _ = outbox.send(report);
            }
        })?;
        Ok(Self {
            reaper,
            reports,
            next_tag: 0,
            room: usize::try_from(descriptors / 2).map_or(1, |it| it.max(1)),
        })
    }

    /// How many processes [`Self::kill`] takes at a time.
    pub(super) const fn room(&self) -> usize {
        self.room
    }

    /// Kills these. `begun`: which others have begun by now and are to be killed as well, by what is known of those that
    /// could not be.
    pub(super) fn kill(
        &mut self,
        mut pids: Vec<Pid>,
        graceful: Option<Duration>,
        mut open: impl FnMut(Pid) -> Opened,
        mut begun: impl FnMut(&[Outcome]) -> Vec<Pid>,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        if let Some(grace) = graceful {
            let left = ask(pids.into_iter().map(open), grace, &mut outcomes);
            let left = left.into_iter().map(|it| (it.pidfd.pid(), Ok(it)));
            self.kill_opened(left, &mut outcomes);
            return outcomes;
        }
        if pids.len() <= LOOKED_AT_FIRST {
            self.kill_opened(pids.into_iter().map(open), &mut outcomes);
            return outcomes;
        }
        let mut signalled = Vec::new();
        for _ in 0..PASSES {
            pids.truncate(self.room.saturating_sub(signalled.len()));
            if pids.is_empty() {
                break;
            }
            let opened = pids.into_iter().map(&mut open);
            signalled.extend(send_to_each(opened, Signal::KILL, &mut outcomes));
            pids = begun(&outcomes);
        }
        self.reap(signalled, &mut outcomes);
        outcomes
    }

    fn kill_opened(
        &mut self,
        opened: impl ExactSizeIterator<Item = Opened>,
        outcomes: &mut Vec<Outcome>,
    ) {
        if opened.len() > LOOKED_AT_FIRST {
            let signalled = send_to_each(opened, Signal::KILL, outcomes);
            return self.reap(signalled, outcomes);
        }
        let targets = opened.filter_map(|it| held(it, outcomes));
        let targets = targets.map(|it| (it, Nanos::new(0))).collect();
        self.submit(JobKind::Kill, targets, outcomes);
    }

    /// Of those that were signalled, whose memory is there yet.
    fn reap(&mut self, signalled: Vec<Signalled>, outcomes: &mut Vec<Outcome>) {
        let mut signalled = signalled.into_iter();
        let mut handed = BTreeSet::new();
        loop {
            let batch: Vec<Signalled> = signalled.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return;
            }
            let (ended, mut left): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|(target, _)| target.pidfd.has_ended().unwrap_or(false));
            outcomes.extend(ended.iter().map(|(it, _)| Outcome::ended(it)));
            // One that was on its way out by itself does not look signalled, and was signalled in two passes.
            left.retain(|(target, _)| handed.insert(target.pidfd.pid()));
            self.submit(JobKind::Reap, left, outcomes);
        }
    }

    /// Has the reapers deal with these, and waits for it.
    fn submit(&mut self, kind: JobKind, batch: Vec<Signalled>, outcomes: &mut Vec<Outcome>) {
        let mut awaited = BTreeMap::new();
        let mut victims = Vec::with_capacity(batch.len());
        for (target, at) in batch {
            let tag = self.next_tag;
            self.next_tag = tag.wrapping_add(1);
            let mut victim = Victim::new(target.pidfd, at, tag);
            victim.owner = target.uid.map(Owner::User);
            victim.private = target.private;
            let one = Awaited {
                pidfd: Arc::clone(&victim.pidfd),
                comm: target.comm,
                private: target.private,
            };
            awaited.insert(tag, one);
            victims.push(victim);
        }
        if victims.is_empty() {
            return;
        }
        self.reaper.submit(Job { kind, victims });
        let deadline = Instant::now() + TIMEOUT;
        while !awaited.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(report) = self.reports.recv_timeout(left) else {
                break;
            };
            // None: of a batch before, too late.
            if let Some(one) = awaited.remove(&report.tag) {
                outcomes.push(Outcome::of_report(&report, one.comm));
            }
        }
        outcomes.extend(awaited.into_values().map(Awaited::unanswered));
    }
}

impl Awaited {
    fn unanswered(self) -> Outcome {
        let pid = self.pidfd.pid();
        match self.pidfd.has_ended().unwrap_or(false) {
            true => Outcome::exited(pid, self.comm, self.private),
            false => Outcome::unanswered(pid, self.comm),
        }
    }
}

fn held((pid, target): Opened, outcomes: &mut Vec<Outcome>) -> Option<Target> {
    target
        .map_err(|denied| outcomes.push(Outcome::of_refusal(pid, &denied)))
        .ok()
}

/// Sends a signal to each as soon as it is held; those it was sent to, and when.
fn send_to_each(
    opened: impl Iterator<Item = Opened>,
    signal: Signal,
    outcomes: &mut Vec<Outcome>,
) -> Vec<Signalled> {
    let mut sent = Vec::new();
    for one in opened {
        let Some(target) = held(one, outcomes) else {
            continue;
        };
        let denied = match target.pidfd.send(signal) {
            Ok(Sent::Done) => {
                sent.push((target, clock::monotonic()));
                continue;
            }
            Ok(Sent::Gone) => Denied::ended(),
            Err(error) => target.refused(&error),
        };
        outcomes.push(Outcome::of_refusal(target.pidfd.pid(), &denied));
    }
    sent
}

/// Sends SIGTERM to all and returns those who are still there after `grace`.
fn ask(
    opened: impl Iterator<Item = Opened>,
    grace: Duration,
    outcomes: &mut Vec<Outcome>,
) -> Vec<Target> {
    let start = Instant::now();
    let asked = send_to_each(opened, Signal::TERM, outcomes);
    let targets = asked.into_iter().map(|(target, _)| target);
    targets
        .filter(|target| {
            let left = grace.saturating_sub(start.elapsed());
            let has_ended = target.pidfd.wait_readable(Some(left)).unwrap_or(false);
            if has_ended {
                outcomes.push(Outcome::ended_as_asked(target, start.elapsed()));
            }
            !has_ended
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use bursar_host::{Patient, Proc};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[test]
    fn more_than_there_is_room_for_are_killed_and_so_is_who_begins_meanwhile() {
        let mut children: Vec<Child> = (0..=LOOKED_AT_FIRST).map(|_| sleeper()).collect();
        let proc = Proc::host().unwrap();
        let mut killer = Killer::new().unwrap();
        killer.room = children.len() + 1;
        let pids: Vec<Pid> = children.iter().map(|it| Pid::new(it.id())).collect();
        let open = |pid| (pid, Target::open(&mut Patient(&proc), &proc, pid, None));
        let mut late: Vec<Child> = Vec::new();
        // One more than there is room for.
        let begun = |_: &[Outcome]| {
            late.extend([sleeper(), sleeper()]);
            late.iter().map(|it| Pid::new(it.id())).collect()
        };
        let outcomes = killer.kill(pids.clone(), None, open, begun);
        let told: BTreeSet<u32> = outcomes.iter().map(|it| it.pid).collect();
        let expected = pids.iter().map(|it| it.get()).chain([late[0].id()]);
        let expected: BTreeSet<u32> = expected.collect();
        children.append(&mut late);
        for child in &mut children {
            let _ = child.kill();
            child.wait().unwrap();
        }
        assert_eq!(told, expected);
        assert!(outcomes.iter().all(|it| it.killed), "{outcomes:?}");
    }
}
