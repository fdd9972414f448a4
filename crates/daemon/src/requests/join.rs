// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who enters a shared account, and who is in one: `bursar run --account =NAME`.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use bursar_host::{Pidfd, Status};
use bursar_model::{AccountId, Bounds, Uid, Who};
use bursar_protocol::{ErrorKind, Refusal, Reply};

use super::permission::{Answer, failed, refusal};
use crate::accounts::Accounts;
use crate::backend::{KernelFeatures, Reading};
use crate::control::Requester;

/// Makes the requester's process, and all it begets, pay into `who` for good.
pub(super) fn enter(accounts: &mut Accounts, requester: Requester, who: &Who) -> Answer {
    if !matches!(who, Who::Shared(_)) {
        let message = format!("{who} cannot be entered: only shared accounts can, written =NAME");
        return Err(refusal(ErrorKind::BadRequest, message));
    }
    let permitted = permission(accounts, requester.uid, who)?;
    let id = accounts.table.plan().accounts_of(who).next();
    let id = id.ok_or_else(|| {
        let message = format!(
            "{who} is in limits.toml and no account: there is no Unix group of this name; add granted = [] \
             to its entry, so that it needs none"
        );
        refusal(ErrorKind::NotFound, message)
    })?;
    let cannot = |error: &dyn std::fmt::Display| {
        let message = format!("process {} cannot enter {who}: {error}", requester.pid);
        refusal(ErrorKind::Failed, message)
    };
    let pidfd = Pidfd::open(requester.pid).map_err(|error| cannot(&error))?;
    let pidfd = pidfd.ok_or_else(|| cannot(&"it has ended"))?;
    let status = accounts.status_of(requester);
    // A directory of /proc looked up while another thread executes belongs to that thread's number and vanishes
    // with it (proc_pid_lookup() beside exchange_tids()), though the process lives.
    let Some(status) = status else {
        return Err(has_threads(requester, who));
    };
    // The number may have changed hands since the connection was made; then to somebody else's, or to
    // another process of the same user, who could have entered it himself.
    if status.uid != requester.uid {
        let message = format!(
            "process {} is not, or not only, a process of uid {}: only its own user can enter it",
            requester.pid, requester.uid
        );
        return Err(refusal(ErrorKind::NotPermitted, message));
    }
    let kernel = accounts.backend.kernel();
    let members = kernel.and_then(KernelFeatures::membership).ok_or_else(|| {
        cannot(
            &"nothing here could keep its children in it: that takes the kernel half, and task storage (see: \
             bursar doctor)",
        )
    })?;
    match members.of(pidfd.as_fd()).map_err(|error| cannot(&error))? {
        Some(before) if before != id => {
            let before = accounts.name_of(before);
            let message = format!(
                "process {} is in {before}, which nobody leaves: start it from a process that is not",
                requester.pid
            );
            Err(refusal(ErrorKind::Refused, message))
        }
        Some(_) => Ok(Reply::Entered { account: permitted }),
        None if !is_alone(&status) => Err(has_threads(requester, who)),
        None => {
            members
                .enter(pidfd.as_fd(), id)
                .map_err(|error| cannot(&error))?;
            // In this order: a thread that executed since has become the leader before it is alone.
            let status = accounts.status_of(requester);
            let is_in = status.as_ref().is_some_and(is_alone)
                && matches!(members.of(pidfd.as_fd()), Ok(Some(now)) if now == id);
            if !is_in {
                members
                    .take_back(pidfd.as_fd())
                    .map_err(|error| cannot(&error))?;
                return Err(has_threads(requester, who));
            }
            // He is in it whatever becomes of this: the next look would charge him as well.
            let charged = accounts
                .backend
                .kernel()
                .map_or(Ok(()), KernelFeatures::catch_up);
            if let Err(error) = charged {
                tracing::warn!(%error, account = %who, "who has entered is not on the account's bill yet");
            }
            tracing::info!(pid = requester.pid.get(), uid = requester.uid.get(), account = %who, "entered");
            Ok(Reply::Entered { account: permitted })
        }
    }
}

/// The shared accounts that a user may enter, and those that processes of his are in, whoever put them there,
/// with their bounds.
pub(super) fn open_to(
    accounts: &Accounts,
    uid: Uid,
    readings: &[Reading],
) -> Result<BTreeMap<AccountId, Bounds>, Refusal> {
    let plan = accounts.table.plan();
    let shared = plan.accounts.iter().filter(|(id, _)| id.uid().is_none());
    let (mut open, others): (BTreeMap<_, _>, BTreeMap<_, _>) = shared
        .map(|(&id, planned)| (id, planned))
        .partition(|(_, planned)| {
            let granted = plan.granted.get(&planned.who);
            granted.is_some_and(|users| users.contains(&uid))
        });
    // The ledger's records are read only where there is something to be found.
    let has_processes = |id: &AccountId| readings.iter().any(|it| it.id == *id && it.processes > 0);
    let others: BTreeMap<_, _> = others
        .into_iter()
        .filter(|(id, _)| has_processes(id))
        .collect();
    if !others.is_empty() {
        let asked = others.keys().copied().collect();
        let kernel = accounts.backend.kernel();
        let entered = kernel.map(|it| it.entered_by(uid, &asked)).transpose();
        let entered = entered.map(Option::unwrap_or_default);
        let entered = entered.map_err(|error| failed(&error))?;
        open.extend(others.into_iter().filter(|(id, _)| entered.contains(id)));
    }
    let bounds = open.into_iter().map(|(id, planned)| (id, planned.bounds));
    Ok(bounds.collect())
}

const fn is_alone(status: &Status) -> bool {
    status.threads == 1
}

/// A membership is its first thread's, and the others' only as long as he is the first (membership.bpf.h): one
/// that executes takes his place and would be outside. Threads made inside are members by themselves.
fn has_threads(requester: Requester, who: &Who) -> Refusal {
    let message = format!(
        "process {} cannot enter {who}: it has more than one thread, or had a moment ago; start the program \
         inside, with bursar run --account {who} -- CMD",
        requester.pid
    );
    refusal(ErrorKind::Refused, message)
}

/// The account's name, if this user may enter it.
fn permission(accounts: &mut Accounts, uid: Uid, who: &Who) -> Result<String, Refusal> {
    let is_root = uid.get() == 0;
    match accounts.table.granted(who) {
        Some(granted) if is_root || granted.contains(&uid) => Ok(who.to_string()),
        // Whoever may not enter it need not know whether there is one.
        None if is_root => {
            let message = format!(
                "there is no account {who}; in limits.toml, write: {:?} = {{ memory = \"8G\", granted = \
                 [\"alice\"] }}",
                who.to_string()
            );
            Err(refusal(ErrorKind::NotFound, message))
        }
        _ => {
            let name = accounts.table.user_name(uid);
            let message = format!(
                "{name} may not enter {who}; root grants it with granted = [{name:?}] in the account's entry \
                 in limits.toml"
            );
            Err(refusal(ErrorKind::NotPermitted, message))
        }
    }
}
