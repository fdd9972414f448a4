// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What follows from what accounts held over time and from the events kept: who was over, with what, and which limits
//! would do. Pure.

mod suggestion;

use std::collections::BTreeMap;

use bursar_model::{AccountUsage, Bytes, Event, EventKind, Uid, UsagePart, UsageSummary};
use jiff::Timestamp;
use serde::Serialize;

use crate::clock::Clock;
pub(crate) use suggestion::Suggestion;
use suggestion::suggestions;

/// Programs named of an account.
const PROGRAMS: usize = 3;
/// Who is killed in was told before if a notice came in so many seconds before that.
const TOLD_WITHIN: i64 = 3600;
/// Of the limit: who never holds more never comes near.
const NEAR_PERCENT: u64 = 50;

/// What comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// Most processes killed
    #[default]
    Kills,
    /// Most requests refused
    Refusals,
    /// Most held
    Held,
    /// Most notices
    Notices,
}

/// What `bursar report` tells.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    pub(crate) since: String,
    pub(crate) until: String,
    /// Who held anything, in the order that was asked for.
    pub(crate) accounts: Vec<Account>,
    /// Names of those who never came near their limits, who held most of it first.
    pub(crate) never_near: Vec<String>,
    pub(crate) suggestions: Vec<Suggestion>,
    pub(crate) busiest: Option<Part>,
    pub(crate) most_kills: Option<Part>,
    pub(crate) part_seconds: u64,
    /// For pictures.
    pub(crate) parts: Vec<Part>,
}

/// An account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    pub(crate) account: String,
    pub(crate) uid: Option<Uid>,
    /// Root or another user below UID_MIN.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_system: bool,
    pub(crate) limit: Option<Bytes>,
    pub(crate) mean: Bytes,
    pub(crate) max: Bytes,
    pub(crate) max_time: String,
    pub(crate) held_seconds: u64,
    pub(crate) notices: u64,
    pub(crate) refusals: u64,
    pub(crate) kills: u64,
    /// Forgone, because the account was only observed.
    pub(crate) would_kills: u64,
    pub(crate) last_kill_time: Option<String>,
    /// Kills of which an event is kept, and those before which there was a notice.
    pub(crate) kills_kept: u64,
    pub(crate) kills_told_before: u64,
    /// What was killed most often.
    pub(crate) programs: Vec<Program>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Program {
    pub(crate) comm: String,
    pub(crate) kills: u64,
}

/// A part of the time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Part {
    pub(crate) time: String,
    #[serde(skip)]
    pub(crate) start: u64,
    pub(crate) mean: Bytes,
    pub(crate) notices: u64,
    pub(crate) refusals: u64,
    pub(crate) kills: u64,
}

impl Part {
    fn new(part: &UsagePart) -> Self {
        Self {
            time: Clock::moment(part.start),
            start: part.start,
            mean: part.mean,
            notices: part.notices,
            refusals: part.refusals,
            kills: part.kills,
        }
    }
}

/// What the events say of an account.
#[derive(Debug, Default)]
struct KeptEvents {
    last_notice: Option<Timestamp>,
    last_kill: Option<String>,
    kept: u64,
    before: u64,
    would_kills: u64,
    programs: BTreeMap<String, u64>,
}

impl KeptEvents {
    fn take(&mut self, event: &Event) {
        let time: Option<Timestamp> = event.time.parse().ok();
        // One stands for those that were left out before it.
        let count = event.more.unwrap_or(0).saturating_add(1);
        match event.event {
            EventKind::Notice => self.last_notice = time.or(self.last_notice),
            EventKind::Kill => {
                self.last_kill = Some(event.time.clone());
                self.kept = self.kept.saturating_add(count);
                let is_before = |notice: Timestamp| {
                    let span = time.map(|kill| kill.duration_since(notice).as_secs());
                    span.is_some_and(|it| (0..=TOLD_WITHIN).contains(&it))
                };
                if self.last_notice.is_some_and(is_before) {
                    self.before = self.before.saturating_add(count);
                }
                if let Some(comm) = &event.comm {
                    let program = self.programs.entry(comm.clone()).or_default();
                    *program = program.saturating_add(count);
                }
            }
            EventKind::WouldKill => self.would_kills = self.would_kills.saturating_add(count),
            _ => {}
        }
    }

