// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status as metrics: one table says what each is called, what it means and where it comes from, and
//! both the exposition and the list in docs/reference/commands.md are made from it.

use std::fmt;

use bursar_model::{AccountStatus, Bytes, DaemonStatus, GateMode, Resource, Row, TriggerKind};

use super::exposition::{Kind, Labels, Value, write_metric};

/// Where it comes from; `None`: not now, or not here.
enum Source {
    Daemon(fn(&DaemonStatus) -> Option<Value>),
    Account(fn(&AccountStatus) -> Option<Value>),
    Row(fn(&Row) -> Option<Value>),
}

struct Metric {
    /// Without `bursar_`, and without the `_total` that counters get.
    name: &'static str,
    kind: Kind,
    help: &'static str,
    source: Source,
}

const fn daemon(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&DaemonStatus) -> Option<Value>,
) -> Metric {
    Metric {
        name,
        kind,
        help,
        source: Source::Daemon(of),
    }
}

const fn account(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&AccountStatus) -> Option<Value>,
) -> Metric {
    Metric {
        name,
        kind,
        help,
        source: Source::Account(of),
    }
}

const fn row(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&Row) -> Option<Value>,
) -> Metric {
    Metric {
        name,
        kind,
        help,
        source: Source::Row(of),
    }
}

const fn number(count: u64) -> Option<Value> {
    Some(Value::Number(count))
}

fn bytes(amount: Bytes) -> Option<Value> {
    (amount < Bytes::MAX).then_some(Value::Number(amount.get()))
}

fn seconds(nanos: u64) -> Option<Value> {
    Some(Value::Seconds(nanos as f64 / 1e9))
}

use Kind::{Counter, Gauge};

