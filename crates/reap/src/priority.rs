// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sees to it that the neighbours do not pay: raises reapers and victims in slices, lowers them for
//! everybody else's turns (bursar-policy `DutyCycle`), and watches victims that have to exit by themselves.
//!
//! process_mrelease is one system call however much it takes, so whoever is in it cannot make way by
//! himself: this thread, one priority above, does it for him.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bursar_host::sched::{self, Changed, Class};
use bursar_host::{PiMutex, Pidfd, clock};
use bursar_model::{Nanos, Pid};
use bursar_policy::{DutyCycle, Pace, Phase, RAISED_AT_MOST, SHARE_NICE, phase};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::autogroup::Autogroup;
use crate::cpu_slot::CpuSlot;
use crate::report::{Fate, Report};
use crate::reporter::{Reporter, Shared};
use crate::supervisor::Supervisor;
use crate::waker::Waker;

/// Victims whose end is awaited at a time; of more the oldest are reported as they are.
const MOST_AWAITED: usize = 512;
/// Changing a thread's class takes some 2 us: a victim with more of them has its share only.
const MOST_IN_RHYTHM: usize = 4;
/// Among everybody else. Whoever is put above others and back many times a second has one weight only: with two the
/// kernel multiplies what the thread's whole control group owes others by each change (a group's lag in EEVDF), and
/// everybody in it, root's shell beside `bursar kill`, waits for seconds (docs/design/11-reapers-among-neighbours.md).
const AMONG: Class = Class::Patient(SHARE_NICE);

/// Whoever competes at a pace.
#[derive(Debug)]
struct Entry {
    who: Who,
    threads: Vec<Pid>,
    pace: Pace,
    expected: Nanos,
    start: Nanos,
    /// As last set.
    class: Option<Class>,
    /// Changing its class was refused: it is left alone.
    is_fixed: bool,
    /// A reaper that is confined to its CPU slot.
    is_pinned: bool,
}

#[derive(Debug)]
enum Who {
    Reaper(Arc<CpuSlot>),
    Victim(Arc<Pidfd>),
}

/// A victim that has to exit by itself.
#[derive(Debug)]
pub(crate) struct Awaited {
    pub(crate) pidfd: Arc<Pidfd>,
    /// All but `fate` and `took`.
    pub(crate) report: Report,
    pub(crate) shared: Option<Shared>,
    pub(crate) was_raised: bool,
    /// What is said when it is not waited for any longer.
    pub(crate) why: &'static str,
    /// CLOCK_MONOTONIC.
    pub(crate) deadline: Nanos,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    awaited: VecDeque<Awaited>,
    duty_cycle: DutyCycle,
    autogroup: Autogroup,
}

/// Shared by the pool.
#[derive(Debug)]
pub(crate) struct PriorityController {
    /// Whoever holds it may be raised above others, or lowered below them, by the very thread that wants it.
    state: PiMutex<State>,
    waker: Waker,
    /// Reapers' class at rest and in a slice; `None` where we may not raise.
    high: Option<u8>,
}

impl PriorityController {
    pub(crate) fn new(high: Option<u8>, waker: Waker) -> Self {
        Self {
            state: PiMutex::from(State {
                autogroup: Autogroup::own(),
                ..State::default()
            }),
            waker,
            high,
        }
    }

    /// Has the thread look again: to be done after [`PriorityController::begin`] and [`PriorityController::raise`], as soon as its waking up
    /// does not disturb.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// From now on a reaper, which is in its CPU slot above everybody, competes as `pace` says. Nothing changes before
    /// the waker wakes it: only the thread gives classes, for whoever raised another on his own CPU might not get it
    /// back to see to the end of that.
    pub(crate) fn begin(&self, cpu_slot: &Arc<CpuSlot>, pace: Pace, expected: Nanos) {
        let Some(reaper) = cpu_slot.reaper() else {
            return;
        };
        let who = Who::Reaper(Arc::clone(cpu_slot));
        self.enter(who, vec![reaper], pace, expected);
    }

    /// From now on these threads of a victim compete as `pace` says, until it has ended: as [`PriorityController::begin`].
    pub(crate) fn raise(&self, victim: Arc<Pidfd>, threads: Vec<Pid>, pace: Pace, expected: Nanos) {
        self.enter(Who::Victim(victim), threads, pace, expected);
    }

