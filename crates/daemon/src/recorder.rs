// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From facts to events: named, timed, logged, stored, sent to who follows, told to who is concerned.

mod files;
mod kills;
mod reaps;
mod usage_event;

use bursar_host::{MemoryFiles, clock};
use bursar_model::{
    AccountId, Bytes, Candidate, Event, EventKind, Nanos, Pid, ReapStatus, Uid, printable,
};
use bursar_reap::{Priority, Report};

use self::files::{held_files, in_words};
pub(crate) use self::kills::Circumstances;
use self::reaps::{Reaps, end_event, reaped_event};
pub(crate) use self::usage_event::{UsageEvent, UsageEventKind};
use crate::fact::{Level, Refused, RefusedRow, Victim};
use crate::graceful::{Asked, GRACE};
use crate::history::History;
use crate::limit_table::LimitTable;
use crate::log;
use crate::message::{Message, Reader, Subject};
use crate::programs::COMM_WIDTH;

/// How the reason of a victim's end begins that the kernel chose.
pub(crate) const KERNELS_OOM_KILLER: &str = "killed by the kernel's OOM killer";

/// Writes down what happened.
#[derive(Debug)]
pub(crate) struct Recorder {
    history: History,
    reaps: Reaps,
    usage_events: Vec<UsageEvent>,
}

impl Recorder {
    pub(crate) fn new(history: History) -> Self {
        Self {
            reaps: Reaps::after(history.recent()),
            history,
            usage_events: Vec::new(),
        }
    }

    /// Events that are known to us alone: they would be gone with us.
    pub(crate) fn unwritten(&self) -> u64 {
        self.history
            .waiting()
            .saturating_add(self.reaps.half_known())
    }

