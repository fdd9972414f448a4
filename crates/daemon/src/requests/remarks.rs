// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an administrator should know.

use bursar_model::{DaemonCounts, KernelHalfStatus};

use crate::daemon::Daemon;

/// On what is configured.
fn on_files(daemon: &Daemon) -> Vec<String> {
    let mut remarks = daemon.standing_remarks.clone();
    remarks.extend(daemon.awaits_restart.clone());
    let unread = daemon.not_in_force.as_deref();
    remarks.extend(unread.map(|why| format!("limits are not in force as they are written: {why}")));
    remarks.extend(daemon.retries.remarks());
    remarks.extend_from_slice(daemon.exempt.remarks());
    remarks.extend_from_slice(daemon.spared_programs.remarks());
    remarks
}

/// In words; those that are counts come last, and how many they are.
pub(super) fn remarks(daemon: &mut Daemon) -> (Vec<String>, DaemonCounts) {
    let mut remarks = on_files(daemon);
    remarks.extend(daemon.watermarks.remark.clone());
    remarks.extend(
        daemon
            .accounts
            .table
            .plan()
            .remarks
            .iter()
            .map(|(who, text)| format!("{who}: {text}")),
    );
    remarks.extend(daemon.accounts.table.plan().notes.iter().cloned());
    remarks.extend(
        daemon
            .beancounters
            .remarks(daemon.accounts.backend.kernel(), &daemon.accounts.table),
    );
    let status = daemon.accounts.backend.status();
    if status.attached && status.timer && !status.counts_files {
        remarks.push(
            "files in tmpfs that no process maps do not count: the kernel half could not load what \
             counts them"
                .to_owned(),
        );
    }
    let readings = daemon.accounts.backend.readings();
    for reading in readings.iter().filter(|it| it.is_stuck()) {
        let (name, _) = daemon.accounts.table.name_of(reading.id);
        remarks.push(format!(
            "{name} holds {} in files that no kill would free (see: bursar why)",
            reading.stuck
        ));
    }
    let mut counts = counts(daemon);
    let counted: Vec<String> = bad_days(&counts, &status)
        .iter()
        .chain(&daemon.usage.troubles())
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    counts.remarks = counted.len() as u64;
    remarks.extend(counted);
    (remarks, counts)
}

/// What did not go as it should in bursard itself, and how often.
fn counts(daemon: &Daemon) -> DaemonCounts {
    let history = daemon.responder.recorder.history();
    let [unwritten, damaged, set_aside] = daemon.usage.troubles().map(|(count, _)| count);
    DaemonCounts {
        remarks: 0,
        connections_cut: daemon.admission.cut,
        requests_delayed: daemon.admission.delayed,
        readers_left_out: daemon.responder.background.unnotified(),
        history_unwritten: history.unwritten,
        history_unreadable: history.unreadable,
        usage_unwritten: unwritten,
        usage_damaged: damaged.saturating_add(set_aside),
    }
}

/// The same in words, and the kernel half's; what is about usage has words of its own.
fn bad_days(counts: &DaemonCounts, status: &KernelHalfStatus) -> [(u64, &'static str); 10] {
    [
        (
            status.events_lost,
            "events did not fit the ring buffer (ledger.events_bytes)",
        ),
        (
            status.events_unrecorded,
            "events at most are gone with a bursard that was killed",
        ),
        (
            status.records_full,
            "times a process did not fit the ledger (ledger.max_processes)",
        ),
        (
            status.accounts_full,
            "times a user did not fit the ledger (ledger.max_accounts)",
        ),
        (
            status.members_lost,
            "children could not be kept in the account their parents have entered",
        ),
        (
            counts.history_unwritten,
            "events could not be written to the history",
        ),
        (
            counts.history_unreadable,
            "lines of the history were no events",
        ),
        (
            counts.readers_left_out,
            "readers of a message were left out (64 users of a shared account are told at a time)",
        ),
        (
            counts.connections_cut,
            "connections to bursard were refused or cut (more than a user may have, or events unread)",
        ),
        (
            counts.requests_delayed,
            "requests had to wait, for their user had asked for more than a tenth of a processor",
        ),
    ]
}
