// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has happened, for whoever may know.

use std::time::SystemTime;

use bursar_host::clock;
use bursar_model::{Event, EventKind, Pid, Uid, Who};
use bursar_protocol::{ErrorKind, Reply};

use super::permission::Answer;
use super::permission::{only_root, refusal};
use super::whose::Whose;
use crate::accounts::Accounts;
use crate::briefings::Briefed;
use crate::control::Requester;
use crate::history::{History, is_kill};
use crate::recorder::KERNELS_OOM_KILLER;

/// Events that `bursar quota` shows.
const RECENT: usize = 3;

/// Whether a user may see an event: root all, others those of their own account (by its [`own_names`]) and their own
/// processes.
pub(crate) fn may_see(event: &Event, uid: Uid, own: &[String]) -> bool {
    let is_own = |account: &String| own.contains(account);
    uid.get() == 0 || event.uid == Some(uid) || event.account.as_ref().is_some_and(is_own)
}

/// What events call a user's account: by his number where his name was not known at the time. A number that somebody
/// else has for a name is that one's.
pub(crate) fn own_names(accounts: &mut Accounts, uid: Uid) -> Vec<String> {
    let account = accounts.of(uid).map(|id| accounts.name_of(id));
    let number = uid.to_string();
    let is_anothers = accounts.table.is_anothers(&number, uid);
    let all = account.into_iter().chain([number.clone()]);
    all.filter(|it| !is_anothers || *it != number).collect()
}

/// Who wants to know what has happened.
struct Viewer {
    uid: Uid,
    own: Vec<String>,
    /// What happened before happened to somebody else who had the number.
    since: Option<String>,
}

impl Viewer {
    fn new(accounts: &mut Accounts, uid: Uid) -> Self {
        Self {
            uid,
            own: own_names(accounts, uid),
            since: accounts.table.owner_since(uid).filter(|_| uid.get() != 0),
        }
    }

    fn sees(&self, event: &Event) -> bool {
        let is_of_his_time = self.since.as_ref().is_none_or(|since| event.time >= *since);
        is_of_his_time && may_see(event, self.uid, &self.own)
    }
}

pub(super) fn events(
    accounts: &mut Accounts,
    history: &History,
    uid: Uid,
    since: Option<&str>,
) -> Answer {
    let viewer = Viewer::new(accounts, uid);
    let see = |event: &Event| viewer.sees(event);
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

/// What happened to all, by its number.
pub(super) fn stream(history: &History, requester: Requester, after: Option<u64>) -> Answer {
    if !requester.hears_all() {
        only_root(requester.uid, "read the events of all")?;
    }
    let page = history.page_after(after.unwrap_or(u64::MAX));
    Ok(Reply::Stream(Box::new(page)))
}

/// What happened in the account that the requester pays into, as far as it may see that: oldest first.
fn own_events<'a>(
    accounts: &mut Accounts,
    history: &'a History,
    requester: Requester,
) -> impl DoubleEndedIterator<Item = &'a Event> {
    let payer = accounts.payer_of(requester);
    let own = accounts.payers.of(payer).map(|(id, _)| id);
    let own = own.map(|id| accounts.name_of(id));
    let viewer = Viewer::new(accounts, requester.uid);
    let names = names_of_payer(own, &viewer.own);
    history.recent().filter(move |event| {
        let account = event.account.as_ref();
        account.is_some_and(|it| names.contains(it)) && viewer.sees(event)
    })
}

/// What events call the account that a user pays into: one of his own by his number as well.
fn names_of_payer(account: Option<String>, own: &[String]) -> Vec<String> {
    match account {
        Some(name) if own.contains(&name) => own.to_vec(),
        account => account.into_iter().collect(),
    }
}

/// The last kills and refusals of the requester's own events.
pub(super) fn recent(
    accounts: &mut Accounts,
    history: &History,
    requester: Requester,
) -> Vec<Event> {
    let is_told = |event: &&Event| {
        let is_real = event.event != EventKind::WouldKill;
        is_kernels(event) || is_no_victim(event) || (is_kill(event) && is_real)
    };
    let last = own_events(accounts, history, requester)
        .rev()
        .filter(is_told);
    let mut last: Vec<Event> = last.take(RECENT).cloned().collect();
    last.reverse();
    last
}

