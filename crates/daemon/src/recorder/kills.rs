// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kills, and those that would have been.

use bursar_host::{MemoryFiles, clock};
use bursar_model::{Bytes, Event, EventKind, ProgramGroup, Trigger, printable};

use super::files::{held_files, in_words};
use super::reaps::reaped_event;
use super::usage_event::{UsageEvent, UsageEventKind};
use super::{COMM_WIDTH, Recorder, describe, shared_name};
use crate::fact::{Level, Victim};
use crate::limit_table::LimitTable;
use crate::message::{Message, Reader, Subject};
use crate::programs::{CandidateFacts, Identity};

/// What is known of a kill besides what the backend tells.
#[derive(Debug, Default)]
pub(crate) struct Circumstances {
    pub(crate) identity: Identity,
    /// Of the candidates, as they stand in the victim.
    pub(crate) candidates: Vec<Option<CandidateFacts>>,
    /// Programs of which the account has several processes.
    pub(crate) programs: Vec<ProgramGroup>,
    /// What of the account is in files, where that is much, and which they are.
    pub(crate) files: Option<(Bytes, MemoryFiles)>,
}

impl Recorder {
    pub(crate) fn kill(
        &mut self,
        victim: &Victim,
        trigger: Trigger,
        reason: Option<String>,
        circumstances: Circumstances,
        limit_table: &mut LimitTable,
    ) -> (Event, Message) {
        let (mut event, files) = described(EventKind::Kill, victim, circumstances, limit_table);
        event.trigger = Some(trigger);
        let level = &victim.level;
        event.reason = Some(reason.unwrap_or_else(|| choice(victim)));
        let subject = Subject {
            owner: victim.uid,
            pid: victim.pid,
            comm: &printable(&victim.comm, COMM_WIDTH),
            held: victim.held,
            namespace_pid: event.namespace_pid,
            // Of its like the command line tells it apart.
            command: event.command.as_deref().filter(|_| has_likes(&event)),
        };
        let reader = Reader(shared_name(&event, level.account));
        let most = match &files {
            Some((bytes, which)) => Some(format!(
                "{bytes} of it are files in memory: remove some ({which})"
            )),
            None => pile(&event).map(|it| format!("most of it is {it}")),
        };
        let message = Message::kill(
            level.account,
            reader,
            &subject,
            [Some(level.held), level.limit],
            most.as_deref(),
        );
        self.usage_events
            .push(UsageEvent::new(level, UsageEventKind::Kill));
        let awaited = reaped_event(victim, limit_table);
        self.reaps.expect(victim.pid, awaited, victim.held, None);
        (self.record(event, level.at), message)
    }

    /// In an account that is only observed.
    pub(crate) fn would_kill(
        &mut self,
        victim: &Victim,
        circumstances: Circumstances,
        limit_table: &mut LimitTable,
    ) -> Event {
        let (mut event, _) = described(EventKind::WouldKill, victim, circumstances, limit_table);
        event.reason = Some(format!("observed, not killed: {}", choice(victim)));
        self.record(event, victim.level.at)
    }
}

/// What is told of a victim, and which of its files are much of what is held.
fn described(
    kind: EventKind,
    victim: &Victim,
    circumstances: Circumstances,
    limit_table: &mut LimitTable,
) -> (Event, Option<(Bytes, String)>) {
    let mut event = describe(kind, victim, limit_table);
    let Circumstances {
        identity,
        candidates,
        programs,
        files,
    } = circumstances;
    // Others of a shared account read its events.
    let is_own = victim.level.account.uid().is_some();
    event.command = identity.command.filter(|_| is_own);
    for (candidate, known) in event.candidates.iter_mut().zip(candidates) {
        if let Some(known) = known {
            known.complete(candidate, is_own);
        }
    }
    event.began = identity.began.map(clock::rfc3339);
    event.namespace_pid = victim.namespace_pid.or(identity.namespace_pid);
    event.programs = programs;
    let files = files.map(|(bytes, files)| {
        event.files_bytes = Some(bytes);
        event.files = held_files(&files);
        (bytes, in_words(&event.files, files.is_partial))
    });
    event.overcommit = overcommit(&victim.level);
    (event, files)
}

/// Why it was this one.
fn choice(victim: &Victim) -> String {
    if let Some(chosen) = victim.shares_with {
        return format!("it shares the memory of process {chosen}, which was chosen");
    }
    match victim.candidates_met {
        0 | 1 => "the account's only process".to_owned(),
        several => format!("the largest of the account's {several} processes"),
    }
}

/// Whether the account had other processes with the victim's name.
fn has_likes(event: &Event) -> bool {
    let comm = event.comm.as_deref();
    let is_it = |it: &&str| Some(*it) == comm;
    let weighed = event.candidates.iter().map(|it| it.comm.as_str());
    let grouped = event.programs.iter().map(|it| it.comm.as_str());
    weighed.filter(is_it).count() > 1 || grouped.filter(is_it).count() > 0
}

/// Many of one program that hold more than the victim and half of the account: `120 × sync-job, 254 MiB`.
fn pile(event: &Event) -> Option<String> {
    let pile = event.programs.first()?;
    let held = event.held?.get();
    let is_most = pile.bytes.get().saturating_mul(2) > held
        && event.victim_bytes.is_some_and(|it| pile.bytes > it);
    is_most.then(|| format!("{} × {}, {}", pile.count, pile.comm, pile.bytes))
}

/// Who was asked before may be killed without a limit: for the notice.
fn overcommit(level: &Level) -> Option<Bytes> {
    level.limit.map(|limit| level.held.saturating_sub(limit))
}

#[cfg(test)]
mod tests {
    use bursar_model::{AccountId, Nanos, Uid};

    use super::*;

    #[test]
    fn nobody_is_over_a_limit_that_there_is_not() {
        let level = |limit| Level {
            at: Nanos::new(0),
            account: AccountId::of(Uid::new(60001)),
            trigger: Trigger::Notifier,
            held: Bytes::from_mib(950),
            limit,
            is_observed: false,
        };
        assert_eq!(
            overcommit(&level(Some(Bytes::from_mib(1000)))),
            Some(Bytes::ZERO)
        );
        assert_eq!(overcommit(&level(None)), None);
    }
}