    fn enter(&self, who: Who, threads: Vec<Pid>, pace: Pace, expected: Nanos) {
        let is_reaper = matches!(who, Who::Reaper(_));
        let entry = Entry {
            who,
            threads,
            pace,
            expected,
            start: clock::monotonic(),
            class: self.high.filter(|_| is_reaper).map(Class::RealTime),
            is_fixed: self.high.is_none(),
            is_pinned: is_reaper,
        };
        self.state.lock().entries.push(entry);
    }

    /// Lets a reaper wait above everybody: for the next job, to be on a CPU at once.
    pub(crate) fn stand_by(&self, reaper: Pid) {
        if let Some(high) = self.high {
            let _ = sched::set_class(reaper, Class::RealTime(high));
        }
    }

    /// Puts a reaper among everybody, for work that nobody waits for.
    pub(crate) fn stand_down(&self, reaper: Pid) {
        if self.high.is_some() {
            let _ = sched::set_class(reaper, AMONG);
        }
    }

    /// A reaper is done, and among everybody.
    pub(crate) fn end(&self, cpu_slot: &Arc<CpuSlot>) {
        let mut state = self.state.lock();
        cpu_slot.preempter.stop();
        cpu_slot.leave();
        let is_its =
            |entry: &Entry| matches!(&entry.who, Who::Reaper(it) if Arc::ptr_eq(it, cpu_slot));
        if let Some(index) = state.entries.iter().position(is_its) {
            state.entries.swap_remove(index).put(AMONG);
        }
        if state.entries.is_empty() {
            let now = clock::monotonic();
            state.duty_cycle.rest(now);
            // It is given back later.
            if state.autogroup.rest(now).is_some() {
                self.wake();
            }
        }
    }

    /// Reports a victim once it has exited, or when its deadline comes.
    pub(crate) fn watch(&self, awaited: Awaited, reporter: &Reporter) {
        let mut state = self.state.lock();
        let oldest = if state.awaited.len() >= MOST_AWAITED {
            state.awaited.pop_front()
        } else {
            None
        };
        state.awaited.push_back(awaited);
        drop(state);
        if let Some(oldest) = oldest {
            oldest.give_up("too many are exiting at once", reporter);
        }
        self.wake();
    }

    /// The thread. It also sees to it that the others get on.
    pub(crate) fn run(&self, reporter: &Reporter, supervisor: &mut Supervisor) {
        loop {
            let (watched, timeout) = {
                let mut state = self.state.lock();
                let now = clock::monotonic();
                let ended = state.take_ended(now);
                let due = self.conduct(&mut state, now);
                let deadline = state.awaited.iter().map(|it| it.deadline).min();
                let next = due.into_iter().chain(deadline).min();
                let watched: Vec<_> = state
                    .awaited
                    .iter()
                    .map(|it| Arc::clone(&it.pidfd))
                    .collect();
                drop(state);
                let is_again = !ended.is_empty();
                for (awaited, has_ended) in ended {
                    if has_ended {
                        awaited.finish(now, reporter);
                    } else {
                        let why = awaited.why;
                        awaited.give_up(why, reporter);
                    }
                }
                if is_again {
                    continue;
                }
                let wait = next.map(|next| next.get().saturating_sub(clock::monotonic().get()));
                (watched, wait)
            };
            let next_look = supervisor.look();
            let mut fds = vec![PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN)];
            fds.extend(
                watched
                    .iter()
                    .map(|it| PollFd::from_borrowed_fd(it.as_fd(), PollFlags::IN)),
            );
            let timeout = timeout.map(Duration::from_nanos);
            let timeout = timeout.into_iter().chain(next_look).min();
            let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
            let _ = poll(&mut fds, timeout.as_ref());
            drop(fds);
            self.waker.clear();
        }
    }

    /// Gives everybody the class that the moment asks for; until when that holds.
    fn conduct(&self, state: &mut State, now: Nanos) -> Option<Nanos> {
        state.entries.retain_mut(|entry| {
            let Who::Victim(victim) = &entry.who else {
                return true;
            };
            let is_late = now.get().saturating_sub(entry.start.get()) > RAISED_AT_MOST.get();
            let has_ended = crate::unblock::has_ended(victim);
            if is_late && !has_ended {
                entry.put(AMONG);
            }
            !is_late && !has_ended
        });
        if state.entries.is_empty() {
            state.duty_cycle.rest(now);
            return state.autogroup.rest(now);
        }
        let high = self.high?;
        let mut due: Option<u64> = None;
        let mut until = |moment: u64| due = Some(due.map_or(moment, |it| it.min(moment)));
        let mut slice = None;
        for entry in &mut state.entries {
            let since = Nanos::new(now.get().saturating_sub(entry.start.get()));
            let phase = phase(entry.pace, entry.expected, since);
            let (lasts, may_rise, low) = match phase {
                Phase::InitialSlice(lasts) => (Some(lasts), true, AMONG),
                Phase::Below(lasts) => (Some(lasts), false, Class::Idle),
                Phase::Among(lasts) => (Some(lasts), false, AMONG),
                Phase::Cycling => (None, true, AMONG),
            };
            if let Some(lasts) = lasts {
                until(now.get().saturating_add(lasts.get()));
            }
            if matches!(phase, Phase::Below(_) | Phase::Cycling) {
                entry.leave_cpu_slot();
            }
            // Nothing holds it back: it has its own priority until it is late.
            if matches!(entry.who, Who::Victim(_))
                && entry.pace == Pace::Calm
                && phase != Phase::Cycling
            {
                continue;
            }
            let mut class = low;
            if may_rise && entry.is_small() {
                let duty_cycle = &mut state.duty_cycle;
                let (is_slice, end) = *slice.get_or_insert_with(|| duty_cycle.at(now));
                until(end.get());
                if is_slice {
                    class = Class::RealTime(high);
                }
            }
            entry.put(class);
            if let (Who::Reaper(cpu_slot), Pace::Urgent | Pace::Pressing) = (&entry.who, entry.pace)
            {
                cpu_slot.preempter.start();
            }
        }
        if slice.is_none() {
            state.duty_cycle.rest(now);
        }
        if state.entries.iter().any(|it| it.pace != Pace::Calm) {
            state.autogroup.raise(now);
        } else if let Some(again) = state.autogroup.rest(now) {
            due = Some(due.map_or(again.get(), |it| it.min(again.get())));
        }
        due.map(Nanos::new)
    }
}

