// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of metrics: what each is called, what it means and where it comes from.

use bursar_model::{AccountStatus, Bytes, DaemonStatus, Row};

use bursar_text::exposition::Kind::{self, Counter, Gauge};
use bursar_text::exposition::Value;

/// Where it comes from; `None`: not now, or not here.
pub(super) enum Source {
    Daemon(fn(&DaemonStatus) -> Option<Value>),
    /// Of the daemon too, and told to root only: what others get is nothing, and no figure.
    Roots(fn(&DaemonStatus) -> Option<Value>),
    Account(fn(&AccountStatus) -> Option<Value>),
    Row(fn(&Row) -> Option<Value>),
}

pub(super) struct Metric {
    /// Without `bursar_`, and without the `_total` that counters get.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) source: Source,
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

const fn roots(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    of: fn(&DaemonStatus) -> Option<Value>,
) -> Metric {
    Metric {
        name,
        kind,
        help,
        source: Source::Roots(of),
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

pub(super) const METRICS: &[Metric] = &[
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
        "account_observed",
        Gauge,
        "1: the bounds on memory are observed, not enforced",
        |it| number(it.mode.is_observed().into()),
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
        "CPUs that may keep part of a counter back: error_bound_bytes is eight pages for each, 64 at least",
        |it| number(it.kernel_half.counter_cpus.into()),
    ),
    daemon(
        "counter_batch_pages",
        Gauge,
        "Pages that each may keep back",
        |it| number(it.kernel_half.counter_batch_pages.into()),
    ),
    roots(
        "drift_repaired_bytes",
        Counter,
        "Ledger differences found and repaired",
        |it| bytes(it.kernel_half.drift_repaired_bytes),
    ),
    roots(
        "drift_repairs",
        Counter,
        "How often one was repaired",
        |it| number(it.kernel_half.drift_repairs),
    ),
    roots(
        "drift_repaired_bytes_per_resum",
        Gauge,
        "Repaired by a re-sum on the average, rounded up",
        |it| bytes(it.kernel_half.drift_repaired_bytes_per_resum),
    ),
    roots("resums", Counter, "Exact re-sums made", |it| {
        number(it.kernel_half.resums)
    }),
    roots("resum_seconds", Gauge, "Time the last one took", |it| {
        seconds(it.kernel_half.resum_ns)
    }),
    roots(
        "resum_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.resum_max_ns),
    ),
    roots(
        "processes",
        Gauge,
        "Processes that the last walk met",
        |it| number(it.kernel_half.resum_processes),
    ),
    roots(
        "decision_longest_seconds",
        Gauge,
        "Time the longest decision took",
        |it| seconds(it.kernel_half.decision_max_ns),
    ),
    roots(
        "stale_records",
        Counter,
        "Processes whose end no event told",
        |it| number(it.kernel_half.stale_records),
    ),
    roots(
        "missed_processes",
        Counter,
        "Processes whose beginning no event told; those before the kernel half included",
        |it| number(it.kernel_half.missed_processes),
    ),
    roots(
        "events_lost",
        Counter,
        "Events that did not fit the ring buffer: they happened and are not recorded",
        |it| number(it.kernel_half.events_lost),
    ),
    roots(
        "events_unrecorded",
        Counter,
        "Events, at most, that are gone with a bursard that was killed: they happened and are not recorded",
        |it| number(it.kernel_half.events_unrecorded),
    ),
    roots(
        "records_full",
        Counter,
        "Processes that did not fit the ledger",
        |it| number(it.kernel_half.records_full),
    ),
    roots(
        "accounts_full",
        Counter,
        "Users that did not fit the ledger",
        |it| number(it.kernel_half.accounts_full),
    ),
    roots(
        "kills_retried",
        Counter,
        "Kills sent at a second try",
        |it| number(it.kernel_half.kills_retried),
    ),
    roots(
        "skipped_runs",
        Counter,
        "Runs of the ledger's programs that the kernel skipped",
        |it| number(it.kernel_half.skipped_runs),
    ),
    roots(
        "files",
        Gauge,
        "Files in memory that the last count met",
        |it| number(it.kernel_half.files),
    ),
    roots("files_count_seconds", Gauge, "Time it took", |it| {
        seconds(it.kernel_half.files_count_ns)
    }),
    roots(
        "files_count_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.files_count_max_ns),
    ),
    roots(
        "files_counts_skipped",
        Counter,
        "Counts that ended before the last file",
        |it| number(it.kernel_half.files_skipped),
    ),
    roots(
        "surveys",
        Counter,
        "Looks at what an account's processes share, made to their end",
        |it| number(it.kernel_half.surveys.made),
    ),
    roots(
        "surveys_failed",
        Counter,
        "Those that were not: the account counts in full",
        |it| number(it.kernel_half.surveys.failed),
    ),
    roots("survey_seconds", Gauge, "Time the last one took", |it| {
        seconds(it.kernel_half.surveys.last_ns)
    }),
    roots(
        "survey_longest_seconds",
        Gauge,
        "Time the longest one took",
        |it| seconds(it.kernel_half.surveys.longest_ns),
    ),
    roots(
        "survey_spent_seconds",
        Counter,
        "Time all of them took",
        |it| seconds(it.kernel_half.surveys.spent_ns),
    ),
    roots(
        "surveyed_accounts",
        Gauge,
        "Accounts that are surveyed again and again at the moment",
        |it| number(it.kernel_half.surveys.accounts),
    ),
    roots(
        "copies_watched",
        Gauge,
        "1: copies of shared pages are watched for at the moment",
        |it| number(it.kernel_half.surveys.watching.into()),
    ),
    roots(
        "reaped",
        Counter,
        "Killed processes whose memory is back",
        |it| number(it.reaps.reaped),
    ),
    roots("reaped_bytes", Counter, "Memory that came back", |it| {
        bytes(it.reaps.freed)
    }),
    roots(
        "unreaped",
        Counter,
        "Killed processes whose memory did not come back while it was waited for",
        |it| number(it.reaps.unreaped),
    ),
    roots(
        "reap_longest_seconds",
        Gauge,
        "The longest wait for a killed process's memory",
        |it| seconds(it.reaps.longest?.get()),
    ),
    roots(
        "threads_away",
        Gauge,
        "Threads of bursard's that wait for a process's memory and were replaced",
        |it| number(it.reaps.threads_away),
    ),
    roots(
        "threads_lost",
        Counter,
        "Threads of bursard's that were replaced, because a process kept its memory's lock",
        |it| number(it.reaps.threads_lost),
    ),
    roots(
        "left_alone",
        Counter,
        "How often nobody asked for a process's memory, because threads had been lost",
        |it| number(it.reaps.left_alone),
    ),
    roots(
        "turned_away",
        Counter,
        "Killed processes that were only watched, because the reapers were behind",
        |it| number(it.reaps.turned_away),
    ),
    roots(
        "untold",
        Counter,
        "Killed processes whose end is not told, because too many were awaited at once",
        |it| number(it.reaps.untold),
    ),
    roots(
        "members_lost",
        Counter,
        "Children that could not be kept in the account their parents have entered",
        |it| number(it.kernel_half.members_lost),
    ),
    roots(
        "connections_cut",
        Counter,
        "Connections to bursard that were refused or cut: more than a user may have, or events unread",
        |it| number(it.counts.connections_cut),
    ),
    roots(
        "requests_delayed",
        Counter,
        "Requests that had to wait: their user had asked for more than a tenth of a processor",
        |it| number(it.counts.requests_delayed),
    ),
    roots(
        "readers_left_out",
        Counter,
        "Readers of a message who were left out: 64 users of a shared account are told at a time",
        |it| number(it.counts.readers_left_out),
    ),
    roots(
        "history_unwritten",
        Counter,
        "Events that could not be written to the history",
        |it| number(it.counts.history_unwritten),
    ),
    roots(
        "history_unreadable",
        Counter,
        "Lines of the history that were no events",
        |it| number(it.counts.history_unreadable),
    ),
    roots(
        "usage_unwritten",
        Counter,
        "Samples of usage that could not be written",
        |it| number(it.counts.usage_unwritten),
    ),
    roots(
        "usage_damaged",
        Counter,
        "Records and files of usage that could not be read",
        |it| number(it.counts.usage_damaged),
    ),
    roots(
        "remarks",
        Gauge,
        "What an administrator should know, without counters (bursar status says what)",
        |it| number((it.remarks.len() as u64).saturating_sub(it.counts.remarks)),
    ),
];
