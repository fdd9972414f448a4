// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar kill`: SIGKILL, and the memory back at once, wherever they were running (S2).

mod target;
mod whom;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bursar_host::{Proc, Sent, Signal};
use bursar_model::{Bytes, Nanos, Pid, Uid};
use bursar_reap::{Errand, Fate, Job, News, Reaper, Report, Victim};
use bursar_watchdog::{Owner, TimedQuery};
use clap::Args;
use serde::Serialize;

use crate::caller::{Caller, Form};
use crate::complaint::complain;
use crate::failure::{Code, Failure};
use crate::output;
use crate::style::Charset;
use crate::view::words::span;
use target::{Denied, Target};

/// How long processes may take to be gone; the reapers give up on one after 30 s.
const PATIENCE: Duration = Duration::from_secs(35);
/// Users who start processes while theirs are killed are looked after so many times.
const ROUNDS: usize = 8;
/// Below this a rate says nothing.
const MEASURABLE: Bytes = Bytes::from_mib(1);

/// Kill processes and take their memory back at once
///
/// Wherever they were running: stopped, frozen, throttled, starved. Says of each what came back, how
/// fast and how, and what did not. Refuses process 1, kernel threads and itself, and never hits a
/// process that took over a number in the meantime. Needs root for other users' processes, and for
/// reapers that cannot be starved.
///
/// Of a user or a group all processes are killed, also those that begin meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// The processes
    #[arg(required_unless_present_any = ["user", "group"], value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
    /// All processes of this user (a name or a uid)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids", "group"])]
    user: Option<String>,
    /// All processes of the members of this Unix group
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids"])]
    group: Option<String>,
    /// Do not ask before killing everything of a user or group
    #[arg(long)]
    yes: bool,
    /// Ask them to end first (SIGTERM) and wait this long: 5s, 500ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    graceful: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    match number.parse::<u64>() {
        Ok(count) if count.saturating_mul(unit) <= 3_600_000 => {
            Ok(Duration::from_millis(count.saturating_mul(unit)))
        }
        _ => Err("give a time up to an hour, like 5s or 500ms".to_owned()),
    }
}

/// What became of one of them.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<String>,
    /// Whether it is dead: gone, or without its memory and on its way.
    killed: bool,
    /// What came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_bytes: Option<Bytes>,
    /// From the signal to its memory being back.
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
    code: Option<Code>,
    /// It went by itself before it was killed.
    #[serde(skip)]
    was_gone: bool,
}

impl Kill {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
        let proc = Proc::host().map_err(|error| failed(&error))?;
        let mut query =
            TimedQuery::new("kill-query", Arc::default()).map_err(|error| failed(&error))?;
        let whose = match (&self.user, &self.group) {
            (Some(name), _) => Some((format!("user {name}"), whom::user(name)?)),
            (None, Some(name)) => Some((format!("group {name}"), whom::group(name)?)),
            (None, None) => None,
        };
        let (outcomes, left) = match &whose {
            Some((name, uids)) => self.kill_theirs(&mut query, &proc, name, uids)?,
            None => {
                // Who names one twice does not want to hear that it has ended already.
                let mut seen = BTreeSet::new();
                let named = self.pids.iter().filter(|pid| seen.insert(**pid));
                let open = |&pid: &u32| {
                    let pid = Pid::new(pid);
                    (pid, Target::open(&mut query, &proc, pid, None))
                };
                (kill(named.map(open).collect(), self.graceful)?, 0)
            }
        };
        match caller.form {
            Form::Json => caller.answer(&outcomes, |_| String::new())?,
            Form::People => {
                for outcome in &outcomes {
                    tell(outcome, caller.style.charset)?;
                }
            }
        }
        if left > 0 {
            return Err(Failure::failed(format!(
                "{left} more have begun meanwhile: end what begins them"
            )));
        }
        let worst = outcomes.iter().filter_map(|outcome| outcome.code).max();
        worst.map_or(Ok(()), |code| Err(Failure::Answer(code)))
    }
}

impl Kill {
    /// Until they run nothing any more, or have begun more processes too often: how many of those are left.
    /// Who goes by himself is no failure here.
    fn kill_theirs(
        &self,
        query: &mut TimedQuery,
        proc: &Proc,
        name: &str,
        uids: &[Uid],
    ) -> Result<(Vec<Outcome>, usize), Failure> {
        let mut theirs = whom::processes(proc, uids)?;
        if theirs.is_empty() {
            return Err(Failure::failed(format!("{name} runs nothing")));
        }
        if !self.yes {
            whom::confirm(name, &theirs)?;
        }
        let mut told: Vec<Outcome> = Vec::new();
        for _ in 0..ROUNDS {
            let open = |it: &whom::Theirs| (it.pid, Target::open(query, proc, it.pid, Some(uids)));
            let outcomes = kill(theirs.iter().map(open).collect(), self.graceful)?;
            told.extend(outcomes.into_iter().filter(|it| !it.was_gone));
            theirs = whom::processes(proc, uids)?;
            // Those that could not be killed are told already.
            theirs.retain(|it| told.iter().all(|known| known.pid != it.pid.get()));
            if theirs.is_empty() {
                break;
            }
        }
        Ok((told, theirs.len()))
    }
}

