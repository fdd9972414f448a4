// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first reaper: does a job from plan to report.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bursar_host::{Controller, HostError, Release, Sent, Signal, clock, sched};
use bursar_model::{Bytes, Nanos, Pid};
use bursar_policy::{
    Attempt, Doing, MachineFacts, NextStep, Pace, Peculiarity, Raise, ReapPlan, next_step,
    reap_plan,
};

use crate::cpu_slot::CpuSlot;
use crate::helper::Helper;
use crate::job::{Errand, Job, Victim};
use crate::observer::{Observer, Seen, unseen};
use crate::priority::{Awaited, PriorityController};
use crate::progress::Progress;
use crate::report::{Fate, News, Report};
use crate::reporter::{Reporter, Shared};
use crate::shared_mm;
use crate::supervisor::Supervised;
use crate::unblock;
use bursar_watchdog::Abandoned;
use bursar_watchdog::Guard;

/// A victim that exits by itself is watched for so long.
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;
/// One that cannot run is not: it is in the hands of a device or of a debugger.
pub(crate) const SHORT_PATIENCE_NS: u64 = 1_000_000_000;

/// Why a victim is not back that nobody asks for its memory.
pub(crate) const BLOCKED: &str =
    "somebody holds its memory's lock, and whoever wants it waits for him";

/// What the first reaper works with.
pub(crate) struct Worker {
    pub(crate) observer: Arc<Observer>,
    pub(crate) controller: Arc<PriorityController>,
    /// Who is the helper now.
    pub(crate) helper: Arc<Mutex<Option<Arc<Helper>>>>,
    pub(crate) reporter: Reporter,
    pub(crate) cpu_slot: Arc<CpuSlot>,
    pub(crate) guard: Guard,
    /// What one that was lost has left.
    pub(crate) left: Mutex<Option<Job>>,
    /// The job under way: for who takes over.
    pub(crate) progress: Mutex<Option<Arc<Progress>>>,
}

/// One victim on its way.
struct Case {
    /// Its place in the job.
    index: usize,
    victim: Victim,
    seen: Option<Seen>,
    plan: ReapPlan,
    signalled: Nanos,
    was_raised: bool,
    /// It was dying before anybody was ready: see [`Pace::Pressing`].
    is_pressing: bool,
    /// Its threads that were sent off the reaper's CPU.
    parted: Vec<Pid>,
    /// Who had the same memory before the signal; afterwards, if he lives.
    mm_sharer: Option<Pid>,
    /// Nobody asks for its memory.
    is_blocked: bool,
    /// For a thread of ours that waits at it, not at others of its user's: those may well end by themselves.
    keeps_us: bool,
}

/// How taking one's memory went.
enum Outcome {
    Done(Fate),
    MustExit,
}

impl Worker {
    /// The thread. Who takes a lost one's place begins with what that one has left.
    pub(crate) fn run(&self, jobs: &Mutex<Receiver<Job>>) {
        let own = sched::own_thread();
        loop {
            let received = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Some(job) = self.take_left().or_else(|| received().ok()) else {
                return;
            };
            if let Err(Abandoned) = self.work(job) {
                // Whoever has taken over has seen to the rest.

                return;
            }
            self.controller.stand_by(own);
        }
    }

