// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status as metrics: one table says what each is called, what it means and where it comes from, and
//! both the exposition and the list in docs/reference/commands.md are made from it.

mod table;

use std::cmp::Reverse;
use std::fmt;

use bursar_model::{AccountStatus, BackendKind, Bytes, DaemonStatus, GateMode, Resource};
use bursar_text::exposition::{Kind, Labels, Value, write_metric};
use serde::Serialize;

use self::table::{METRICS, Metric, Source};
use super::status::memory;
use crate::caller::Role;

fn labels_of(account: &AccountStatus) -> Labels {
    let mut labels = vec![("account", account.account.clone())];
    labels.extend(account.uid.map(|uid| ("uid", uid.to_string())));
    labels
}

impl Metric {
    /// As its samples are called.
    fn full_name(&self) -> String {
        let ending = match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
        };
        format!("bursar_{}{ending}", self.name)
    }

    fn samples(&self, status: &DaemonStatus, role: Role) -> Vec<(Labels, Value)> {
        let accounts = status.accounts.iter();
        match self.source {
            Source::Roots(_) if role != Role::Root => Vec::new(),
            Source::Daemon(of) | Source::Roots(of) => of(status)
                .map(|it| (Labels::new(), it))
                .into_iter()
                .collect(),
            Source::Account(of) => accounts
                .filter_map(|it| Some((labels_of(it), of(it)?)))
                .collect(),
            Source::Row(of) => accounts
                .flat_map(|it| {
                    let labelled = |resource: &Resource| {
                        let mut labels = labels_of(it);
                        labels.push(("resource", resource.name().to_owned()));
                        labels
                    };
                    let rows = it.resources.iter();
                    rows.filter_map(move |(name, row)| Some((labelled(name), of(row)?)))
                })
                .collect(),
        }
    }
}

const ABOUT: &str = "bursar_bursard_info";
const ABOUT_HELP: &str = "Its version, what decides, and what refuses growth";

/// Version, trigger and gate: words, so labels of a metric that is always 1.
fn about(status: &DaemonStatus) -> Labels {
    let half = &status.kernel_half;
    let trigger = match half.trigger {
        Some(BackendKind::Bpf) => "bpf",
        Some(BackendKind::Trace) => "trace",
        Some(BackendKind::Poll) => "poll",
        None => "none",
    };
    let gate = match half.gate.mode {
        GateMode::Strict => "strict",
        GateMode::BestEffort => "best_effort",
        GateMode::None => "none",
    };
    vec![
        ("version", status.version.clone()),
        ("trigger", trigger.into()),
        ("gate", gate.into()),
    ]
}

/// The accounts that are no part of an exposition.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOut {
    accounts: u64,
    held: Bytes,
}

const LEFT_OUT: [(&str, &str); 2] = [
    (
        "bursar_left_out_accounts",
        "Accounts without samples of their own, because others hold more (--accounts)",
    ),
    ("bursar_left_out_held_bytes", "What they hold together"),
];

impl LeftOut {
    fn samples(self) -> [Value; 2] {
        [self.accounts, self.held.get()].map(Value::Number)
    }
}

/// Leaves the accounts that hold most, so many of them.
pub(crate) fn leave_largest(status: &mut DaemonStatus, most: usize) -> LeftOut {
    let accounts = &mut status.accounts;
    accounts.sort_by_key(|it| Reverse(memory(it).held));
    let gone = accounts.split_off(most.min(accounts.len()));
    LeftOut {
        accounts: gone.len() as u64,
        held: Bytes::new(gone.iter().map(|it| memory(it).held.get()).sum()),
    }
}

/// The status that somebody got, as an exposition.
pub(crate) fn exposition(
    status: &DaemonStatus,
    role: Role,
    left_out: Option<&LeftOut>,
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    let always = [(about(status), Value::Number(1))];
    write_metric(&mut text, ABOUT, Kind::Gauge, ABOUT_HELP, &always)?;
    for metric in METRICS {
        let samples = metric.samples(status, role);
        if !samples.is_empty() {
            let name = metric.full_name();
            write_metric(&mut text, &name, metric.kind, metric.help, &samples)?;
        }
    }
    let values = left_out.into_iter().flat_map(|it| it.samples());
    for ((name, help), value) in LEFT_OUT.into_iter().zip(values) {
        write_metric(
            &mut text,
            name,
            Kind::Gauge,
            help,
            &[(Labels::new(), value)],
        )?;
    }
    Ok(text)
}

/// A metric in the list.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    name: String,
    kind: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    labels: &'static [&'static str],
    help: &'static str,
}

impl Listed {
    fn gauge(name: &str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            kind: Kind::Gauge.to_string(),
            labels,
            help,
        }
    }
}

