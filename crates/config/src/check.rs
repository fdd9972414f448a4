// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits that are well written and make no sense: `bursar check`.

use bursar_model::{Bytes, Uid, Who};

use crate::entry::TEMPORARY;
use crate::finding::{Finding, Wrong};
use crate::{Limit, Limits, Origin};

/// A login (sshd's half, a shell, the user's systemd) holds about this much.
const LOGIN: Bytes = Bytes::from_mib(16);

/// A bound below it was meant as something else.
const LEAST: Bytes = Bytes::from_mib(1);

/// What is wrong with `limits`, or worth knowing about them, on a machine with `ram` bytes of memory;
/// in the order of their lines.
///
/// Errors are bounds that contradict each other here and can not be enforced. Remarks are limits that
/// are enforced and perhaps not meant so. Whether names exist is not asked.
pub fn check(limits: &Limits, ram: Bytes) -> Vec<Finding> {
    check_those(limits, ram, |_| true)
}

/// The same of what is written for one of them.
pub fn check_entry(limits: &Limits, ram: Bytes, who: &Who) -> Vec<Finding> {
    check_those(limits, ram, |it| it.who == *who)
}

fn check_those(limits: &Limits, ram: Bytes, is_meant: impl Fn(&Limit) -> bool) -> Vec<Finding> {
    let all = limits.iter().chain(limits.covered());
    let mut findings: Vec<Finding> = all
        .filter(|it| is_meant(it))
        .flat_map(|it| check_one(it, ram))
        .collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

/// Entries that win over others: meant so in drop-ins, and good to know when a limit is not what one has written.
pub fn overrides(limits: &Limits) -> Vec<Finding> {
    let winners = limits
        .iter()
        .map(|limit| (limit, limits.overridden(&limit.who)));
    let remark = |(limit, losers): (&Limit, &[Origin])| {
        let loser = losers.last()?;
        let message = format!("wins over {}:{}", loser.path.display(), loser.line);
        let key = format!("limits.{}", limit.who);
        let wrong = Wrong::new(message, "remove one of the two if that is not meant");
        Some(wrong.remark_at(&limit.path, Some(limit.line), &key))
    };
    winners.filter_map(remark).collect()
}

/// Entries that have come to their end.
pub fn ended(limits: &Limits) -> Vec<Finding> {
    let remark = |limit: &Limit| {
        let until = limit.until?;
        let key = format!("{TEMPORARY}.{}", limit.who);
        let wrong = Wrong::new(format!("ended at {until} and has no effect"), "remove it");
        Some(wrong.remark_at(&limit.path, Some(limit.line), &key))
    };
    limits.ended().filter_map(remark).collect()
}

fn check_one(limit: &Limit, ram: Bytes) -> Vec<Finding> {
    let table = if limit.until.is_some() {
        TEMPORARY
    } else {
        "limits"
    };
    let key = format!("{table}.{}", limit.who);
    let remark = |wrong: Wrong| wrong.remark_at(&limit.path, Some(limit.line), &key);
    let bounds = match limit.memory.map(|it| it.resolve(ram)).transpose() {
        Ok(bounds) => bounds.unwrap_or_default(),
        Err(error) => {
            // The model's message ends with its remedy, after the last colon.
            let text = error.to_string();
            let (message, remedy) = text.rsplit_once(": ").unwrap_or((&text, ""));
            let message = format!("{message}, with {ram} of memory");
            return vec![Wrong::new(message, remedy).at(&limit.path, Some(limit.line), &key)];
        }
    };
    let mut remarks = Vec::new();
    let whose = whose(&limit.who);
    if let Some(most) = bounds.limit() {
        if most == Bytes::ZERO {
            let message = format!("the limit is 0: every process of {whose} is killed at once");
            remarks.push(remark(Wrong::new(message, "write \"none\" for no limit")));
        } else if most < LOGIN {
            let message = format!("the limit ({most}) is less than a login needs (about {LOGIN})");
            remarks.push(remark(Wrong::new(
                message,
                "raise it if logins are meant to work",
            )));
        } else if most > ram {
            let message = format!("the limit ({most}) lies above the machine's memory ({ram})");
            remarks.push(remark(Wrong::new(
                message,
                "it holds only where there is swap",
            )));
        } else if limit.who == Who::Default && most > ram.scaled(1, 2) {
            let message = format!(
                "the limit ({most}) is more than half of the machine's memory ({ram}): two users at \
                 their limits do not fit"
            );
            remarks.push(remark(Wrong::new(message, "give each user half or less")));
        }
    }
    let has_room = bounds.limit().is_none_or(|most| most >= LOGIN);
    // A notice that is not written is no higher than the barrier.
    let bounds_below = [("barrier", bounds.barrier()), ("notice", bounds.notice())];
    let least = bounds_below
        .into_iter()
        .find_map(|(name, bound)| Some((name, bound.filter(|it| *it < LEAST && has_room)?)));
    if let Some((name, bound)) = least {
        let message = format!("the {name} ({bound}) is less than any program needs");
        let remedy = "a number without a unit is bytes: write \"95%\" for a part of the limit";
        remarks.push(remark(Wrong::new(message, remedy)));
    }
    let is_root = limit.who == Who::Uid(Uid::new(0)) || limit.who == Who::User("root".to_owned());
    let has_rows = limit.rows.values().any(|it| !it.is_unlimited());
    if is_root && (bounds.limit().is_some() || has_rows) {
        let message = "a limit on root can kill system services";
        remarks.push(remark(Wrong::new(message, "limit users instead")));
    }
    remarks
}

fn whose(who: &Who) -> String {
    match who {
        Who::Default => "everybody without a limit of his own".to_owned(),
        Who::Group(group) => format!("each member of {group}"),
        Who::Shared(group) => format!("all members of {group}"),
        Who::User(_) | Who::Uid(_) => who.to_string(),
    }
}
