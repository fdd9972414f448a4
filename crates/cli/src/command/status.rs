// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar status`.

use std::cell::RefCell;

use bursar_host::Users;
use bursar_model::{Uid, Who};
use bursar_protocol::{ErrorKind, Operation, Reply};
use clap::Args;

use crate::caller::{Caller, Role};
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::view;
use crate::whose::insist_on_group;

/// Show the accounts, the fullest first
///
/// The bar is what is held of the limit; the stroke in it is the notice level. MAX is the most ever
/// held, FAILCNT counts requests refused and processes killed (beancounters' failcnt), KILLS the processes killed. An ordinary
/// user sees his own account.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Whose account; without it, all
    who: Option<Who>,
    #[command(flatten)]
    of_user: OfUser,
    /// What each user's programs were promised (overcommit), against what the machine has
    #[arg(long, conflicts_with_all = ["who", "user"])]
    commit: bool,
}

impl Status {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let who = self.of_user.or(self.who.as_ref());
        if self.commit {
            return commit(caller);
        }
        let asked = Operation::Status { who: who.clone() };
        let status = match (caller.connect()?.ask(asked)?, &who) {
            (Reply::Status(status), _) => status,
            (Reply::Refused(refusal), Some(who)) if refusal.kind == ErrorKind::NotFound => {
                insist_on_group(who)?;
                return Err(refusal.into());
            }
            (Reply::Refused(refusal), _) => return Err(refusal.into()),
            _ => return Err(Failure::off_topic()),
        };
        caller.answer(&*status, |status| {
            view::status::status(status, who.as_ref(), caller.role, &caller.style)
        })
    }
}

/// Asks this machine: no daemon is needed to see what was promised.
fn commit(caller: &Caller) -> Result<(), Failure> {
    let own = Uid::new(rustix::process::getuid().as_raw());
    let found = bursar_faults::overcommit::overcommit(match caller.role {
        Role::Root => None,
        Role::User => Some(own),
    })?;
    let users = RefCell::new(Users::new(1024));
    let name = |uid: u32| {
        let user = users.borrow_mut().by_uid(Uid::new(uid)).found();
        user.map_or_else(|| uid.to_string(), |user| user.name)
    };
    caller.answer(&found, |found| {
        view::commit::commit(found, &name, &caller.style)
    })
}