    fn programs(&self) -> Vec<Program> {
        let mut all: Vec<Program> = self
            .programs
            .iter()
            .map(|(comm, kills)| Program {
                comm: comm.clone(),
                kills: *kills,
            })
            .collect();
        all.sort_by(|one, other| {
            other
                .kills
                .cmp(&one.kills)
                .then_with(|| one.comm.cmp(&other.comm))
        });
        all.truncate(PROGRAMS);
        all
    }
}

impl Account {
    fn new(usage: &AccountUsage, kept: &KeptEvents) -> Self {
        Self {
            account: usage.account.clone(),
            uid: usage.uid,
            is_system: usage.is_system,
            limit: usage.limit,
            mean: usage.mean,
            max: usage.max,
            max_time: Clock::moment(usage.max_at),
            held_seconds: usage.held_seconds,
            notices: usage.notices,
            refusals: usage.refusals,
            kills: usage.kills,
            would_kills: kept.would_kills,
            last_kill_time: kept.last_kill.clone(),
            kills_kept: kept.kept,
            kills_told_before: kept.before,
            programs: kept.programs(),
        }
    }

    /// Whether there is anything to be done about it.
    pub(crate) const fn is_eventful(&self) -> bool {
        self.kills > 0 || self.refusals > 0 || self.notices > 0 || self.would_kills > 0
    }

    fn is_never_near(&self) -> bool {
        let is_far = |limit: Bytes| self.max <= limit.scaled(NEAR_PERCENT, 100);
        !self.is_eventful() && self.limit.is_some_and(is_far)
    }

    fn key(&self, by: By) -> u64 {
        match by {
            By::Kills => self.kills.saturating_add(self.would_kills),
            By::Refusals => self.refusals,
            By::Held => self.max.get(),
            By::Notices => self.notices,
        }
    }
}

