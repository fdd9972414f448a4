// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger check, asked for and answered: it takes its time, so the answer comes later.

use bursar_policy::Agreement;
use bursar_protocol::{AccountCheck, ErrorKind, LedgerCheck, Refusal, Reply, Verdict};

use super::permission::{failed, only_root, refusal};
use crate::accounts::Accounts;
use crate::control::Requester;
use crate::ledger_check::{Compared, Findings, LedgerChecker};

/// Begins it; what it finds goes to [`checked`].
pub(super) fn begin(
    accounts: &Accounts,
    ledger_checker: &mut LedgerChecker,
    requester: Requester,
) -> Result<(), Refusal> {
    only_root(requester.uid, "have the ledger compared with /proc")?;
    if ledger_checker.is_busy() {
        let message = "the ledger is being compared with /proc already; try again in some seconds";
        return Err(refusal(ErrorKind::Refused, message));
    }
    match check(accounts, ledger_checker, requester) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = "there is no kernel half here: what is held comes from /proc itself, and \
                           there is nothing to compare it with";
            Err(refusal(ErrorKind::NotFound, message))
        }
        Err(error) => Err(failed(&error)),
    }
}

/// `false` where there is no kernel half.
fn check(
    accounts: &Accounts,
    ledger_checker: &mut LedgerChecker,
    requester: Requester,
) -> anyhow::Result<bool> {
    let Some(kernel) = accounts.backend.kernel() else {
        return Ok(false);
    };
    let ledger = kernel.ledger()?;
    let payers = accounts.payers.clone();
    ledger_checker.begin(requester.client, ledger, payers, accounts.entered()?)?;
    Ok(true)
}

/// What came of it, for who asked.
pub(crate) fn checked(accounts: &mut Accounts, found: anyhow::Result<Findings>) -> Reply {
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let message = format!("the ledger could not be compared with /proc: {error:#}");
            return Reply::Refused(refusal(ErrorKind::Failed, message));
        }
    };
    let mut accounts: Vec<AccountCheck> = found
        .accounts
        .iter()
        .map(|it| account_check(accounts, it))
        .collect();
    let rank = |it: &AccountCheck| match it.verdict {
        Verdict::Out => 0,
        Verdict::Unfinished => 1,
        Verdict::Moving => 2,
        Verdict::Within => 3,
    };
    accounts.sort_by(|a, b| (rank(a), &a.account).cmp(&(rank(b), &b.account)));
    Reply::LedgerChecked(Box::new(LedgerCheck {
        accounts,
        processes: found.looked_at,
        left: found.left,
        rounds: found.rounds,
        duration_ns: u64::try_from(found.duration.as_nanos()).unwrap_or(u64::MAX),
        proc_is_exact: found.proc_is_exact,
        unfit: found.unfit,
    }))
}

fn account_check(accounts: &mut Accounts, compared: &Compared) -> AccountCheck {
    let sum = &compared.sum;
    AccountCheck {
        account: accounts.name_of(sum.id),
        uid: sum.id.uid(),
        verdict: match compared.agreement {
            Some(Agreement::Within) => Verdict::Within,
            Some(Agreement::Moving) => Verdict::Moving,
            Some(Agreement::Out) => Verdict::Out,
            None => Verdict::Unfinished,
        },
        held: sum.held,
        held_by_proc: compared.by_proc,
        correction: sum.correction,
        unmapped: sum.unmapped,
        bound: compared.bound,
        apart: compared.apart,
        moved: compared.moved,
        processes: sum.processes,
        processes_by_proc: compared.processes_by_proc,
    }
}
