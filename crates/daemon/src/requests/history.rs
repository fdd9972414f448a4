// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has happened, for whoever may know.

use std::time::SystemTime;

use bursar_host::clock;
use bursar_model::{Event, EventKind, Pid, Uid};
use bursar_protocol::{ErrorKind, Reply};

use super::{Answer, refusal};
use crate::history::is_kill;
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
    // Reading the files takes long: for root, when memory does not reach back far enough.
    let found: Vec<Event> = if uid.get() == 0 && !history.remembers(&since) {
        history.stored(|event| event.time >= since)
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
    let own = own_account_name(steward, uid);
    let see = |event: &Event| may_see(event, uid, own.as_deref());
    let history = steward.recorder.history();
    let mut story = story(history.recent().filter(|event| see(event)), pid);
    // The last kill is always remembered, one before it may be in the files: for root, as above.
    if let (0, true, Some(_)) = (uid.get(), story.is_empty(), pid) {
        let of_it = history.stored(|event| event.pid == pid);
        story = self::story(of_it.iter(), pid);
    }
    Ok(Reply::Why(story))
}

/// The last kill, or the last of this process, and what came of it.
fn story<'a>(events: impl Iterator<Item = &'a Event>, pid: Option<Pid>) -> Vec<Event> {
    let mut story: Vec<Event> = Vec::new();
    for event in events {
        if is_kill(event) && pid.is_none_or(|pid| event.pid == Some(pid)) {
            story = vec![event.clone()];
        } else if let [kill] = story.as_slice()
            && event.event == EventKind::Reaped
            && event.pid == kill.pid
        {
            story.push(event.clone());
        }
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_story_is_of_the_last_kill_or_the_last_of_a_number() {
        let event = |kind, pid| {
            let mut event = Event::new(kind);
            event.pid = Some(Pid::new(pid));
            event
        };
        let events = [
            event(EventKind::Kill, 1),
            event(EventKind::Kill, 2),
            event(EventKind::Reaped, 1),
            event(EventKind::Reaped, 2),
            event(EventKind::Kill, 1),
        ];
        let told = |pid| story(events.iter(), pid);
        assert_eq!(told(None), events[4..]);
        assert_eq!(told(Some(Pid::new(1))), events[4..]);
        let of_two = [events[1].clone(), events[3].clone()];
        assert_eq!(told(Some(Pid::new(2))), of_two);
        assert_eq!(told(Some(Pid::new(3))), []);
    }
}
