// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose events are asked for: by the name of the account, and by the user who was in it.

use bursar_host::{Lookup, Users};
use bursar_model::{Event, Subject, Uid, Who};
use bursar_protocol::{ErrorKind, Operation, Reply};

use crate::caller::Caller;
use crate::failure::{Code, Failure};

/// One user, or one shared account.
#[derive(Debug)]
pub(crate) struct Whose {
    subject: Subject,
    /// For sure no user of today: the name that was asked for.
    unknown: Option<String>,
}

impl Whose {
    /// Somebody who is no user any more is known by the name that the events have.
    ///
    /// # Errors
    /// What is no account.
    pub(crate) fn new(who: &Who, users: &mut Users) -> Result<Self, Failure> {
        let found = match who {
            Who::Uid(uid) => users.by_uid(*uid),
            Who::User(name) => users.by_name(name),
            Who::Shared(_) => Lookup::Absent,
            Who::Group(_) | Who::Default => {
                return Err(Failure::usage(format!(
                    "events are of accounts, and {who} is none: name a user, a uid or a shared account (=name)"
                )));
            }
        };
        let subject = Subject::named(who);
        let (subject, unknown) = match (found, who) {
            (Lookup::Found(user), _) => (subject.user(user.uid, &user.name), None),
            (Lookup::Absent, Who::User(name)) => (subject, Some(name.clone())),
            (Lookup::Absent | Lookup::Unavailable(_), _) => (subject, None),
        };
        Ok(Self { subject, unknown })
    }

    /// Where nothing is to be told: a name mistyped is not the same as one of whom nothing is recorded, and
    /// others' is not the same as nothing.
    ///
    /// # Errors
    /// Where no user has that name, or the caller may not ask about this one.
    pub(crate) fn insist(&self, caller: Uid) -> Result<(), Failure> {
        let is_own = self.subject.uid() == Some(caller);
        let is_shared = self.unknown.is_none() && self.subject.uid().is_none();
        if caller.get() != 0 && !is_own && !is_shared {
            let message =
                format!("only root may see what happened to others; you are uid {caller}");
            return Err(Failure::Wrong(Code::NotPermitted, message));
        }
        match &self.unknown {
            Some(name) => Err(Failure::failed(format!(
                "there is no user {name:?}, and nothing recorded names one"
            ))),
            None => Ok(()),
        }
    }

    /// Whether it is about him.
    pub(crate) fn is_of(&self, event: &Event) -> bool {
        self.subject.is_of(event)
    }
}

/// Where nothing is of the members of a group: one mistyped is not the same as one that no limit concerns.
///
/// # Errors
/// Where there is no such group.
pub(crate) fn insist_on_group(who: &Who) -> Result<(), Failure> {
    match who {
        Who::Group(name) if is_absent(name) => Err(Failure::failed(format!(
            "there is no group {name:?}; check the name (getent group)"
        ))),
        _ => Ok(()),
    }
}

/// Where nothing is told of a shared account: one that has neither an entry nor a group does not exist. What is not
/// known for sure, for the caller may not ask or bursard has gone, is no error.
///
/// # Errors
/// Where there is no such account.
pub(crate) fn insist_on_shared(who: &Who, caller: &Caller) -> Result<(), Failure> {
    match who {
        Who::Shared(name) if is_absent(name) && has_no_entry(who, caller) => Err(Failure::failed(
            format!("there is no shared account {who}, and nothing recorded names one"),
        )),
        _ => Ok(()),
    }
}

fn is_absent(group: &str) -> bool {
    matches!(Users::new(1).group(group), Lookup::Absent)
}

fn has_no_entry(who: &Who, caller: &Caller) -> bool {
    let asked = Operation::Limits {
        who: Some(who.clone()),
    };
    let reply = caller.connect().map(|mut it| it.ask(asked));
    match reply {
        Ok(Ok(Reply::Refused(refusal))) => refusal.kind == ErrorKind::NotFound,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::EventKind;

    use super::*;

    fn whose(who: &str) -> Whose {
        let who = who.parse().unwrap();
        Whose::new(&who, &mut Users::new(8)).unwrap_or_else(|_| panic!("{who}"))
    }

    fn of(account: Option<&str>, uid: Option<u32>) -> Event {
        let mut event = Event::new(EventKind::Kill);
        event.account = account.map(str::to_owned);
        event.uid = uid.map(Uid::new);
        event
    }

    #[test]
    fn a_user_is_meant_by_name_and_number_in_his_own_account_and_in_others() {
        for who in ["root", "0"] {
            let whose = whose(who);
            assert!(whose.is_of(&of(Some("root"), None)), "{who}");
            assert!(whose.is_of(&of(Some("0"), None)), "{who}");
            assert!(whose.is_of(&of(Some("=lab"), Some(0))), "{who}");
            assert!(!whose.is_of(&of(Some("=lab"), Some(60_001))), "{who}");
            assert!(!whose.is_of(&of(None, None)), "{who}");
        }
    }

    #[test]
    fn who_has_been_deleted_is_known_by_what_the_events_call_him() {
        let whose = whose("nobody-here-has-this-name");
        assert!(whose.is_of(&of(Some("nobody-here-has-this-name"), Some(60_001))));
        assert!(!whose.is_of(&of(Some("root"), None)));
        assert!(!whose.is_of(&of(None, None)));
    }

    #[test]
    fn where_nothing_is_told_the_reason_is() {
        let code = |who: &str, caller: u32| match whose(who).insist(Uid::new(caller)) {
            Ok(()) => 0,
            Err(Failure::Wrong(code, _)) => code as u8,
            Err(other) => panic!("{other:?}"),
        };
        let nobody = "nobody-here-has-this-name";
        let table = [
            ("root", 0, 0),
            ("60999", 0, 0),
            ("=lab", 0, 0),
            (nobody, 0, Code::Failed as u8),
            ("60999", 60_999, 0),
            ("=lab", 60_999, 0),
            ("root", 60_999, Code::NotPermitted as u8),
            ("60998", 60_999, Code::NotPermitted as u8),
            // Whether others exist is not told either.
            (nobody, 60_999, Code::NotPermitted as u8),
        ];
        for (who, caller, expected) in table {
            assert_eq!(code(who, caller), expected, "{caller} about {who}");
        }
    }

    #[test]
    fn what_is_no_account_has_no_events() {
        for who in ["@staff", "default"] {
            let who = who.parse().unwrap();
            assert!(Whose::new(&who, &mut Users::new(8)).is_err(), "{who}");
        }
    }
}
