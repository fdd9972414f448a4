// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of whom something is asked: by the name of the account, and by the user who was in it.

use bursar_model::{Event, Uid, Who};
use bursar_protocol::{ErrorKind, Refusal};

use super::{permit, refusal, uid_meant};
use crate::control::Asker;
use crate::steward::Steward;

/// One user, or one shared account.
#[derive(Debug)]
pub(super) struct Whose {
    /// What his account may be called.
    names: Vec<String>,
    /// In whatever account.
    uid: Option<Uid>,
    /// What to answer where no event is of him: nobody has that name.
    unknown: Option<Refusal>,
}

impl Whose {
    /// Root may ask about all, others about themselves, the account they pay into and those they may enter.
    /// Somebody who is no user any more is known by the name that the events have.
    pub(super) fn new(steward: &mut Steward, asker: Asker, who: &Who) -> Result<Self, Refusal> {
        let mut whose = Self {
            names: vec![who.to_string()],
            uid: None,
            unknown: None,
        };
        if matches!(who, Who::Group(_) | Who::Default) {
            let message = format!(
                "what happened, happened to an account, and {who} is none: name a user, or a shared account \
                 (=name)"
            );
            return Err(refusal(ErrorKind::BadRequest, message));
        }
        let may_enter = steward.roster.granted(who);
        if !may_enter.is_some_and(|users| users.contains(&asker.uid)) {
            let own = steward.payers().of(asker.uid).map(|(id, _)| id);
            permit(steward, asker, own, who, "see what happened to others")?;
        }
        match who {
            Who::Uid(uid) => {
                whose.uid = Some(*uid);
                whose.names.push(steward.roster.user_name(*uid));
            }
            Who::User(name) => match uid_meant(steward, asker, name) {
                Ok(uid) => {
                    whose.uid = Some(uid);
                    whose.names.push(uid.to_string());
                }
                Err(error) => whose.unknown = Some(error),
            },
            Who::Shared(_) | Who::Group(_) | Who::Default => {}
        }
        Ok(whose)
    }

    /// A name mistyped is not the same as one of whom nothing is to be told.
    pub(super) fn insist(self) -> Result<(), Refusal> {
        self.unknown.map_or(Ok(()), Err)
    }

    /// Whether it is about him.
    pub(super) fn is_of(&self, event: &Event) -> bool {
        let is_called = |account: &String| self.names.contains(account);
        event.account.as_ref().is_some_and(is_called)
            || (self.uid.is_some() && event.uid == self.uid)
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::EventKind;

    use super::*;

    #[test]
    fn a_user_is_meant_in_his_own_account_by_name_or_number_and_in_others() {
        let alice = Whose {
            names: vec!["alice".into(), "60001".into()],
            uid: Some(Uid::new(60_001)),
            unknown: None,
        };
        let lab = Whose {
            names: vec!["=lab".into()],
            uid: None,
            unknown: None,
        };
        let table = [
            (Some("alice"), Some(60_001), true, false),
            (Some("60001"), None, true, false),
            (Some("=lab"), Some(60_001), true, true),
            (Some("=lab"), Some(60_002), false, true),
            (Some("lab"), Some(60_002), false, false),
            (None, None, false, false),
        ];
        for (account, uid, is_alices, is_labs) in table {
            let mut event = Event::new(EventKind::Kill);
            event.account = account.map(str::to_owned);
            event.uid = uid.map(Uid::new);
            assert_eq!(
                (alice.is_of(&event), lab.is_of(&event)),
                (is_alices, is_labs),
                "{event:?}"
            );
        }
    }
}
