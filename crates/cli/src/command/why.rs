// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar why`.

use std::str::FromStr;

use bursar_model::{Event, Pid, UsageSeries, Who};
use bursar_protocol::{Operation, Reply};
use clap::Args;
use jiff::SignedDuration;

use crate::caller::Caller;
use crate::failure::Failure;
use crate::of_user::OfUser;
use crate::view;
use crate::view::candidates::Detail;
use crate::view::explanation::Which;
use crate::whose::insist_on_shared;

/// Shown of what was held.
const BEFORE: SignedDuration = SignedDuration::from_mins(10);

/// Tell why a process was killed
///
/// The last one, the one that had this number, or the last of a user or a shared account: when, for which
/// account, what else was weighed, who decided, and how long it took until the memory was back. Of a user or
/// an account also what was refused since, and why nobody was killed.
#[derive(Debug, Args)]
pub(crate) struct Why {
    /// The process that was killed, a user name, or =name (a shared account); without it, the last process
    /// that was killed
    #[arg(id = "who", value_name = "PID|WHO")]
    whom: Option<Whom>,
    #[command(flatten)]
    of_user: OfUser,
    /// All that was kept: parents, beginnings and command lines of all processes that were weighed, and what the
    /// account held in the ten minutes before
    #[arg(long)]
    full: bool,
}

/// Whom it is about: digits are a process.
#[derive(Debug, Clone)]
enum Whom {
    Process(Pid),
    Account(Who),
}

impl FromStr for Whom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit()) {
            return match text.parse() {
                Ok(pid @ 1..) => Ok(Self::Process(Pid::new(pid))),
                _ => Err("no process has this number; a uid is said with --user".into()),
            };
        }
        match text.parse() {
            Ok(who @ (Who::User(_) | Who::Shared(_))) => Ok(Self::Account(who)),
            Ok(Who::Uid(_) | Who::Group(_) | Who::Default) => Err(
                "it is not an account: name a user, a shared account (=name) or the number of a process".into(),
            ),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Why {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let (pid, who) = match (self.whom, self.of_user.or(None)) {
            (Some(Whom::Process(pid)), _) => (Some(pid), None),
            (Some(Whom::Account(who)), _) | (None, Some(who)) => (None, Some(who)),
            (None, None) => (None, None),
        };
        let which = match (pid, &who) {
            (Some(pid), _) => Which::Of(pid),
            (None, Some(who)) => Which::Whose(who.clone()),
            (None, None) => Which::Last,
        };
        let asked = Operation::Why {
            pid,
            who: who.clone(),
        };
        let Reply::Why(events) = caller.ask(asked)? else {
            return Err(Failure::off_topic());
        };
        if let (Some(who), []) = (&who, events.as_slice()) {
            insist_on_shared(who, caller)?;
        }
        caller.answer(&events, |events| {
            let detail = if self.full {
                Detail::Full
            } else {
                Detail::Usual
            };
            let (role, clock, style) = (caller.role, &caller.clock, &caller.style);
            let mut text =
                view::explanation::explanation(events, &which, role, detail, clock, style);
            if let Some(series) = before(events, caller).filter(|_| self.full) {
                text.push_str(&view::history::before(&series, clock, style));
            }
            if let Some(hint) = hint(caller).filter(|_| !events.is_empty()) {
                text.push('\n');
                text.push_str(&view::quota::from_administrator(&hint, &caller.style));
            }
            text
        })
    }
}

/// What the account of the kill held until then, where that is kept still.
fn before(events: &[Event], caller: &Caller) -> Option<UsageSeries> {
    let kill = events.iter().find(|it| it.account.is_some())?;
    let who: Who = kill.account.as_ref()?.parse().ok()?;
    let at: jiff::Timestamp = kill.time.parse().ok()?;
    let since = at.checked_sub(BEFORE).ok()?;
    let asked = Operation::Usage {
        who: Some(who),
        since: Some(format!("{since:.6}")),
    };
    let Ok(Reply::Usage(mut series)) = caller.ask(asked) else {
        return None;
    };
    let at = u64::try_from(at.as_second()).ok()?;
    series.samples.retain(|it| it.start <= at);
    // Coarser ones say nothing of these minutes.
    let is_known = series.span_seconds == 60 && !series.samples.is_empty();
    is_known.then_some(*series)
}

/// What the administrator wants users to read; without it the story is told all the same.
fn hint(caller: &Caller) -> Option<String> {
    match caller.ask(Operation::Quota) {
        Ok(Reply::Quota(quota)) => quota.hint,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_process_and_a_uid_is_said_as_one() {
        let whom = |text: &str| text.parse::<Whom>();
        assert!(matches!(whom("60001"), Ok(Whom::Process(pid)) if pid == Pid::new(60_001)));
        for text in ["alice", "=lab", "a1"] {
            let who: Who = text.parse().unwrap();
            assert!(
                matches!(whom(text), Ok(Whom::Account(it)) if it == who),
                "{text}"
            );
        }
        for text in ["0", "99999999999", "", "@staff", "default", "-1", "a/b"] {
            assert!(whom(text).is_err(), "{text}");
        }
    }
}