const METRICS: &[Metric] = &[
    row("held", Gauge, "Held now by living processes, bytes", |it| {
        bytes(it.held)
    }),
    row("maxheld", Gauge, "The most ever held, bytes", |it| {
        bytes(it.maxheld)
    }),
    row(
        "notice",
        Gauge,
        "Above this the user is told, bytes; absent: never",
        |it| bytes(it.notice?),
    ),
    row(
        "barrier",
        Gauge,
        "Above this new requests are refused, bytes; absent: never",
        |it| bytes(it.barrier?),
    ),
    row(
        "limit",
        Gauge,
        "Above this a process is killed, bytes; absent: never",
        |it| bytes(it.limit?),
    ),
    row(
        "failcnt",
        Counter,
        "Charges refused: requests denied and breaches answered by a kill",
        |it| number(it.failcnt),
    ),
    account(
        "account_processes",
        Gauge,
        "Address spaces charged to the account",
        |it| number(it.processes.into()),
    ),
    account(
        "account_kills",
        Counter,
        "Processes killed because of the account",
        |it| number(it.kills),
    ),
    account("account_notices", Counter, "Notices given", |it| {
        number(it.notices)
    }),
    account(
        "account_dying_bytes",
        Gauge,
        "Memory of processes already killed that is not back yet; not in held",
        |it| bytes(it.dying),
    ),
    account(
        "account_lingering_bytes",
        Gauge,
        "Of held: of processes already killed that have given nothing back for a second",
        |it| bytes(it.unkillable),
    ),
    account(
        "account_reserved_bytes",
        Gauge,
        "Granted in advance and not yet held",
        |it| bytes(it.reserved),
    ),
    account(
        "account_committed_bytes",
        Gauge,
        "What could come to be held without asking again, where the gate measures that",
        |it| bytes(it.committed?),
    ),
    account(
        "account_files_bytes",
        Gauge,
        "Of held: in files in memory beyond what processes map",
        |it| bytes(it.unmapped),
    ),
    account(
        "account_stuck_files_bytes",
        Gauge,
        "Of those: what no kill would free",
        |it| bytes(it.stuck),
    ),
    account(
        "account_correction_bytes",
        Gauge,
        "Taken off held because several processes map the same pages; absent: nobody has looked",
        |it| bytes(it.correction?.bytes),
    ),
    account(
        "account_correction_age_seconds",
        Gauge,
        "How long ago that was found",
        |it| seconds(it.correction?.age_ns),
    ),
    account(
        "account_correction_left_seconds",
        Gauge,
        "How long it is good yet if nobody looks again",
        |it| seconds(it.correction?.left_ns),
    ),
    daemon(
        "kernel_half_attached",
        Gauge,
        "1: the kernel half is there, and limits hold without bursard",
        |it| number(it.kernel_half.attached.into()),
    ),
    daemon(
        "event_trigger",
        Gauge,
        "1: an RSS event itself decides",
        |it| number(it.kernel_half.event_trigger.into()),
    ),
    daemon("timer_trigger", Gauge, "1: the 200 ms timer runs", |it| {
        number(it.kernel_half.timer.into())
    }),
    daemon("ram_bytes", Gauge, "Memory of the machine", |it| {
        bytes(it.ram_bytes)
    }),
    daemon(
        "error_bound_bytes",
        Gauge,
        "What held may be off by near a bound; absent: nothing bounds it",
        |it| bytes(it.error_bound_bytes),
    ),
    daemon(
        "counter_cpus",
        Gauge,
        "CPUs that may keep part of a counter back: error_bound_bytes is these times the batch",
        |it| number(it.kernel_half.counter_cpus.into()),
    ),
    daemon(
        "counter_batch_pages",
        Gauge,
        "Pages that each may keep back",
        |it| number(it.kernel_half.counter_batch_pages.into()),
    ),
    daemon(
        "drift_repaired_bytes",
        Counter,
        "Ledger differences found and repaired",
        |it| bytes(it.kernel_half.drift_repaired_bytes),
    ),
    daemon(
        "drift_repairs",
        Counter,
        "How often one was repaired",
        |it| number(it.kernel_half.drift_repairs),
    ),
    daemon(
        "drift_repaired_bytes_per_resum",
        Gauge,
        "Repaired by a re-sum on the average, rounded up",
        |it| bytes(it.kernel_half.drift_repaired_bytes_per_resum),
    ),
    daemon("resums", Counter, "Exact re-sums made", |it| {
        number(it.kernel_half.resums)
    }),
    daemon("resum_seconds", Gauge, "Time the last one took", |it| {
        seconds(it.kernel_half.resum_ns)
    }),
    daemon(
        "resum_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.resum_max_ns),
    ),
    daemon(
        "processes",
        Gauge,
        "Processes that the last walk met",
        |it| number(it.kernel_half.resum_processes),
    ),
    daemon(
        "decision_longest_seconds",
        Gauge,
        "Time the longest decision took",
        |it| seconds(it.kernel_half.decision_max_ns),
    ),
    daemon(
        "stale_records",
        Counter,
        "Processes whose end no event told",
        |it| number(it.kernel_half.stale_records),
    ),
    daemon(
        "missed_processes",
        Counter,
        "Processes whose beginning no event told; those before the kernel half included",
        |it| number(it.kernel_half.missed_processes),
    ),
    daemon(
        "events_lost",
        Counter,
        "Events that did not fit the ring buffer: they happened and are not recorded",
        |it| number(it.kernel_half.events_lost),
    ),
    daemon(
        "records_full",
        Counter,
        "Processes that did not fit the ledger",
        |it| number(it.kernel_half.records_full),
    ),
    daemon(
        "accounts_full",
        Counter,
        "Users that did not fit the ledger",
        |it| number(it.kernel_half.accounts_full),
    ),
    daemon(
        "kills_retried",
        Counter,
        "Kills sent at a second try",
        |it| number(it.kernel_half.kills_retried),
    ),
    daemon(
        "skipped_runs",
        Counter,
        "Runs of the ledger's programs that the kernel skipped",
        |it| number(it.kernel_half.skipped_runs),
    ),
    daemon(
        "files",
        Gauge,
        "Files in memory that the last count met",
        |it| number(it.kernel_half.files),
    ),
    daemon("files_count_seconds", Gauge, "Time it took", |it| {
        seconds(it.kernel_half.files_count_ns)
    }),
    daemon(
        "files_count_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.files_count_max_ns),
    ),
    daemon(
        "files_counts_skipped",
        Counter,
        "Counts that ended before the last file",
        |it| number(it.kernel_half.files_skipped),
    ),
    daemon(
        "surveys",
        Counter,
        "Looks at what an account's processes share, made to their end",
        |it| number(it.kernel_half.surveys.made),
    ),
    daemon(
        "surveys_failed",
        Counter,
        "Those that were not: the account counts in full",
        |it| number(it.kernel_half.surveys.failed),
    ),
    daemon("survey_seconds", Gauge, "Time the last one took", |it| {
        seconds(it.kernel_half.surveys.last_ns)
    }),
    daemon(
        "survey_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.surveys.longest_ns),
    ),
    daemon(
        "survey_spent_seconds",
        Counter,
        "Time all of them took",
        |it| seconds(it.kernel_half.surveys.spent_ns),
    ),
    daemon(
        "surveyed_accounts",
        Gauge,
        "Accounts that are surveyed again and again at the moment",
        |it| number(it.kernel_half.surveys.accounts),
    ),
    daemon(
        "copies_watched",
        Gauge,
        "1: copies of shared pages are watched for at the moment",
        |it| number(it.kernel_half.surveys.watching.into()),
    ),
    daemon(
        "reaped",
        Counter,
        "Killed processes whose memory is back",
        |it| number(it.reaps.reaped),
    ),
    daemon("reaped_bytes", Counter, "Memory that came back", |it| {
        bytes(it.reaps.freed)
    }),
    daemon(
        "unreaped",
        Counter,
        "Killed processes whose memory did not come back while it was waited for",
        |it| number(it.reaps.unreaped),
    ),
    daemon(
        "reap_longest_seconds",
        Gauge,
        "The longest wait for a killed process's memory",
        |it| seconds(it.reaps.longest?.get()),
    ),
    daemon(
        "threads_away",
        Gauge,
        "Threads of bursard's that wait for a process's memory and were replaced",
        |it| number(it.reaps.threads_away),
    ),
    daemon(
        "threads_lost",
        Counter,
        "Threads of bursard's that were replaced, because a process kept its memory's lock",
        |it| number(it.reaps.threads_lost),
    ),
    daemon(
        "left_alone",
        Counter,
        "How often nobody asked for a process's memory, because threads had been lost",
        |it| number(it.reaps.left_alone),
    ),
    daemon(
        "turned_away",
        Counter,
        "Killed processes that were only watched, because the reapers were behind",
        |it| number(it.reaps.turned_away),
    ),
    daemon(
        "untold",
        Counter,
        "Killed processes whose end is not told, because too many were awaited at once",
        |it| number(it.reaps.untold),
    ),
    daemon(
        "remarks",
        Gauge,
        "What an administrator should know (bursar status says what)",
        |it| number(it.remarks.len() as u64),
    ),
];

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

    fn samples(&self, status: &DaemonStatus) -> Vec<(Labels, Value)> {
        let accounts = status.accounts.iter();
        match self.source {
            Source::Daemon(of) => of(status)
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
        Some(TriggerKind::Bpf) => "bpf",
        Some(TriggerKind::Trace) => "trace",
        Some(TriggerKind::Poll) => "poll",
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

/// The status as an exposition.
pub(crate) fn exposition(status: &DaemonStatus) -> Result<String, fmt::Error> {
    let mut text = String::new();
    let always = [(about(status), Value::Number(1))];
    write_metric(&mut text, ABOUT, Gauge, ABOUT_HELP, &always)?;
    for metric in METRICS {
        let samples = metric.samples(status);
        if !samples.is_empty() {
            let name = metric.full_name();
            write_metric(&mut text, &name, metric.kind, metric.help, &samples)?;
        }
    }
    Ok(text)
}

/// Every metric with its kind and meaning.
pub(crate) fn list() -> String {
    let named = METRICS.iter().map(|metric| {
        let labels = match metric.source {
            Source::Daemon(_) => "",
            Source::Account(_) => "{account,uid}",
            Source::Row(_) => "{account,uid,resource}",
        };
        let Metric { kind, help, .. } = metric;
        format!("{}{labels}\n    {kind}. {help}\n", metric.full_name())
    });
    let about = format!("{ABOUT}{{version,trigger,gate}}\n    always 1. {ABOUT_HELP}\n");
    named.chain([about]).collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::{Correction, PssScanStatus};
    use insta::assert_snapshot;

    use super::*;
    use crate::sample::{account, accounts, daemon};
    use crate::view::exposition::tests::assert_understood;

    #[test]
    fn every_metric_says_what_it_is() {
        assert_snapshot!(list());
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
        status.kernel_half.surveys = PssScanStatus {
            made: 12,
            spent_ns: 1_500_000_000,
            ..PssScanStatus::default()
        };
        let text = exposition(&status).unwrap();
        for metric in METRICS {
            let name = format!("\n{}", metric.full_name());
            assert!(text.contains(&name), "{name} in {text}");
        }
        assert_understood(&text);
        assert_snapshot!(text);
    }

    #[test]
    fn a_name_cannot_end_its_label() {
        let text = exposition(&daemon(vec![account("a\"} 1\nx\\", 1000, 1, Some(2))])).unwrap();
        let held: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("bursar_held{"))
            .collect();
        let expected = r#"bursar_held{account="a\"} 1\nx\\",uid="1000",resource="memory"} 1048576"#;
        assert_eq!(held, [expected]);
    }

    #[test]
    fn without_a_bound_there_is_none() {
        let mut status = daemon(Vec::new());
        status.error_bound_bytes = Bytes::MAX;
        let text = exposition(&status).unwrap();
        assert!(!text.contains("\nbursar_error_bound"), "{text}");
        assert_understood(&text);
    }
}