impl Entry {
    /// Whether a number still names a thread of a victim: one that has ended while its process lives on
    /// may have left it to somebody else, who must not be raised.
    fn still_has(&self, thread: Pid) -> bool {
        match &self.who {
            Who::Reaper(_) => true,
            Who::Victim(victim) => {
                let pid = victim.pid();
                pid == thread || Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
            }
        }
    }

    const fn is_small(&self) -> bool {
        self.threads.len() <= MOST_IN_RHYTHM
    }

    fn leave_cpu_slot(&mut self) {
        if let Who::Reaper(cpu_slot) = &self.who
            && std::mem::take(&mut self.is_pinned)
        {
            cpu_slot.leave();
        }
    }

    fn put(&mut self, class: Class) {
        if self.is_fixed || self.class == Some(class) {
            return;
        }
        let mut is_any = false;
        for &thread in &self.threads {
            if !self.still_has(thread) {
                continue;
            }
            match sched::set_class(thread, class) {
                Changed::Denied => {
                    // A group without real-time runtime: a share is the best there is.
                    let _ = sched::set_class(thread, AMONG);
                }
                Changed::Done | Changed::Gone => is_any = true,
            }
        }
        self.is_fixed = !is_any;
        self.class = Some(class);
    }
}

impl State {
    /// Takes out whoever has ended (true) or whose deadline has come (false).
    fn take_ended(&mut self, now: Nanos) -> Vec<(Awaited, bool)> {
        let mut taken = Vec::new();
        let mut left = VecDeque::new();
        for awaited in self.awaited.drain(..) {
            if crate::unblock::has_ended(&awaited.pidfd) {
                taken.push((awaited, true));
            } else if awaited.deadline <= now {
                taken.push((awaited, false));
            } else {
                left.push_back(awaited);
            }
        }
        self.awaited = left;
        taken
    }
}

impl Awaited {
    fn finish(mut self, now: Nanos, reporter: &Reporter) {
        self.report.fate = if self.was_raised {
            Fate::Raised
        } else {
            Fate::Exited
        };
        self.report.took = Nanos::new(now.get().saturating_sub(self.report.signalled.get()));
        reporter.file(self.report, self.shared);
    }

    fn give_up(mut self, why: &str, reporter: &Reporter) {
        let words: Vec<_> = self.report.found.iter().map(|it| it.word()).collect();
        let state = if words.is_empty() {
            String::new()
        } else {
            format!(" ({})", words.join(", "))
        };
        self.report.fate = Fate::Stuck(format!("{why}{state}"));
        self.report.freed = None;
        let now = clock::monotonic();
        self.report.took = Nanos::new(now.get().saturating_sub(self.report.signalled.get()));
        reporter.file(self.report, self.shared);
    }
}