/// Every metric with its kind and meaning.
pub(crate) fn listed() -> Vec<Listed> {
    let named = METRICS.iter().map(|metric| Listed {
        name: metric.full_name(),
        kind: metric.kind.to_string(),
        labels: match metric.source {
            Source::Daemon(_) | Source::Roots(_) => &[],
            Source::Account(_) => &["account", "uid"],
            Source::Row(_) => &["account", "uid", "resource"],
        },
        help: metric.help,
    });
    let about = Listed::gauge(ABOUT, &["version", "trigger", "gate"], ABOUT_HELP);
    let left_out = LEFT_OUT.map(|(name, help)| Listed::gauge(name, &[], help));
    named.chain([about]).chain(left_out).collect()
}

/// The same for people.
pub(crate) fn list(listed: &[Listed]) -> String {
    let told = listed.iter().map(|it| {
        let labels = match it.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        let kind = match it.name.as_str() {
            ABOUT => "always 1",
            _ => &it.kind,
        };
        format!("{}{labels}\n    {kind}. {}\n", it.name, it.help)
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::{Correction, PssScanStatus};
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{account, accounts, daemon};
    use bursar_text::exposition::understand;

    #[test]
    fn every_metric_says_what_it_is() {
        assert_snapshot!(list(&listed()));
    }

    #[test]
    fn a_status_with_everything_in_it_has_every_metric() {
        let mut status = daemon(accounts());
        status.accounts[0].correction = Some(Correction {
            bytes: Bytes::from_mib(300),
            age_ns: 120_000_000,
            left_ns: 80_000_000,
        });
        status.accounts[0].committed = Some(Bytes::from_mib(600));
        status.reaps.longest = Some(bursar_model::Nanos::new(8_100_000));
        // A count is no remark that lasts, and has a metric of its own.
        status.remarks = vec![
            "ghost: nobody has this name".into(),
            "3 connections …".into(),
        ];
        (status.counts.remarks, status.counts.connections_cut) = (1, 3);
        status.kernel_half.surveys = PssScanStatus {
            made: 12,
            spent_ns: 1_500_000_000,
            ..PssScanStatus::default()
        };
        let text = exposition(&status, Role::Root, None).unwrap();
        for metric in METRICS {
            let name = format!("\n{}", metric.full_name());
            assert!(text.contains(&name), "{name} in {text}");
        }
        assert_eq!(understand(&text), Ok(()));
        assert_snapshot!(text);
    }

    #[test]
    fn what_is_roots_is_left_out_for_others_and_is_no_zero() {
        let text = exposition(&daemon(accounts()), Role::User, None).unwrap();
        let has = |name: &str| text.contains(&format!("\nbursar_{name} "));
        assert!(has("kernel_half_attached") && has("ram_bytes"), "{text}");
        let roots = [
            "resums_total",
            "events_lost_total",
            "reaped_total",
            "remarks",
        ];
        assert!(!roots.into_iter().any(has), "{text}");
        assert_eq!(understand(&text), Ok(()));
    }

    #[test]
    fn a_name_cannot_end_its_label() {
        let text = exposition(
            &daemon(vec![account("a\"} 1\nx\\", 1000, 1, Some(2))]),
            Role::User,
            None,
        )
        .unwrap();
        let held: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("bursar_held{"))
            .collect();
        let expected = r#"bursar_held{account="a\"} 1\nx\\",uid="1000",resource="memory"} 1048576"#;
        assert_eq!(held, [expected]);
    }

    #[test]
    fn the_largest_are_left_and_the_rest_is_summed_up() {
        let mib = |n: u64| account(&format!("user{n}"), 1000 + n as u32, n, Some(64));
        let mut status = daemon([3, 9, 1, 7].map(mib).to_vec());
        let left_out = leave_largest(&mut status, 2);
        let text = exposition(&status, Role::Root, Some(&left_out)).unwrap();
        let samples: Vec<&str> = text
            .lines()
            .filter(|it| it.starts_with("bursar_held") || it.starts_with("bursar_left_out"))
            .collect();
        assert_eq!(
            samples,
            [
                r#"bursar_held{account="user9",uid="1009",resource="memory"} 9437184"#,
                r#"bursar_held{account="user7",uid="1007",resource="memory"} 7340032"#,
                "bursar_left_out_accounts 2",
                "bursar_left_out_held_bytes 4194304",
            ]
        );
        assert_eq!(understand(&text), Ok(()));
        assert_eq!(leave_largest(&mut status, 5), LeftOut::default());
    }

    #[test]
    fn without_a_bound_there_is_none() {
        let mut status = daemon(Vec::new());
        status.error_bound_bytes = Bytes::MAX;
        let text = exposition(&status, Role::Root, None).unwrap();
        assert!(!text.contains("\nbursar_error_bound"), "{text}");
        assert_eq!(understand(&text), Ok(()));
    }
}
