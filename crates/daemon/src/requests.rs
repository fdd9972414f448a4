// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is asked over the control socket, answered. Who asks is known from the kernel; root may ask
//! everything, others about themselves.

mod actor;
mod apply;
mod beancounters;
mod brief;
mod dirty;
mod history;
mod join;
mod ledger;
mod limits;
mod permission;
mod physpages;
mod preview;
mod remarks;
mod reservations;
mod status;
mod terms;
mod usage;
mod wait;
mod watermarks;
mod whose;

use bursar_model::Uid;
use bursar_protocol::{ErrorKind, LimitAndRowsChange, Operation, Refusal, Reply, Request, VERSION};

use self::permission::{Answer, failed, only_root, refusal};
use crate::control::{After, Requester, Socket};
use crate::daemon::Daemon;
use crate::usage::Kind;

pub(crate) use history::{may_see, own_names};
pub(crate) use ledger::checked as ledger_checked;
pub(crate) use usage::found as usage_found;

/// Answers one line; `None`: it will be answered later. Events made on the way are left for the daemon
/// to publish.
pub(crate) fn answer(
    daemon: &mut Daemon,
    requester: Requester,
    line: &[u8],
) -> Option<(Reply, After)> {
    let refused = |refusal: Refusal| Some((Reply::Refused(refusal), After::Ask));
    let request = match Request::from_line(line) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("this is not a valid request: {error}");
            return refused(refusal(ErrorKind::BadRequest, message));
        }
    };
    if request.version != VERSION {
        let message = format!(
            "this bursard speaks version {VERSION} of the protocol, the request version {}; use the \
             bursar that belongs to it",
            request.version
        );
        return refused(refusal(ErrorKind::BadRequest, message));
    }
    if requester.socket == Socket::Events && !matches!(request.ask, Operation::Stream { .. }) {
        let message = "events.sock tells events and answers nothing else; ask by bursar.sock";
        return refused(refusal(ErrorKind::NotPermitted, message));
    }
    let follows = matches!(request.ask, Operation::Events { follow: true, .. });
    match dispatch(daemon, requester, request.ask) {
        Ok(None) => None,
        Ok(Some(reply)) => {
            let follows = follows || matches!(&reply, Reply::Stream(page) if page.is_last);
            Some((reply, if follows { After::Follow } else { After::Ask }))
        }
        Err(refusal) => refused(refusal),
    }
}

/// Answers a request. `None`: the answer comes later.
fn dispatch(
    daemon: &mut Daemon,
    requester: Requester,
    operation: Operation,
) -> Result<Option<Reply>, Refusal> {
    let uid = requester.uid;
    let accounts = &mut daemon.accounts;
    let answer = match operation {
        Operation::Status { who } => status::status(daemon, requester, who.as_ref()),
        Operation::Quota => status::quota(daemon, requester),
        Operation::Brief => brief::brief(daemon, requester),
        Operation::Limits { who } => limits::show(accounts, uid, who.as_ref()),
        Operation::SetLimit(change) => limits::set(daemon, requester, change),
        Operation::ApplyLimits(asked) => apply::apply(daemon, requester, asked),
        Operation::Preview { file } => preview::preview(daemon, requester, file),
        Operation::SetRows(change) => beancounters::set(daemon, requester, None, change),
        Operation::SetLimitAndRows(LimitAndRowsChange { memory, rows }) => {
            beancounters::set(daemon, requester, Some(memory), rows)
        }
        Operation::Beancounters { who } => {
            let count = daemon.physpages.latest();
            let beancounters = &mut daemon.beancounters;
            beancounters::show(accounts, beancounters, count, requester, who.as_ref())
        }
        Operation::ClearLimit { who, force, terms } => {
            limits::clear(daemon, requester, who, force, &terms)
        }
        Operation::Events { since, .. } => {
            let history = daemon.responder.recorder.history();
            history::events(accounts, history, uid, since.as_deref())
        }
        Operation::Stream { after } => {
            let history = daemon.responder.recorder.history();
            history::stream(history, requester, after)
        }
        Operation::Why { pid, who } => {
            let history = daemon.responder.recorder.history();
            history::why(accounts, history, requester, pid, who.as_ref())
        }
        Operation::Dirty => dirty::show(accounts, uid),
        Operation::Enter { account } => join::enter(accounts, requester, &account),
        Operation::Reserve(ask) => {
            let may_reserve = daemon.admission.may_reserve;
            let reservations = &mut daemon.reservations;
            reservations::reserve(accounts, reservations, requester, &ask, may_reserve)
        }
        Operation::Commit { pages } => {
            reservations::commit(accounts, &mut daemon.reservations, requester, pages)
        }
        Operation::Renew(ask) => {
            reservations::renew(accounts, &mut daemon.reservations, requester, &ask)
        }
        Operation::RunKiller => run_killer(daemon, uid),
        Operation::CheckLedger => {
            return ledger::begin(accounts, &mut daemon.ledger_checker, requester).map(|()| None);
        }
        Operation::Watermarks => watermarks::show(accounts, &daemon.watermarks, uid),
        Operation::RestoreWatermarks => watermarks::restore(&daemon.watermarks, uid),
        Operation::Wait { at, follow } => {
            return wait::begin(daemon, requester, at, follow).map(|()| None);
        }
        Operation::Usage { who, since } => {
            let kind = Kind::Series;
            return usage::begin(daemon, requester, kind, who.as_ref(), since.as_deref())
                .map(|()| None);
        }
        Operation::UsageSummary { who, since } => {
            let kind = Kind::Summary;
            return usage::begin(daemon, requester, kind, who.as_ref(), since.as_deref())
                .map(|()| None);
        }
        Operation::Physpages { who, ticket } => {
            let physpages = &mut daemon.physpages;
            physpages::show(accounts, physpages, requester, who.as_ref(), ticket)
        }
    };
    answer.map(Some)
}

fn run_killer(daemon: &mut Daemon, uid: Uid) -> Answer {
    only_root(uid, "run the killer out of turn")?;
    let killed = |daemon: &Daemon| {
        let readings = daemon.accounts.backend.readings();
        readings
            .iter()
            .fold(0, |sum: u64, it| sum.saturating_add(it.kills))
    };
    let before = killed(daemon);
    daemon
        .accounts
        .backend
        .recount()
        .map_err(|error| failed(&error))?;
    daemon.attend_backend().map_err(|error| failed(&error))?;
    Ok(Reply::KillerRan {
        kills: killed(daemon).saturating_sub(before),
    })
}