/// The kills that the requester was not told of among his own events.
pub(super) fn kills_since(
    accounts: &mut Accounts,
    history: &History,
    requester: Requester,
    briefed: Option<&Briefed>,
) -> Vec<Event> {
    let now = clock::rfc3339(SystemTime::now());
    let last = history.next_number().saturating_sub(1);
    let briefed = briefed.filter(|it| !it.is_to_come(&now, last));
    let is_new = |event: &Event| briefed.is_none_or(|it| it.is_before(event));
    let own = own_events(accounts, history, requester);
    let kills = own.filter(|it| it.event == EventKind::Kill && is_new(it));
    kills.cloned().collect()
}

pub(super) fn why(
    accounts: &mut Accounts,
    history: &History,
    requester: Requester,
    pid: Option<Pid>,
    who: Option<&Who>,
) -> Answer {
    let uid = requester.uid;
    let whose = who
        .map(|who| Whose::new(accounts, requester, who))
        .transpose()?;
    let viewer = Viewer::new(accounts, uid);
    let is_asked_for = |event: &Event| match &whose {
        Some(whose) => whose.is_of(event),
        None => pid.is_none() || event.pid == pid,
    };
    // Who names nobody asks what happened last, whatever it was.
    let tell: fn(&Event) -> bool = if pid.is_none() {
        is_no_victim
    } else {
        |_| false
    };
    let is_seen = |event: &&Event| is_asked_for(event) && viewer.sees(event);
    let mut story = story(history.recent().filter(is_seen), tell);
    if story.is_empty() && pid.is_some() {
        // Whoever works in a container knows the number that it has there.
        let is_it = |event: &&Event| event.namespace_pid == pid && viewer.sees(event);
        let inside = history.recent().rfind(is_it).and_then(|it| it.pid);
        let is_its = |event: &&Event| inside.is_some() && event.pid == inside && viewer.sees(event);
        story = self::story(history.recent().filter(is_its), tell);
    }
    // The last kill of an account is remembered as long as there is room, one before it may be in the files, as may a
    // user's last in an account of several: for root, as above.
    let is_asked = pid.is_some() || whose.is_some();
    if uid.get() == 0 && is_asked && !story.iter().any(is_kill) && !history.remembers("") {
        let of_it = history.stored(is_asked_for);
        let told = self::story(of_it.iter(), tell);
        if story.is_empty() || told.iter().any(is_kill) {
            story = told;
        }
    }
    match whose {
        Some(whose) if story.is_empty() => whose.insist()?,
        _ => {}
    }
    // "None" would be more than is known. Of a process by its number the command says so itself.
    if story.is_empty() && uid.get() != 0 && pid.is_none() && history.lacks_kills() {
        let message = "no kill is recorded for you among what is remembered; an administrator can ask for what is older";
        return Err(refusal(ErrorKind::NotFound, message));
    }
    Ok(Reply::Why(story))
}

/// What has no kill and is an answer to who asks what happened to somebody: he got nothing, or nobody could
/// be killed.
fn is_no_victim(event: &Event) -> bool {
    matches!(event.event, EventKind::Refused | EventKind::NoVictim) && !is_kill(event)
}

/// The end of a victim of the kernel's own OOM killer; of nobody else's it follows a kill of ours.
fn is_kernels(event: &Event) -> bool {
    let reason = event.reason.as_deref().unwrap_or_default();
    event.event == EventKind::Reaped && reason.starts_with(KERNELS_OOM_KILLER)
}