    fn work(&self, mut job: Job) -> Result<(), Abandoned> {
        let own = sched::own_thread();
        let machine = match job.errand {
            Errand::Kill => {
                // Looking takes as long as there are processes: not above everybody.
                self.controller.stand_down(own);
                // And it can last for ever: who keeps watch is to look.
                self.take_up(&Arc::new(Progress::of(Arc::new(job.clone()))));
                self.controller.wake();
                self.observer.machine()
            }
            Errand::Reap => MachineFacts {
                cpus: self.observer.cpus,
                runnable: self.observer.cpus,
            },
        };
        if job.errand == Errand::Kill {
            for victim in &mut job.victims {
                if victim.seen.is_none() {
                    victim.seen = self.observe(victim)?;
                }
            }
        }
        let job = Arc::new(job);
        let mut cases: Vec<Case> = Vec::with_capacity(job.victims.len());
        for (index, victim) in job.victims.iter().enumerate() {
            cases.push(self.open(index, victim, job.errand, machine)?);
        }
        let progress = Arc::new(Progress::of(Arc::clone(&job)));
        self.take_up(&progress);
        // Of a victim that is dying already nothing is known yet, and there is no time to ask.
        let pace = if job.errand == Errand::Reap {
            Pace::Pressing
        } else if cases.iter().any(|it| it.plan.pace == Pace::Urgent) {
            Pace::Urgent
        } else {
            Pace::Calm
        };
        let expected = cases
            .iter()
            .fold(0u64, |sum, it| sum.saturating_add(it.plan.expected.get()));
        let expected = Nanos::new(expected);
        let wants_helper = cases.iter().any(|it| it.plan.reapers > 1) || cases.len() > 1;
        let helper = self.own_helper().filter(|_| wants_helper);
        // Both above everybody, to be on a CPU and ready before the signal: until then, for half a
        // millisecond at most.
        self.controller.stand_by(own);
        self.cpu_slot.take();
        // Of many victims there are two reapers, on as many CPUs as there may be.
        if let [case] = &mut cases[..]
            && case.plan.part
        {
            case.parted = unblock::threads(&self.observer, &case.victim.pidfd);
            unblock::send_elsewhere(&case.parted);
        }
        let called = helper.as_ref().and_then(|helper| helper.call(&job));
        if let (Errand::Kill, Some(called)) = (job.errand, &called) {
            called.await_ready();
        }
        self.controller.begin(&self.cpu_slot, pace, expected);
        if let Some(called) = &called {
            self.controller.begin(called.cpu_slot(), pace, expected);
        }
        let send_off = || {
            if let Some(called) = &called {
                called.go();
            }
        };
        match job.errand {
            Errand::Kill => {
                // The controller wakes up before a victim that is on its way at once, not between signal and reaping;
                // and before many, which take longer to signal than a slice. On a busy machine only afterwards:
                // whoever is lowered before has others run first.
                if helper.is_none() || cases.len() > 1 {
                    self.controller.wake();
                }
                cases.retain_mut(|case| self.signal(case, &progress));
                send_off();
                if helper.is_some() {
                    self.controller.wake();
                }
            }
            Errand::Reap => {
                send_off();
                self.controller.wake();
                for case in &mut cases {
                    if case.seen.is_none() {
                        // While the other one works already: what is seen now may be less than all.
                        case.seen = self.observe(&case.victim)?;
                        if let Some(seen) = &mut case.seen {
                            // By us.
                            seen.facts.is_dying = false;
                            case.plan = reap_plan(&seen.facts, machine);
                        }
                    }
                }
            }
        }
        for case in &mut cases {
            if case.plan.raise == Raise::AtOnce {
                self.raise(case, Pace::Urgent);
            }
        }
        let mut outcomes = Vec::with_capacity(cases.len());
        for case in &mut cases {
            outcomes.push(self.take(case)?);
            if let Some(mm_sharer) = case.mm_sharer {
                let lives = || shared_mm::lives(&self.observer.proc, mm_sharer);
                let lives = self
                    .guard
                    .call(&self.observer.proc, mm_sharer, None, lives)?;
                case.mm_sharer = Some(mm_sharer).filter(|_| lives == Some(true));
            }
        }
        let now = clock::monotonic();
        self.controller.end(&self.cpu_slot);
        for (case, outcome) in cases.into_iter().zip(outcomes) {
            progress.settle(case.index);
            self.conclude(case, outcome, now);
        }
        *self.own_progress() = None;
        Ok(())
    }

    /// This is what it is at from now on.
    fn take_up(&self, progress: &Arc<Progress>) {
        *self.own_progress() = Some(Arc::clone(progress));
    }

