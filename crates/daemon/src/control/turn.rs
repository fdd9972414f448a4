// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection's turn: its lines are answered, and its user is charged for that. Whose turn it is says
//! `scheduler.rs`.

use std::time::Duration;

use bursar_model::AccountId;
use bursar_protocol::Reply;
use bursar_watchdog::time_waited;

use super::line::to_line;
use super::requester::Requester;
use super::{Control, moment, own_time};

/// One connection is answered for so long before others are.
const TURN: Duration = Duration::from_micros(100);
/// A turn that lasts longer has waited, and not for a processor.
const LONG: Duration = Duration::from_millis(10);

/// What becomes of a connection after a line was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It may ask again.
    Ask,
    /// It gets events from now on.
    Follow,
}

/// A connection's turn: its lines are answered until [`TURN`] is over.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) requester: Requester,
    /// Our processor time when it began.
    began: Duration,
    /// How long we had waited for processes by then.
    waited: Duration,
    since: Duration,
}

impl Control {
    /// Whose turn it is.
    pub(crate) fn next(&mut self) -> Option<Turn> {
        self.resume_listeners();
        let now = moment();
        let id = self.scheduler.next(now)?;
        let client = self.clients.get_mut(&id)?;
        client.is_waiting = false;
        Some(Turn {
            requester: Requester {
                client: id,
                uid: client.uid,
                pid: client.pid,
                payer: AccountId::of(client.payer),
                counts_as: client.counts_as,
                socket: client.socket,
            },
            began: own_time(),
            waited: time_waited(),
            since: now,
        })
    }

    /// The line that is to be answered now.
    pub(crate) fn line_of(&mut self, turn: &Turn) -> Option<Vec<u8>> {
        let client = self.clients.get_mut(&turn.requester.client)?;
        if moment().saturating_sub(turn.since) > TURN || client.has_much_to_say() {
            return None;
        }
        let (line, is_cut) = client.take_line();
        self.cut = self.cut.saturating_add(is_cut.into());
        line
    }

    /// What is answered; no reply: it comes later.
    pub(crate) fn answer(&mut self, turn: &Turn, reply: Option<(Reply, After)>) {
        let Some(client) = self.clients.get_mut(&turn.requester.client) else {
            return;
        };
        match reply {
            Some((reply, after)) => {
                client.is_following |= after == After::Follow;
                client.send(&to_line(&reply));
            }
            // Whoever has hung up already hears no late answer, and nothing would tell us so later.
            None if client.is_watched_no_more => self.end(turn.requester.client),
            None => client.is_owed = true,
        }
    }

    /// Sends the answers, and charges the user for them.
    pub(crate) fn end_turn(&mut self, turn: &Turn) {
        let Requester {
            client, counts_as, ..
        } = turn.requester;
        self.flush(client);
        self.charge(&[counts_as], turn.began);
        // Who has us wait for a process pays for that, too. Nobody pays for our waiting for a processor.
        let waited = time_waited().saturating_sub(turn.waited);
        let waited = waited.saturating_sub(LONG);
        self.scheduler.charge(counts_as, waited, moment());
    }
}
