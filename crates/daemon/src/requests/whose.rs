// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Of whom something is asked: by the name of the account, and by the user who was in it.

use bursar_model::{Event, Subject, Who};
use bursar_protocol::{ErrorKind, Refusal};

use super::permission::{permit, refusal, uid_meant};
use crate::accounts::Accounts;
use crate::control::Requester;

/// One user, or one shared account.
#[derive(Debug)]
pub(super) struct Whose {
    subject: Subject,
    /// What to answer where no event is of him: nobody has that name.
    unknown: Option<Refusal>,
}

impl Whose {
    /// Root may ask about all, others about themselves, the account they pay into and those they may enter.
    /// Somebody who is no user any more is known by the name that the events have.
    pub(super) fn new(
        accounts: &mut Accounts,
        requester: Requester,
        who: &Who,
    ) -> Result<Self, Refusal> {
        if matches!(who, Who::Group(_) | Who::Default) {
            let message = format!(
                "what happened, happened to an account, and {who} is none: name a user, or a shared account \
                 (=name)"
            );
            return Err(refusal(ErrorKind::BadRequest, message));
        }
        let may_enter = accounts.table.granted(who);
        if !may_enter.is_some_and(|users| users.contains(&requester.uid)) {
            let own = accounts.payers.of(requester.uid).map(|(id, _)| id);
            permit(accounts, requester, own, who, "see what happened to others")?;
        }
        let subject = Subject::named(who);
        let found = match who {
            Who::Uid(uid) => Ok(*uid),
            Who::User(name) => uid_meant(accounts, requester, name),
            Who::Shared(_) | Who::Group(_) | Who::Default => {
                return Ok(Self {
                    subject,
                    unknown: None,
                });
            }
        };
        Ok(match found {
            Ok(uid) => Self {
                subject: subject.user(uid, &accounts.table.user_name(uid)),
                unknown: None,
            },
            Err(error) => Self {
                subject,
                unknown: Some(error),
            },
        })
    }

    /// A name mistyped is not the same as one of whom nothing is to be told.
    pub(super) fn insist(self) -> Result<(), Refusal> {
        self.unknown.map_or(Ok(()), Err)
    }

    /// Him, for those who look for something else than events.
    pub(super) const fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Whether it is about him.
    pub(super) fn is_of(&self, event: &Event) -> bool {
        self.subject.is_of(event)
    }
}