/// The report. `events`: those of the time, oldest first, as far as they are kept.
pub(crate) fn report(summary: &UsageSummary, events: &[Event], by: By) -> Report {
    let mut kept: BTreeMap<&str, KeptEvents> = BTreeMap::new();
    for event in events {
        if let Some(account) = event.account.as_deref() {
            kept.entry(account).or_default().take(event);
        }
    }
    let nothing = KeptEvents::default();
    let kept_of = |it: &AccountUsage| kept.get(it.account.as_str()).unwrap_or(&nothing);
    let mut accounts: Vec<Account> = summary
        .accounts
        .iter()
        .map(|it| Account::new(it, kept_of(it)))
        .collect();
    accounts.sort_by(|one, other| {
        let order = |it: &Account| (it.key(by), it.kills, it.max);
        order(other)
            .cmp(&order(one))
            .then_with(|| one.account.cmp(&other.account))
    });
    let mut far: Vec<&Account> = accounts.iter().filter(|it| it.is_never_near()).collect();
    let share = |it: &Account| it.max.scaled(1000, it.limit.map_or(1, Bytes::get));
    far.sort_by_key(|it| std::cmp::Reverse(share(it)));
    let never_near = far.iter().map(|it| it.account.clone()).collect();
    // The first of those that are alike.
    let parts: Vec<Part> = summary.parts.iter().map(Part::new).collect();
    let busiest = parts.iter().rev().max_by_key(|it| it.mean).cloned();
    let most_kills = parts
        .iter()
        .rev()
        .max_by_key(|it| it.kills)
        .filter(|it| it.kills > 0)
        .cloned();
    Report {
        since: Clock::moment(summary.from),
        until: Clock::moment(summary.until),
        suggestions: suggestions(&accounts),
        never_near,
        accounts,
        busiest,
        most_kills,
        part_seconds: summary.part_seconds,
        parts,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const FROM: u64 = 1_795_132_800;

    fn event(kind: EventKind, account: &str, second: u64, comm: &str) -> Event {
        let mut event = Event::new(kind);
        event.time = format!(
            "2026-11-20T{:02}:{:02}:00.000000Z",
            second / 3600,
            second / 60 % 60
        );
        event.account = Some(account.to_owned());
        event.comm = Some(comm.to_owned());
        event
    }

    fn usage(account: &str, uid: u32, max: u64, limit: u64, kills: u64) -> AccountUsage {
        AccountUsage {
            account: account.into(),
            uid: Some(Uid::new(uid)),
            is_system: false,
            limit: Some(Bytes::from_mib(limit)),
            mean: Bytes::from_mib(max / 2),
            max: Bytes::from_mib(max),
            max_at: FROM + 3600,
            held_seconds: 7200,
            notices: kills,
            refusals: kills * 3,
            kills,
        }
    }

    /// A day of five accounts, with names that would like to be more than names.
    pub(crate) fn sample() -> Report {
        let summary = UsageSummary {
            from: FROM,
            until: FROM + 86_400,
            part_seconds: 3600,
            accounts: vec![
                usage("alice", 60_001, 512, 512, 3),
                usage("bob", 60_002, 200, 512, 0),
                usage("carol", 60_003, 400, 512, 0),
                AccountUsage {
                    uid: None,
                    ..usage("=lab", 0, 900, 1024, 1)
                },
                usage("dave", 60_004, 20, 512, 0),
            ],
            parts: (0..24)
                .map(|hour| UsagePart {
                    start: FROM + hour * 3600,
                    mean: Bytes::from_mib(100 + 50 * (12 - hour.abs_diff(12))),
                    notices: 0,
                    refusals: u64::from(hour == 13),
                    kills: if hour == 15 { 4 } else { 0 },
                })
                .collect(),
        };
        let mut many = event(EventKind::Kill, "alice", 15 * 3600 + 600, "python3");
        many.more = Some(1);
        let events = [
            event(EventKind::Kill, "alice", 9 * 3600, r#"<script>"&'"#),
            event(EventKind::Notice, "alice", 15 * 3600, "python3"),
            many,
            event(EventKind::Kill, "=lab", 15 * 3600 + 700, "=cmd|calc"),
        ];
        report(&summary, &events, By::Kills)
    }

    #[test]
    fn offenders_come_first_with_what_was_killed_and_whether_they_were_told() {
        let report = sample();
        let names: Vec<&str> = report
            .accounts
            .iter()
            .map(|it| it.account.as_str())
            .collect();
        assert_eq!(names, ["alice", "=lab", "carol", "bob", "dave"]);
        let alice = &report.accounts[0];
        assert_eq!(
            (alice.kills, alice.kills_kept, alice.kills_told_before),
            (3, 3, 2)
        );
        let programs: Vec<(&str, u64)> = alice
            .programs
            .iter()
            .map(|it| (it.comm.as_str(), it.kills))
            .collect();
        assert_eq!(programs, [("python3", 2), (r#"<script>"&'"#, 1)]);
        assert_eq!(
            alice.last_kill_time.as_deref(),
            Some("2026-11-20T15:10:00.000000Z")
        );
        assert_eq!(report.never_near, ["bob", "dave"]);
        assert_eq!(report.busiest.unwrap().time, "2026-11-20T12:00:00Z");
        assert_eq!(report.most_kills.unwrap().kills, 4);
    }

    #[test]
    fn the_order_is_what_was_asked_for() {
        let summary = UsageSummary {
            accounts: vec![
                AccountUsage {
                    refusals: 9,
                    ..usage("a", 1, 10, 100, 0)
                },
                AccountUsage {
                    notices: 9,
                    ..usage("b", 2, 20, 100, 0)
                },
                usage("c", 3, 90, 100, 0),
                usage("d", 4, 30, 100, 1),
            ],
            ..UsageSummary::default()
        };
        for (by, first) in [
            (By::Refusals, "a"),
            (By::Notices, "b"),
            (By::Held, "c"),
            (By::Kills, "d"),
        ] {
            assert_eq!(
                report(&summary, &[], by).accounts[0].account,
                first,
                "{by:?}"
            );
        }
    }

    #[test]
    fn nothing_makes_an_empty_report() {
        let report = report(&UsageSummary::default(), &[], By::Kills);
        assert!(report.accounts.is_empty() && report.suggestions.is_empty());
        assert!(report.busiest.is_none() && report.most_kills.is_none());
    }
}