/// The last kill and what came of it, and of what is to be told besides the last that came after it.
fn story<'a>(events: impl Iterator<Item = &'a Event>, is_told: fn(&Event) -> bool) -> Vec<Event> {
    let mut story: Vec<Event> = Vec::new();
    for event in events {
        if is_kill(event) || is_kernels(event) {
            story = vec![event.clone()];
        } else if event.event == EventKind::Reaped {
            let is_its = story.iter().any(|it| is_kill(it) && it.pid == event.pid);
            let has_end = story.iter().any(|it| it.event == EventKind::Reaped);
            if is_its && !has_end {
                story.push(event.clone());
            }
        } else if is_told(event) {
            story.retain(|it| !is_told(it));
            story.push(event.clone());
        }
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, pid: u32) -> Event {
        let mut event = Event::new(kind);
        event.pid = Some(Pid::new(pid));
        event
    }

    fn told(events: &[Event], is_told: fn(&Event) -> bool) -> Vec<EventKind> {
        let story = story(events.iter(), is_told);
        story.iter().map(|it| it.event).collect()
    }

    #[test]
    fn a_user_sees_events_of_his_uid_and_of_his_accounts_names() {
        let (uid, own) = (Uid::new(1001), ["alice".to_owned(), "1001".to_owned()]);
        let told = |account: Option<&str>, of: Option<u32>| {
            let mut event = event(EventKind::Kill, 1);
            event.account = account.map(str::to_owned);
            event.uid = of.map(Uid::new);
            event
        };
        let in_container = told(Some("alice"), Some(100_001));
        assert!(may_see(&in_container, uid, &own));
        assert!(may_see(&told(Some("=lab"), Some(1001)), uid, &own));
        // The account of somebody whose name is 1001, or hers.
        let numbered = told(Some("1001"), Some(5001));
        assert!(may_see(&numbered, uid, &own) && !may_see(&numbered, uid, &own[..1]));
        assert!(!may_see(&told(Some("=lab"), Some(5001)), uid, &own));
        assert!(!may_see(&told(None, None), uid, &own));
        assert!(may_see(&told(None, None), Uid::new(0), &[]));
    }

    #[test]
    fn a_kill_recorded_under_the_number_is_of_the_users_own_account_and_of_no_other() {
        let own = ["alice".to_owned(), "1001".to_owned()];
        let names = |account: &str| names_of_payer(Some(account.to_owned()), &own);
        assert_eq!(names("alice"), own);
        assert_eq!(names("1001"), own);
        assert_eq!(names("=lab"), ["=lab"]);
        assert!(names_of_payer(None, &own).is_empty());
    }

    #[test]
    fn the_story_is_of_the_last_kill() {
        let events = [
            event(EventKind::Kill, 1),
            event(EventKind::Kill, 2),
            event(EventKind::Reaped, 1),
            event(EventKind::Reaped, 2),
            event(EventKind::Refused, 3),
            event(EventKind::Kill, 1),
        ];
        let told = |events: &[Event]| story(events.iter(), |_| false);
        assert_eq!(told(&events), events[5..]);
        assert_eq!(told(&events[..5]), [events[1].clone(), events[3].clone()]);
        assert_eq!(told(&[]), []);
    }

    #[test]
    fn who_asks_about_somebody_is_told_where_nobody_could_be_killed() {
        use EventKind::{Kill, NoVictim, Notice, Reaped, Refused};
        let mut files = event(NoVictim, 0);
        files.files_bytes = Some(bursar_model::Bytes::from_mib(1));
        let no_victim = event(NoVictim, 0);
        let refused = event(Refused, 2);
        let kill = [event(Kill, 1), event(Reaped, 1)];
        let before = [no_victim.clone(), refused.clone(), event(Notice, 2)];
        assert_eq!(told(&before, is_no_victim), [Refused]);
        assert_eq!(told(&before, |_| false), []);
        let all = [&before[..], &kill].concat();
        assert_eq!(told(&all, is_no_victim), [Kill, Reaped]);
        let all = [&all[..], &[refused, no_victim]].concat();
        assert_eq!(told(&all, is_no_victim), [Kill, Reaped, NoVictim]);
        // What is over are files: a story of its own, without a kill.
        let all = [&all[..], &[files]].concat();
        assert_eq!(told(&all, is_no_victim), [NoVictim]);
    }
}
