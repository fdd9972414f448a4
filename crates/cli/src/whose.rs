// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose events are asked for: by the name of the account, and by the user who was in it.

use bursar_host::{Lookup, Users};
use bursar_model::{Event, Uid, Who};

use crate::failure::Failure;

/// One user, or one shared account.
#[derive(Debug)]
pub(crate) struct Whose {
    /// What his account may be called.
    names: Vec<String>,
    /// In whatever account.
    uid: Option<Uid>,
    /// For sure no user of today.
    is_unknown: bool,
}

impl Whose {
    /// Somebody who is no user any more is known by the name that the events have.
    ///
    /// # Errors
    /// What is no account.
    pub(crate) fn new(who: &Who, users: &mut Users) -> Result<Self, Failure> {
        let mut names = vec![who.to_string()];
        let mut is_unknown = false;
        let uid = match who {
            Who::Uid(uid) => {
                if let Lookup::Found(user) = users.by_uid(*uid) {
                    names.push(user.name);
                }
                Some(*uid)
            }
            Who::User(name) => match users.by_name(name) {
                Lookup::Found(user) => {
                    names.push(user.uid.to_string());
                    Some(user.uid)
                }
                Lookup::Absent => {
                    is_unknown = true;
                    None
                }
                Lookup::Unavailable(_) => None,
            },
            Who::Shared(_) => None,
            Who::Group(_) | Who::Default => {
                return Err(Failure::usage(format!(
                    "events are of accounts, and {who} is none: name a user, a uid or a shared account (=name)"
                )));
            }
        };
        Ok(Self {
            names,
            uid,
            is_unknown,
        })
    }

    /// A name mistyped is not the same as one of whom nothing is to be told.
    ///
    /// # Errors
    /// Where no user has that name.
    pub(crate) fn insist(&self) -> Result<(), Failure> {
        match self.names.first() {
            Some(name) if self.is_unknown => Err(Failure::usage(format!(
                "there is no user {name}, and no event names one"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether it is about him.
    pub(crate) fn is_of(&self, event: &Event) -> bool {
        let is_called = |account: &String| self.names.contains(account);
        event.account.as_ref().is_some_and(is_called)
            || (self.uid.is_some() && event.uid == self.uid)
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
        assert!(whose.insist().is_err());
        for known in ["root", "60999", "=lab"] {
            let known = Whose::new(&known.parse().unwrap(), &mut Users::new(8));
            assert!(known.is_ok_and(|known| known.insist().is_ok()));
        }
    }

    #[test]
    fn a_shared_account_is_meant_with_all_its_users() {
        let whose = whose("=lab");
        assert!(whose.is_of(&of(Some("=lab"), Some(60_001))));
        assert!(!whose.is_of(&of(Some("lab"), Some(60_001))));
    }

    #[test]
    fn what_is_no_account_has_no_events() {
        for who in ["@staff", "default"] {
            let who = who.parse().unwrap();
            assert!(Whose::new(&who, &mut Users::new(8)).is_err(), "{who}");
        }
    }
}
