// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts held over time. A thread reads the files, so the answer comes later.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bursar_host::clock;
use bursar_model::{Subject, Uid, Who};
use bursar_protocol::{ErrorKind, Refusal, Reply};
use bursar_usage::{Tier, Wanted};

use super::permission::{own_account, refusal};
use super::whose::Whose;
use crate::control::Requester;
use crate::daemon::Daemon;
use crate::usage::{AskError, Found, Kind};

/// Where nobody says since when.
const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// Root may ask about all, others about themselves, the account they pay into and those they may enter.
pub(super) fn begin(
    daemon: &mut Daemon,
    requester: Requester,
    kind: Kind,
    who: Option<&Who>,
    since: Option<&str>,
) -> Result<(), Refusal> {
    if !daemon.usage.is_kept() {
        let message =
            "usage is not kept: usage.keep_bytes is 0 in bursar.toml; set it and restart bursard";
        return Err(refusal(ErrorKind::NotFound, message));
    }
    let now = SystemTime::now();
    let since = match since {
        Some(since) => clock::parse_since(since, now)
            .map_err(|error| refusal(ErrorKind::BadRequest, error.to_string()))?,
        None => now.checked_sub(WEEK).unwrap_or(UNIX_EPOCH),
    };
    let (subject, uid) = match (who, requester.uid.get()) {
        (None, 0) => (None, None),
        (None, _) => {
            let (subject, uid) = own(daemon, requester);
            (Some(subject), uid)
        }
        (Some(who), _) => {
            let whose = Whose::new(&mut daemon.accounts, requester, who)?;
            let subject = whose.subject().clone();
            let uid = subject.uid();
            (Some(subject), uid)
        }
    };
    let owned_since = uid.filter(|_| requester.uid.get() != 0).and_then(|uid| {
        let since = daemon.accounts.table.owner_since(uid)?;
        clock::parse_since(&since, now).ok()
    });
    let seconds = |moment: SystemTime| {
        moment
            .duration_since(UNIX_EPOCH)
            .map_or(0, |it| it.as_secs())
    };
    let from = seconds(owned_since.map_or(since, |it| it.max(since)));
    let wanted = Wanted {
        subject,
        from,
        tier: Tier::reaching_back(seconds(now).saturating_sub(seconds(since))),
    };
    let asked = daemon
        .usage
        .ask(requester, kind, wanted, &mut daemon.accounts);
    asked.map_err(|error| {
        let message = match error {
            AskError::Busy => format!(
                "uid {} has asked already; ask again when that is answered",
                requester.counts_as
            ),
            AskError::Full => "too many ask at once; ask again in some seconds".to_owned(),
            AskError::Gone => {
                "the thread that keeps usage is gone; bursard's log says why".to_owned()
            }
        };
        refusal(ErrorKind::Refused, message)
    })
}

/// The account that the requester's process pays into, and whose it is.
fn own(daemon: &mut Daemon, requester: Requester) -> (Subject, Option<Uid>) {
    let id = own_account(&daemon.accounts, requester);
    let uid = id.map_or(Some(requester.uid), |it| it.uid());
    match (uid, id) {
        (None, Some(id)) => {
            let name = daemon.accounts.name_of(id);
            let name = name.strip_prefix('=').unwrap_or(&name).to_owned();
            (Subject::named(&Who::Shared(name)), None)
        }
        (uid, _) => {
            let uid = uid.unwrap_or(requester.uid);
            let name = daemon.accounts.table.user_name(uid);
            (Subject::named(&Who::Uid(uid)).user(uid, &name), Some(uid))
        }
    }
}

/// The reply to what was found. `uid_min`: where ordinary users begin.
pub(crate) fn found(found: Result<Found, String>, uid_min: Uid) -> Reply {
    match found {
        Ok(Found::Series(series)) => Reply::Usage(Box::new(series)),
        Ok(Found::Summary(mut summary)) => {
            for account in &mut summary.accounts {
                account.is_system = account.uid.is_some_and(|uid| uid < uid_min);
            }
            Reply::UsageSummary(Box::new(summary))
        }
        Err(why) => {
            let message = format!("usage could not be read: {why}");
            Reply::Refused(refusal(ErrorKind::Failed, message))
        }
    }
}