/// Deals with all of them together: one that is slow to go delays nobody's signal.
fn kill(
    targets: Vec<(Pid, Result<Target, Denied>)>,
    graceful: Option<Duration>,
) -> Result<Vec<Outcome>, Failure> {
    let mut order = Vec::new();
    let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
    let mut held = Vec::new();
    for (pid, target) in targets {
        order.push(pid.get());
        match target {
            Ok(target) => held.push(target),
            Err(denied) => {
                outcomes.insert(pid.get(), Outcome::of_refusal(pid, &denied));
            }
        }
    }
    if let Some(grace) = graceful {
        held = ask(held, grace, &mut outcomes);
    }
    if !held.is_empty() {
        let comms: BTreeMap<u32, String> = held
            .iter()
            .map(|it| (it.pidfd.pid().get(), it.comm.clone()))
            .collect();
        for report in reap(held)? {
            let comm = comms.get(&report.pid.get()).cloned().unwrap_or_default();
            outcomes.insert(report.pid.get(), Outcome::of_report(&report, comm));
        }
    }
    Ok(order
        .iter()
        .filter_map(|pid| outcomes.remove(pid))
        .collect())
}

/// Sends SIGTERM to all and returns those who are still there after `grace`.
fn ask(
    targets: Vec<Target>,
    grace: Duration,
    outcomes: &mut BTreeMap<u32, Outcome>,
) -> Vec<Target> {
    let start = Instant::now();
    let mut asked = Vec::new();
    for target in targets {
        let pid = target.pidfd.pid();
        match target.pidfd.send(Signal::TERM) {
            Ok(Sent::Done) => asked.push(target),
            Ok(Sent::Gone) => {
                let outcome = Outcome::gone(&target, start.elapsed());
                outcomes.insert(pid.get(), outcome);
            }
            Err(error) => {
                let refusal = Outcome::of_refusal(pid, &target.refused(&error));
                outcomes.insert(pid.get(), refusal);
            }
        }
    }
    asked
        .into_iter()
        .filter(|target| {
            let left = grace.saturating_sub(start.elapsed());
            let has_ended = target.pidfd.wait_readable(Some(left)).unwrap_or(false);
            if has_ended {
                let outcome = Outcome::gone(target, start.elapsed());
                outcomes.insert(target.pidfd.pid().get(), outcome);
            }
            !has_ended
        })
        .collect()
}

fn reap(targets: Vec<Target>) -> Result<Vec<Report>, Failure> {
    let (outbox, news) = channel();
    let outbox = Mutex::new(outbox);
    let reaper = Reaper::start(move |one| {
        if let (News::Settled(report), Ok(outbox)) = (one, outbox.lock()) {
            // Nobody listens any more: the patience was over.
            let _ = outbox.send(report);
        }
    });
    let reaper = reaper.map_err(|error| Failure::failed(error.to_string()))?;
    let victims: Vec<Victim> = targets
        .into_iter()
        .map(|target| {
            let mut victim = Victim::new(target.pidfd, Nanos::new(0), 0);
            victim.owner = target.uid.map(Owner::User);
            victim.private = target.private;
            victim
        })
        .collect();
    let count = victims.len();
    reaper.hand(Job {
        errand: Errand::Kill,
        victims,
    });
    let deadline = Instant::now() + PATIENCE;
    let mut reports = Vec::new();
    while reports.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        match news.recv_timeout(left) {
            Ok(report) => reports.push(*report),
            Err(_) => return Err(Failure::failed("the reapers do not answer")),
        }
    }
    Ok(reports)
}

impl Outcome {
    fn gone(target: &Target, took: Duration) -> Self {
        Self {
            pid: target.pidfd.pid().get(),
            comm: Some(target.comm.clone()).filter(|comm| !comm.is_empty()),
            killed: true,
            freed_bytes: target.private,
            duration_ns: Some(Nanos::new(
                u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            )),
            method: Some("sigterm".to_owned()),
            ..Self::default()
        }
    }

    fn of_report(report: &Report, comm: String) -> Self {
        let freed = report.freed;
        let rate = freed.filter(|it| *it >= MEASURABLE);
        let (reason, code) = match &report.fate {
            Fate::Released | Fate::Exited | Fate::Raised => (None, None),
            Fate::Gone => (Some("has ended already".to_owned()), Some(Code::Failed)),
            Fate::NotKilled(why) if why.contains("not permitted") => (
                Some("not permitted: it is not yours".to_owned()),
                Some(Code::NotPermitted),
            ),
            Fate::NotKilled(why) => (
                Some(format!("cannot send the signal: {why}")),
                Some(Code::Failed),
            ),
            Fate::MmShared(pid) => (
                Some(format!(
                    "is dead, and its memory stays: process {pid} has the same and lives"
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
            pid: report.pid.get(),
            comm: Some(comm).filter(|comm| !comm.is_empty()),
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
        }
    }

    fn of_refusal(pid: Pid, denied: &Denied) -> Self {
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
fn tell(outcome: &Outcome, charset: Charset) -> Result<(), Failure> {
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
    let Some(duration) = outcome.duration_ns else {
        complain(&format!("{name}: not killed{notes}"));
        return Ok(());
    };
    let after = span(duration, charset);
    let method = outcome
        .method
        .as_deref()
        .unwrap_or("exit")
        .replace('_', " ");
    let back = match (outcome.freed_bytes, outcome.bytes_per_second) {
        (Some(freed), Some(rate)) => {
            let megabytes = rate.get() / 1_000_000;
            format!("gone after {after}: {freed} back at {megabytes} MB/s by {method}")
        }
        (Some(freed), None) => format!("gone after {after}: {freed} back by {method}"),
        (None, _) => format!("gone after {after} by {method}"),
    };
    output::say(&format!("{name}: {back}{notes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        let table = [
            ("5s", Some(5000)),
            ("5", Some(5000)),
            ("500ms", Some(500)),
            ("0", Some(0)),
        ];
        for (text, ms) in table {
            assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text}");
        }
        for text in ["", "s", "-1s", "1h", "99999999s", "5 s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
