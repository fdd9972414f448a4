// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of a process that was to be killed, for people and in JSON.

use std::time::Duration;

use bursar_model::{Bytes, Nanos, Pid};
use bursar_reap::{Fate, Report};
use serde::Serialize;

use super::target::{Denied, Target};
use crate::complaint::complain;
use crate::failure::{Code, Failure};
use crate::output;
use crate::style::Charset;
use crate::view::words::span;

/// Below this a rate says nothing.
const MEASURABLE: Bytes = Bytes::from_mib(1);

/// What became of one of them.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<String>,
    /// Whether it is dead: gone, or without its memory and on its way.
    pub(super) killed: bool,
    /// What came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_bytes: Option<Bytes>,
    /// From the signal to its memory being back; of one that had ended before anybody waited for it unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ns: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_second: Option<Bytes>,
    /// `process_mrelease`, `exit`, `raised_exit`, `sigterm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// What was peculiar about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    found: Vec<String>,
    /// Shared memory that stays although it is dead, at most so much.
    #[serde(skip_serializing_if = "Option::is_none")]
    stays_bytes: Option<Bytes>,
    /// What that is called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stays: Vec<String>,
    /// Who maps it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<Pid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    pub(super) code: Option<Code>,
    /// It went by itself before it was killed.
    #[serde(skip)]
    pub(super) was_gone: bool,
}

impl Outcome {
    /// Ended when it was asked to.
    pub(super) fn ended_as_asked(target: &Target, took: Duration) -> Self {
        Self {
            duration_ns: Some(Nanos::new(
                u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            )),
            method: Some("sigterm".to_owned()),
            ..Self::ended(target)
        }
    }

    /// Was sent SIGKILL among many, and had ended when its turn came.
    pub(super) fn ended(target: &Target) -> Self {
        Self::exited(target.pidfd.pid(), target.comm.clone(), target.private)
    }

    pub(super) fn exited(pid: Pid, comm: String, private: Option<Bytes>) -> Self {
        Self {
            killed: true,
            freed_bytes: private,
            method: Some("exit".to_owned()),
            ..Self::of(pid, comm)
        }
    }

    /// The reapers have said nothing of it in time.
    pub(super) fn unanswered(pid: Pid, comm: String) -> Self {
        Self {
            reason: Some(format!(
                "the reapers do not answer: whether it is dead is not known; look with: ps -p {pid}"
            )),
            code: Some(Code::Failed),
            ..Self::of(pid, comm)
        }
    }

    fn of(pid: Pid, comm: String) -> Self {
        Self {
            pid: pid.get(),
            comm: Some(comm).filter(|comm| !comm.is_empty()),
            ..Self::default()
        }
    }

    pub(super) fn of_report(report: &Report, comm: String) -> Self {
        let freed = report.freed;
        let rate = freed.filter(|it| *it >= MEASURABLE);
        let (reason, code) = match &report.fate {
            Fate::Released | Fate::Exited | Fate::Raised => (None, None),
            Fate::Gone => (Some("has ended already".to_owned()), Some(Code::Failed)),
            Fate::NotPermitted => (
                Some("not permitted: it is not yours".to_owned()),
                Some(Code::NotPermitted),
            ),
            Fate::NotKilled(why) => (
                Some(format!("cannot send the signal: {why}")),
                Some(Code::Failed),
            ),
            Fate::MmShared(pid) => (
                Some(format!(
                    "is dead, and its memory stays: process {pid} shares its memory and is still running; end it \
                     to free the memory"
                )),
                Some(Code::Failed),
            ),
            Fate::Stuck(why) => (
                Some(format!("was sent SIGKILL and is still there: {why}")),
                Some(Code::Failed),
            ),
        };
        let is_back = report.fate.method().is_some() && report.fate != Fate::Gone;
        let stays = report.stays.clone().unwrap_or_default();
        Self {
            killed: is_back || matches!(report.fate, Fate::MmShared(_)),
            freed_bytes: freed.filter(|_| is_back),
            duration_ns: is_back.then_some(report.took),
            bytes_per_second: rate
                .filter(|_| is_back)
                .map(|it| it.scaled(1_000_000_000, report.took.get().max(1))),
            method: report.fate.method().filter(|_| is_back).map(str::to_owned),
            found: report.found.iter().map(|it| it.word().to_owned()).collect(),
            stays_bytes: report.stays.as_ref().map(|it| it.bytes),
            stays: stays.names,
            holders: stays.holders,
            reason,
            code,
            was_gone: report.fate == Fate::Gone,
            ..Self::of(report.pid, comm)
        }
    }

    pub(super) fn of_refusal(pid: Pid, denied: &Denied) -> Self {
        Self {
            pid: pid.get(),
            comm: denied.comm.clone(),
            reason: Some(denied.reason.clone()),
            code: Some(denied.code),
            was_gone: denied.is_gone,
            ..Self::default()
        }
    }
}

/// One line; on stderr where it went wrong.
pub(super) fn tell(outcome: &Outcome, charset: Charset) -> Result<(), Failure> {
    let pid = outcome.pid;
    let name = match &outcome.comm {
        Some(comm) => format!("process {pid} ({})", charset.shown(comm)),
        None => format!("process {pid}"),
    };
    let mut notes: Vec<String> = outcome
        .found
        .iter()
        .map(|it| it.replace('_', " "))
        .collect();
    if let Some(bytes) = outcome.stays_bytes {
        let names: Vec<String> = outcome.stays.iter().map(|it| charset.shown(it)).collect();
        let holders: Vec<String> = outcome.holders.iter().map(ToString::to_string).collect();
        let held = match holders.is_empty() {
            true => "mapped by nobody".to_owned(),
            false => format!("held by {}", holders.join(", ")),
        };
        notes.push(format!(
            "up to {bytes} of {} stays, {held}",
            names.join(", ")
        ));
    }
    let notes = if notes.is_empty() {
        String::new()
    } else {
        format!(" [{}]", notes.join("; "))
    };
    if let Some(reason) = &outcome.reason {
        complain(&format!("{name}: {reason}{notes}"));
        return Ok(());
    }
    if !outcome.killed {
        complain(&format!("{name}: not killed{notes}"));
        return Ok(());
    }
    let duration = outcome.duration_ns;
    let after = duration.map_or_else(String::new, |it| format!(" after {}", span(it, charset)));
    let method = outcome
        .method
        .as_deref()
        .unwrap_or("exit")
        .replace('_', " ");
    let back = match (outcome.freed_bytes, outcome.bytes_per_second) {
        (Some(freed), Some(rate)) => {
            let megabytes = rate.get() / 1_000_000;
            format!("gone{after}: {freed} back at {megabytes} MB/s by {method}")
        }
        (Some(freed), None) => format!("gone{after}: {freed} back by {method}"),
        (None, _) => format!("gone{after} by {method}"),
    };
    output::say(&format!("{name}: {back}{notes}"))
}
