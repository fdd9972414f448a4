// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of whom something is told: by the name of the account, and by the user who was in it.

use crate::{AccountId, Event, Uid, Who};

/// One user, or one shared account. Who finds out what they are called decides what an unknown name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// What the account may be called.
    names: Vec<String>,
    /// In whatever account.
    uid: Option<Uid>,
}

impl Subject {
    /// Known by the name that was asked for: enough for a shared account, and for somebody who is no user any
    /// more but whom events name.
    pub fn named(who: &Who) -> Self {
        Self {
            names: vec![who.to_string()],
            uid: match who {
                Who::Uid(uid) => Some(*uid),
                Who::User(_) | Who::Shared(_) | Who::Group(_) | Who::Default => None,
            },
        }
    }

    /// A user is called by his name in one event and by his number in another.
    #[must_use]
    pub fn user(mut self, uid: Uid, name: &str) -> Self {
        self.uid = Some(uid);
        self.names.extend([uid.to_string(), name.to_owned()]);
        self
    }

    /// The user, where one is meant who is known by number.
    pub const fn uid(&self) -> Option<Uid> {
        self.uid
    }

    /// Whether an account that was called so is meant. A user's by his number too, while his name was not known; not
    /// that of somebody else who had the number.
    pub fn is_account(&self, id: AccountId, name: &str) -> bool {
        let is_called = self.names.iter().any(|it| it == name);
        let is_unnamed = || id.uid().is_some_and(|uid| name == uid.to_string());
        is_called || (self.uid.is_some() && id.uid() == self.uid && is_unnamed())
    }

    /// Whether it is about him.
    pub fn is_of(&self, event: &Event) -> bool {
        let is_called = |account: &String| self.names.contains(account);
        event.account.as_ref().is_some_and(is_called)
            || (self.uid.is_some() && event.uid == self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventKind;

    #[test]
    fn a_user_is_meant_in_his_own_account_by_name_or_number_and_in_others() {
        let alice_is = Uid::new(60_001);
        let named = |who: &str| Subject::named(&who.parse().unwrap());
        let alice = named("alice").user(alice_is, "alice");
        let number = named("60001").user(alice_is, "alice");
        let (lab, former) = (named("=lab"), named("alice"));
        let table = [
            (Some("alice"), Some(60_001), [true, true, false, true]),
            (Some("60001"), None, [true, true, false, false]),
            (Some("=lab"), Some(60_001), [true, true, true, false]),
            (Some("=lab"), Some(60_002), [false, false, true, false]),
            (Some("lab"), Some(60_002), [false, false, false, false]),
            (None, None, [false, false, false, false]),
        ];
        for (account, uid, expected) in table {
            let mut event = Event::new(EventKind::Kill);
            event.account = account.map(str::to_owned);
            event.uid = uid.map(Uid::new);
            let found = [&alice, &number, &lab, &former].map(|subject| subject.is_of(&event));
            assert_eq!(found, expected, "{event:?}");
        }
    }
}
