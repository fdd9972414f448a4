// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an administrator should know.

use bursar_model::KernelHalfStatus;

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

pub(super) fn remarks(daemon: &mut Daemon) -> Vec<String> {
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
    remarks.extend(
        bad_days(daemon, &status)
            .iter()
            .chain(&daemon.usage.troubles())
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}")),
    );
    remarks
}

/// What did not go as it should, and how often.
fn bad_days(daemon: &Daemon, status: &KernelHalfStatus) -> [(u64, &'static str); 10] {
    let history = daemon.responder.recorder.history();
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
            history.unwritten,
            "events could not be written to the history",
        ),
        (history.unreadable, "lines of the history were no events"),
        (
            daemon.responder.background.unnotified(),
            "readers of a message were left out (64 users of a shared account are told at a time)",
        ),
        (
            daemon.admission.cut,
            "connections to bursard were refused or cut (more than a user may have, or events unread)",
        ),
        (
            daemon.admission.delayed,
            "requests had to wait, for their user had asked for more than a tenth of a processor",
        ),
    ]
}
