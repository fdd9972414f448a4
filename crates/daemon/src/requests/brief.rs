// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user is to know at a login, in short.

use bursar_model::{AccountKind, Candidate, Event};
use bursar_protocol::{Brief, Reply};

use super::history;
use super::permission::Answer;
use crate::briefings::Briefed;
use crate::control::Requester;
use crate::daemon::Daemon;

/// Of whoever asks; kills are told once.
pub(super) fn brief(daemon: &mut Daemon, requester: Requester) -> Answer {
    let accounts = &mut daemon.accounts;
    let payer = accounts.payer_of(requester);
    let Some((id, bounds)) = accounts.payers.of(payer) else {
        return Ok(Reply::Brief(Box::default()));
    };
    let (name, kind) = accounts.table.name_of(id);
    let held = accounts.reading_of(id).map(|it| it.held);
    let briefed = daemon.briefings.last(requester.uid);
    let history = daemon.responder.recorder.history();
    let kills = history::kills_since(accounts, history, requester, briefed.as_ref());
    let last = kills.last();
    // Not of the uids that a user has within his containers: they are told again, and leave nothing on the disk.
    if let Some(briefed) = Briefed::up_to(&kills)
        && requester.uid == requester.counts_as
        && let Err(error) = daemon.briefings.told(requester.uid, &briefed)
    {
        // He is told once more, and can have this happen as often as he likes.
        let uid = requester.uid.get();
        tracing::debug!(uid, %error, "that a user was told of kills could not be written down");
    }
    Ok(Reply::Brief(Box::new(Brief {
        shared: (kind == AccountKind::Shared).then_some(name),
        held: held.unwrap_or_default(),
        limit: bounds.enforced_limit(),
        kills: u64::try_from(kills.len()).unwrap_or(u64::MAX),
        last: last.and_then(victim),
    })))
}

fn victim(kill: &Event) -> Option<Candidate> {
    Some(Candidate::new(
        kill.pid?,
        kill.comm.clone()?,
        kill.victim_bytes.unwrap_or_default(),
    ))
}
