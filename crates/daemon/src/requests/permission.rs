// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may ask what, and whom a request means.

use bursar_config::ConfigError;
use bursar_model::{AccountId, Uid, Who};
use bursar_policy::NameError;
use bursar_protocol::{ErrorKind, Refusal, Reply};

use crate::accounts::Accounts;
use crate::control::Requester;

pub(super) type Answer = Result<Reply, Refusal>;

pub(super) fn refusal(kind: ErrorKind, message: impl Into<String>) -> Refusal {
    Refusal {
        kind,
        reserved: None,
        message: message.into(),
    }
}

/// What an error of ours comes to.
pub(super) fn failed(error: &anyhow::Error) -> Refusal {
    refusal(ErrorKind::Failed, format!("{error:#}"))
}

/// What is wrong with files of limits comes to.
pub(super) fn config_refusal(error: &ConfigError) -> Refusal {
    let kind = match error {
        ConfigError::Invalid(_) => ErrorKind::BadRequest,
        ConfigError::Overridden { .. } => ErrorKind::Refused,
        _ => ErrorKind::Failed,
    };
    refusal(kind, error.to_string())
}

pub(super) fn only_root(uid: Uid, what: &str) -> Result<(), Refusal> {
    if uid.get() == 0 {
        return Ok(());
    }
    Err(refusal(
        ErrorKind::NotPermitted,
        format!("only root may {what}; you are uid {uid}"),
    ))
}

/// What the requester's process pays into.
pub(super) fn own_account(accounts: &Accounts, requester: Requester) -> Option<AccountId> {
    let payer = accounts.payer_of(requester);
    accounts.payers.of(payer).map(|(id, _)| id)
}

/// The requester as who pays for him.
pub(super) fn paying(accounts: &Accounts, requester: Requester) -> Requester {
    Requester {
        payer: accounts.payer_of(requester),
        ..requester
    }
}

/// Whether somebody may ask about WHO: root about all, others about themselves. Before anything is looked
/// up: a name that a user thinks of is no question that we put to a directory for him.
pub(super) fn permit(
    accounts: &mut Accounts,
    requester: Requester,
    own: Option<AccountId>,
    who: &Who,
    what: &str,
) -> Result<(), Refusal> {
    let uid = requester.uid;
    let is_own = match who {
        Who::Uid(it) => *it == uid,
        Who::User(name) => accounts.table.user_name(uid) == *name,
        Who::Group(_) | Who::Shared(_) | Who::Default => false,
    };
    let mut accounts = accounts.table.plan().accounts_of(who);
    if is_own || accounts.any(|id| Some(id) == own) {
        return Ok(());
    }
    only_root(uid, what)
}

/// The user that a name means. Whoever is not root was permitted to ask for he means himself, and has
/// nobody looked up.
pub(super) fn uid_meant(
    accounts: &mut Accounts,
    requester: Requester,
    name: &str,
) -> Result<Uid, Refusal> {
    if let Some(uid) = accounts.table.uid_in_plan(name) {
        return Ok(uid);
    }
    if requester.uid.get() != 0 {
        return Ok(requester.uid);
    }
    accounts.table.uid_of(name).map_err(|error| match error {
        NameError::Unknown => refusal(ErrorKind::NotFound, format!("there is no user {name:?}")),
        NameError::Unreachable(why) => refusal(
            ErrorKind::Failed,
            format!("the user {name:?} cannot be looked up now ({why}): ask again, or by uid"),
        ),
    })
}

/// The accounts that WHO means now.
pub(super) fn accounts_meant(
    accounts: &mut Accounts,
    requester: Requester,
    who: &Who,
) -> Result<Vec<AccountId>, Refusal> {
    let from_plan: Vec<AccountId> = accounts.table.plan().accounts_of(who).collect();
    if !from_plan.is_empty() {
        return Ok(from_plan);
    }
    let of_uid = |accounts: &Accounts, uid| accounts.of(uid).map(|id| vec![id]);
    let found = match who {
        Who::Uid(uid) => of_uid(accounts, *uid),
        Who::User(name) => {
            let uid = uid_meant(accounts, requester, name)?;
            of_uid(accounts, uid)
        }
        Who::Default => {
            let defaults = accounts
                .backend
                .readings()
                .into_iter()
                .filter(|it| it.is_default);
            Some(defaults.map(|it| it.id).collect())
        }
        Who::Group(_) | Who::Shared(_) => None,
    };
    found.ok_or_else(|| {
        let left_out = match (who, accounts.table.plan().default) {
            (Who::User(_) | Who::Uid(_), Some(_)) if requester.uid.get() == 0 => {
                format!(": default covers {} only", accounts.coverage())
            }
            _ => String::new(),
        };
        let message =
            format!("no limit concerns {who}{left_out}; set one with: bursar limit set {who} SIZE");
        refusal(ErrorKind::NotFound, message)
    })
}