    fn own_progress(&self) -> MutexGuard<'_, Option<Arc<Progress>>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_helper(&self) -> Option<Arc<Helper>> {
        let helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        helper.clone()
    }

    /// What it is to begin with.
    pub(crate) fn take_left(&self) -> Option<Job> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.take()
    }

    /// Of a lost one: what is left of its job.
    pub(crate) fn rest(&self) -> Option<Job> {
        let rest = self.own_progress().take()?.rest();
        (!rest.victims.is_empty()).then_some(rest)
    }

    /// Nothing is seen of whom nobody is to ask.
    fn observe(&self, victim: &Victim) -> Result<Option<Seen>, Abandoned> {
        let pid = victim.pidfd.pid();
        let observe = || self.observer.observe(pid);
        let seen = self
            .guard
            .call(&self.observer.proc, pid, victim.owner, observe)?;
        Ok(seen.flatten())
    }

    fn open(
        &self,
        index: usize,
        victim: &Victim,
        errand: Errand,
        machine: MachineFacts,
    ) -> Result<Case, Abandoned> {
        let plan = match &victim.seen {
            Some(seen) => reap_plan(&seen.facts, machine),
            None => reap_plan(&unseen(machine.cpus), machine),
        };
        Ok(Case {
            index,
            victim: victim.clone(),
            seen: victim.seen.clone(),
            plan,
            signalled: victim.signalled,
            was_raised: false,
            is_pressing: errand == Errand::Reap,
            parted: Vec::new(),
            // Afterwards it is too late to ask: a victim that leaves its memory to another is gone in no
            // time.
            mm_sharer: match errand {
                Errand::Kill => shared_mm::find(&self.observer.proc, victim, &self.guard)?,
                Errand::Reap => None,
            },
            is_blocked: false,
            keeps_us: false,
        })
    }

    /// Sends SIGKILL and says so; false when there is nothing more to do, and that is reported.
    fn signal(&self, case: &mut Case, progress: &Progress) -> bool {
        case.signalled = clock::monotonic();
        let fate = match case.victim.pidfd.send(Signal::KILL) {
            Ok(Sent::Done) => {
                progress.signalled(case.index, case.signalled);
                self.reporter.tell(News::Signalled {
                    tag: case.victim.tag,
                    at: case.signalled,
                });
                return true;
            }
            Ok(Sent::Gone) => Fate::Gone,
            Err(HostError::Denied { .. }) => Fate::Spared("not permitted".to_owned()),
            Err(error) => Fate::Spared(error.to_string()),
        };
        unblock::widen(&case.parted);
        progress.settle(case.index);
        self.reporter
            .file(case.report(fate, Nanos::new(0), None), None);
        false
    }

    /// Takes one victim's memory, step by step.
    fn take(&self, case: &mut Case) -> Result<Outcome, Abandoned> {
        let pid = case.victim.pidfd.pid();
        for tries in 1u32.. {
            let release = || case.victim.pidfd.release_memory();
            let owner = case.victim.owner;
            // Before: the signal may free whoever waits there, and the victim stay all the same.
            let keeps_us = self.guard.blocklist().has(pid);
            let asked = self.guard.call(&self.observer.proc, pid, owner, release)?;
            let Some(released) = asked else {
                case.is_blocked = true;
                case.keeps_us = keeps_us;
                return Ok(Outcome::MustExit);
            };
            let attempt = match released {
                Ok(Release::Freed) => Attempt::Freed,
                Ok(Release::Gone) => Attempt::Gone,
                Ok(Release::NotDying) => Attempt::NotDying,
                Ok(Release::Busy) => Attempt::Busy,
                Ok(Release::Unsupported) => Attempt::Unsupported,
                Ok(Release::Denied) | Err(_) => Attempt::Denied,
            };
            match next_step(attempt, tries) {
                NextStep::Done => return Ok(Outcome::Done(Fate::Released)),
                NextStep::HelpItExit => return Ok(Outcome::MustExit),
                NextStep::Again { after, raise } => {
                    if raise && !case.was_raised {
                        self.raise(case, Pace::Urgent);
                    }
                    std::thread::sleep(Duration::from_nanos(after.get()));
                }
                NextStep::FindMmSharer => {
                    let living = shared_mm::find(&self.observer.proc, &case.victim, &self.guard)?;
                    if let Some(mm_sharer) =
                        living.filter(|_| !unblock::has_ended(&case.victim.pidfd))
                    {
                        return Ok(Outcome::Done(Fate::MmShared(mm_sharer)));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(Outcome::MustExit)
    }

    /// Puts the victim's own threads before others as `pace` says, and onto every CPU.
    fn raise(&self, case: &mut Case, pace: Pace) {
        // A group with a quota usually has no real-time runtime either: out of it first.
        if case.plan.unthrottle {
            let _ = unblock::move_out(&self.observer, &case.victim.pidfd, Controller::Cpu);
        }
        let threads = unblock::threads(&self.observer, &case.victim.pidfd);
        if threads.is_empty() {
            return;
        }
        unblock::widen(&threads);
        case.was_raised = pace == Pace::Urgent;
        let pace = match pace {
            Pace::Urgent if case.is_pressing => Pace::Pressing,
            pace => pace,
        };
        let pidfd = Arc::clone(&case.victim.pidfd);
        self.controller
            .raise(pidfd, threads, pace, case.plan.expected);
        self.controller.wake();
    }

    fn conclude(&self, mut case: Case, outcome: Outcome, now: Nanos) {
        let pidfd = Arc::clone(&case.victim.pidfd);
        let outcome = match (outcome, case.mm_sharer) {
            (Outcome::MustExit, Some(mm_sharer)) => Outcome::Done(Fate::MmShared(mm_sharer)),
            (outcome, _) => outcome,
        };
        let took = Nanos::new(now.get().saturating_sub(case.signalled.get()));
        // Released or not, its shell has to leave.
        if case.plan.thaw {
            let _ = unblock::move_out(&self.observer, &pidfd, Controller::Freezer);
        }
        let shared = case.seen.as_mut().map(|seen| Shared {
            pieces: std::mem::take(&mut seen.shared),
            bytes: seen.facts.shared,
        });
        let held = case
            .seen
            .as_ref()
            .filter(|it| it.has_memory)
            .map(|it| it.facts.private)
            .max(case.victim.private);
        match outcome {
            Outcome::Done(fate) => {
                // It may have begun to exit before it lost its CPU, with up to 40 MiB taken off its
                // page tables and not given back yet (mmu_gather): seen as 736 ms of SCHED_IDLE.
                if fate == Fate::Released && !case.was_raised && !unblock::has_ended(&pidfd) {
                    let pace = case.plan.help;
                    self.raise(&mut case, pace);
                }
                let freed = match fate {
                    Fate::Released => held.map(|held| held.saturating_sub(self.left(pidfd.pid()))),
                    _ => None,
                };
                let mut report = case.report(fate, took, freed);
                if matches!(report.fate, Fate::MmShared(_)) {
                    report.found.push(Peculiarity::MmShared);
                }
                self.reporter.file(report, shared);
            }
            Outcome::MustExit => {
                if !case.was_raised && !unblock::has_ended(&pidfd) {
                    let pace = case.plan.help;
                    self.raise(&mut case, pace);
                }
                let facts = case.seen.as_ref().map(|it| &it.facts);
                let cannot_run = facts.is_some_and(|it| it.doing == Doing::Uninterruptible);
                let patience = if cannot_run || case.keeps_us {
                    SHORT_PATIENCE_NS
                } else {
                    PATIENCE_NS
                };
                let report = case.report(Fate::Exited, took, held);
                self.controller.watch(
                    Awaited {
                        pidfd,
                        report,
                        shared,
                        was_raised: case.was_raised,
                        why: if case.is_blocked {
                            BLOCKED
                        } else {
                            "it is still exiting"
                        },
                        deadline: Nanos::new(now.get().saturating_add(patience)),
                    },
                    &self.reporter,
                );
            }
        }
    }

    /// What a victim whose memory was taken still holds of it.
    fn left(&self, pid: Pid) -> Bytes {
        let status = self.observer.proc.status(pid).ok().flatten();
        status
            .and_then(|it| it.memory)
            .map_or(Bytes::ZERO, |it| it.rss_anon.saturating_add(it.swap))
    }
}

impl Supervised for Worker {
    fn is_busy(&self) -> bool {
        self.own_progress().is_some()
    }
}

impl Case {
    fn report(&self, fate: Fate, took: Nanos, freed: Option<Bytes>) -> Report {
        let found = if self.seen.is_some() {
            self.plan.found.clone()
        } else {
            Vec::new()
        };
        Report {
            signalled: self.signalled,
            took,
            freed,
            found,
            ..self.victim.report(fate)
        }
    }
}