    /// What accounts have met since this was asked for last.
    pub(crate) fn take_usage_events(&mut self) -> Vec<UsageEvent> {
        std::mem::take(&mut self.usage_events)
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    /// Writes what waits to be written: the daemon ends.
    pub(crate) fn write_waiting(&mut self) {
        for event in self.history.write_waiting() {
            log::event(&event);
        }
    }

    pub(crate) fn reaps(&self) -> &ReapStatus {
        self.reaps.status()
    }

    /// Completes an event with the time, logs it and stores it. Returns it as others may see it.
    pub(crate) fn record(&mut self, mut event: Event, at: Nanos) -> Event {
        event.time = clock::rfc3339(clock::to_wall(at));
        self.history.number(&mut event);
        // The log has what the history has: neither takes thousands of one user's doing.
        for due in self.history.add(event.clone(), clock::monotonic()) {
            log::event(&due);
        }
        event
    }

    /// Not what only would have been.
    fn note_usage(&mut self, event: UsageEvent, level: &Level) {
        if !level.is_observed {
            self.usage_events.push(event);
        }
    }

    /// An event about ourselves.
    pub(crate) fn remark(
        &mut self,
        kind: EventKind,
        account: Option<String>,
        reason: String,
    ) -> Event {
        let mut event = Event::new(kind);
        event.account = account;
        event.reason = Some(reason);
        self.tell(event)
    }

    /// An event of this moment.
    pub(crate) fn tell(&mut self, event: Event) -> Event {
        self.record(event, clock::monotonic())
    }

    pub(crate) fn notice(
        &mut self,
        level: &Level,
        barrier: Option<Bytes>,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let kind = match level.is_observed {
            true => EventKind::WouldNotice,
            false => EventKind::Notice,
        };
        let mut event = about(kind, level, limit_table);
        event.barrier = barrier;
        event.uid = level.account.uid();
        event.reason = words_of_notice(level.limit);
        self.note_usage(UsageEvent::new(level, UsageEventKind::Notice), level);
        let name = shared_name(&event, level.account);
        let message = Message::notice(
            level.account,
            Reader(name),
            [Some(level.held), barrier, level.limit],
            limit_table.manner_of(level.account),
        );
        (self.record(event, level.at), message)
    }

    /// The message tells whoever is refused; at most one a minute is shown.
    pub(crate) fn refused(
        &mut self,
        level: &Level,
        refused: &Refused,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let mut event = about(refusal_kind(level), level, limit_table);
        event.trigger = None;
        name_asker(&mut event, level, refused.uid, refused.pid, &refused.comm);
        event.request = Some(refused.request);
        event.request_bytes = Some(refused.size);
        event.refusals = Some(refused.count);
        event.barrier = refused.barrier;
        let barrier = refused.barrier.map_or_else(
            || "no barrier".to_owned(),
            |it| format!("a barrier of {it}"),
        );
        event.reason = Some(format!(
            "{} of {} with {} held and {barrier}",
            refused.request.name(),
            refused.size,
            refused.level
        ));
        self.note_usage(
            UsageEvent::new(level, UsageEventKind::Refusals(refused.count)),
            level,
        );
        let what = format!("{} more memory", refused.size);
        let has = match refused.barrier {
            Some(barrier) => format!(
                "{} are held, and more than {barrier} is refused",
                refused.level
            ),
            None => format!("{} are held", refused.level),
        };
        self.tell_refused(event, level, refused.uid, [&what, &has])
    }

    pub(crate) fn row_refused(
        &mut self,
        level: &Level,
        refused: &RefusedRow,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let mut event = about(refusal_kind(level), level, limit_table);
        event.trigger = None;
        // These are bytes, and the row's are not.
        event.held = None;
        event.limit = None;
        name_asker(&mut event, level, refused.uid, refused.pid, &refused.comm);
        event.refusals = Some(refused.count);
        let row = &refused.row;
        event.reason = Some(format!(
            "{} more of {} with {} held and a barrier of {}",
            row.asked,
            row.resource.name(),
            row.held,
            row.barrier
        ));
        event.row = Some(row.clone());
        let refusals = UsageEvent {
            held: Bytes::ZERO,
            ..UsageEvent::new(level, UsageEventKind::Refusals(refused.count))
        };
        self.note_usage(refusals, level);
        let what = format!("{} more of {}", row.asked, row.resource.name());
        let has = format!(
            "{} are held, and more than {} is refused",
            row.held, row.barrier
        );
        self.tell_refused(event, level, refused.uid, [&what, &has])
    }

    /// `said`: what was asked for, and what is held already.
    fn tell_refused(
        &mut self,
        event: Event,
        level: &Level,
        uid: Uid,
        said: [&str; 2],
    ) -> (Event, Message) {
        let reader = Reader(shared_name(&event, level.account));
        let message = Message::refused(level.account, reader, uid, program(&event), said);
        (self.record(event, level.at), message)
    }

    pub(crate) fn no_victim(&mut self, victim: &Victim, limit_table: &mut LimitTable) -> Event {
        let mut event = describe(EventKind::NoVictim, victim, limit_table);
        event.pid = None;
        event.comm = None;
        event.victim_bytes = None;
        let name = event.account.as_deref().unwrap_or("NAME");
        event.reason = Some(format!(
            "over its limit; none of its processes may be killed (all are dying, protected or just failed to be \
             signalled). Raise the limit, or end one: bursar status {name}"
        ));
        self.record(event, victim.level.at)
    }

    /// Over its limit by files that no kill would free. The message is for who can remove them.
    pub(crate) fn files(
        &mut self,
        level: &Level,
        stuck: Bytes,
        files: &MemoryFiles,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let mut event = about(EventKind::NoVictim, level, limit_table);
        event.uid = level.account.uid();
        event.files_bytes = Some(stuck);
        event.files = held_files(files);
        let largest = in_words(&event.files, files.is_partial);
        let limit = level.limit.unwrap_or_default();
        event.reason = Some(format!(
            "over its limit by files in memory, which no kill would free; {largest}"
        ));
        let reader = Reader(shared_name(&event, level.account));
        let sizes = [level.held, limit, stuck];
        let message = Message::files(level.account, reader, sizes, &largest);
        (self.record(event, level.at), message)
    }

    pub(crate) fn kill_failed(
        &mut self,
        victim: &Victim,
        why: &str,
        limit_table: &mut LimitTable,
    ) -> Event {
        let mut event = describe(EventKind::KillFailed, victim, limit_table);
        event.reason = Some(why.to_owned());
        let tried = victim.level.at.get().saturating_add(victim.latency.get());
        self.record(event, Nanos::new(tried))
    }

    /// How the reapers compete here.
    pub(crate) fn introduce_reapers(&mut self, priority: Priority) {
        self.reaps.introduce(priority);
    }

    /// Whether a victim's end is still to be reported.
    pub(crate) fn awaits(&self, pid: Pid) -> bool {
        self.reaps.awaits(pid)
    }

    /// The kernel's OOM killer chose somebody of an account with a limit.
    pub(crate) fn expect_oom_victim(
        &mut self,
        pid: Pid,
        uid: Uid,
        comm: Option<String>,
        account: AccountId,
        limit_table: &mut LimitTable,
    ) -> Message {
        let event = end_event(pid, uid, comm, account, limit_table);
        let reader = Reader(shared_name(&event, account));
        let message = Message::killed_by_kernel(account, reader, uid, pid, event.comm.as_deref());
        self.reaps
            .expect(pid, event, Bytes::ZERO, Some(KERNELS_OOM_KILLER));
        message
    }

    /// A process of an account dies that we have not killed: told where it had to be helped.
    pub(crate) fn expect_others(&mut self, victim: &Victim, limit_table: &mut LimitTable) {
        if self.reaps.awaits_any(victim.pid) {
            return;
        }
        let event = reaped_event(victim, limit_table);
        self.reaps.expect_others(victim.pid, event, victim.held);
    }

    /// A process was asked to end.
    pub(crate) fn asked(
        &mut self,
        asked: &Asked,
        level: &Level,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let mut event = about(EventKind::Asked, level, limit_table);
        name(&mut event, asked.uid, asked.pidfd.pid(), &asked.comm);
        event.victim_bytes = Some(asked.held);
        let seconds = GRACE.as_secs();
        event.reason = Some(format!(
            "the account is over its notice; killed in {seconds} s unless it is below it then"
        ));
        let subject = Subject {
            owner: asked.uid,
            pid: asked.pidfd.pid(),
            comm: &printable(&asked.comm, COMM_WIDTH),
            held: asked.held,
            namespace_pid: None,
            command: None,
        };
        let reader = Reader(shared_name(&event, level.account));
        let message = Message::asked(level.account, reader, &subject, level.held, seconds);
        (self.record(event, clock::monotonic()), message)
    }

    /// The kernel half, or a scan, says that a victim's memory is gone.
    pub(crate) fn freed(
        &mut self,
        victim: &Victim,
        duration: Nanos,
        limit_table: &mut LimitTable,
    ) -> Option<Event> {
        let (event, at) = self.reaps.freed(victim, duration, limit_table)?;
        Some(self.record(event, at))
    }

    /// The reapers are done with a victim.
    pub(crate) fn settled(&mut self, report: &Report) -> Option<Event> {
        let (event, at) = self.reaps.settled(report)?;
        Some(self.record(event, at))
    }
}

/// `bash (pid 12)`.
fn program(event: &Event) -> Option<String> {
    let pid = event.pid?;
    Some(format!("{} (pid {pid})", event.comm.as_deref()?))
}

/// A notice needs no limit.
fn words_of_notice(limit: Option<Bytes>) -> Option<String> {
    limit
        .is_none()
        .then(|| "more than its notice; it has no limit".to_owned())
}

/// The account's name, where it is nobody's alone.
fn shared_name(event: &Event, account: AccountId) -> Option<&str> {
    let is_shared = account.uid().is_none();
    event.account.as_deref().filter(|_| is_shared)
}

const fn refusal_kind(level: &Level) -> EventKind {
    match level.is_observed {
        true => EventKind::WouldRefuse,
        false => EventKind::Refused,
    }
}

fn about(kind: EventKind, level: &Level, limit_table: &mut LimitTable) -> Event {
    let mut event = Event::new(kind);
    event.account = Some(limit_table.name_of(level.account).0);
    event.trigger = Some(level.trigger);
    event.held = Some(level.held);
    event.limit = level.limit;
    event
}

/// Whose process an event is about.
fn name(event: &mut Event, uid: Uid, pid: Pid, comm: &[u8]) {
    event.uid = Some(uid);
    event.pid = Some(pid);
    event.comm = Some(printable(comm, COMM_WIDTH));
}

/// Who asked for what was refused. Nobody of the account where a connection came in, or another user's program asked:
/// then it is about the account's user all the same.
fn name_asker(event: &mut Event, level: &Level, uid: Uid, pid: Pid, comm: &[u8]) {
    match pid.get() {
        0 => event.uid = level.account.uid(),
        _ => name(event, uid, pid, comm),
    }
}

fn describe(kind: EventKind, victim: &Victim, limit_table: &mut LimitTable) -> Event {
    let mut event = about(kind, &victim.level, limit_table);
    name(&mut event, victim.uid, victim.pid, &victim.comm);
    event.victim_bytes = Some(victim.held);
    event.latency_ns = Some(victim.latency);
    event.candidates_met = Some(victim.candidates_met);
    event.candidates = victim
        .candidates
        .iter()
        .map(|it| Candidate {
            spared: it.is_spared,
            ..Candidate::new(it.pid, printable(&it.comm, COMM_WIDTH), it.held)
        })
        .collect();
    event
}
