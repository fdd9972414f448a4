// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has happened, for whoever may know.

use std::time::SystemTime;

use bursar_host::clock;
use bursar_model::{Event, EventKind, Pid, Uid};
use bursar_protocol::{ErrorKind, Reply};

use super::{Answer, refusal};
use crate::steward::Steward;

/// Whether a user may see an event: root all, others those of their own account and their own processes.
pub(crate) fn may_see(event: &Event, uid: Uid, account: Option<&str>) -> bool {
    let told_of = event.account.as_deref();
    // By his number where his name was not known at the time.
    let is_his = || told_of.is_some_and(|it| it.parse() == Ok(uid.get()));
    let is_of_account = account.is_some() && told_of == account;
    uid.get() == 0 || event.uid == Some(uid) || is_of_account || is_his()
}

fn own_account_name(steward: &mut Steward, uid: Uid) -> Option<String> {
    let (id, _) = steward.payers().of(uid)?;
    Some(steward.roster.name_of(id).0)
}

pub(super) fn events(steward: &mut Steward, uid: Uid, since: Option<&str>) -> Answer {
    let own = own_account_name(steward, uid);
    let see = |event: &Event| may_see(event, uid, own.as_deref());
    let history = steward.recorder.history();
    let Some(since) = since else {
        return Ok(Reply::Events(
            history
                .recent()
                .filter(|event| see(event))
                .cloned()
                .collect(),
        ));
    };
    let moment = clock::parse_since(since, SystemTime::now())
        .map_err(|error| refusal(ErrorKind::BadRequest, error.to_string()))?;
    let since = clock::rfc3339(moment);
    let is_remembered = history
        .recent()
        .next()
        .is_some_and(|oldest| oldest.time <= since);
    // Reading the files takes long: for root, when memory does not reach back far enough.
    let found: Vec<Event> = if uid.get() == 0 && !is_remembered {
        history.all_since(&since)
    } else {
        history
            .recent()
            .filter(|event| event.time >= since && see(event))
            .cloned()
            .collect()
    };
    Ok(Reply::Events(found))
}

pub(super) fn why(steward: &mut Steward, uid: Uid, pid: Option<Pid>) -> Answer {
    let is_kill = |event: &Event| {
        matches!(
            event.event,
            EventKind::Kill | EventKind::KillFailed | EventKind::WouldKill
        ) || (event.event == EventKind::NoVictim && event.files_bytes.is_some())
    };
    let own = own_account_name(steward, uid);
    let see = |event: &Event| may_see(event, uid, own.as_deref());
    let history = steward.recorder.history();
    let mut story: Vec<Event> = Vec::new();
    for event in history.recent().filter(|event| see(event)) {
        if is_kill(event) && pid.is_none_or(|pid| event.pid == Some(pid)) {
            story = vec![event.clone()];
        } else if let Some(kill) = story.first()
            && event.event == EventKind::Reaped
            && event.pid == kill.pid
            && story.len() == 1
        {
            story.push(event.clone());
        }
    }
    Ok(Reply::Why(story))
}
