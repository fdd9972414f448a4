// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar kill`: SIGKILL, and wait until they are gone.

mod target;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bursar_model::Nanos;
use clap::Args;
use serde::Serialize;

use crate::caller::{Caller, Form};
use crate::failure::{Code, Failure};
use crate::look::Charset;
use crate::output;
use crate::view::words::span;
use target::{Denied, Target};

/// How long processes may take to be gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Kill processes and wait until they are gone
///
/// Says how long each took. Refuses process 1, kernel threads and itself, and never hits a process
/// that took over a number in the meantime.
#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
}

/// What became of one of them.
#[derive(Debug, Serialize)]
struct Outcome {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<String>,
    /// Whether it is gone.
    killed: bool,
    /// From the signal to its being gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ns: Option<Nanos>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip)]
    code: Option<Code>,
}

impl Kill {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        // Who names one twice does not want to hear that it has ended already.
        let mut seen = BTreeSet::new();
        let pids: Vec<u32> = self
            .pids
            .into_iter()
            .filter(|pid| seen.insert(*pid))
            .collect();
        let outcomes = kill(&pids);
        match caller.form {
            Form::Json => caller.answer(&outcomes, |_| String::new())?,
            Form::People => {
                for outcome in &outcomes {
                    tell(outcome, caller.look.charset)?;
                }
            }
        }
        let worst = outcomes.iter().filter_map(|outcome| outcome.code).max();
        worst.map_or(Ok(()), |code| Err(Failure::Answer(code)))
    }
}

/// Signals all before it waits for any, so that one that is slow to go delays nobody's signal.
fn kill(pids: &[u32]) -> Vec<Outcome> {
    let send = |pid: &u32| -> Result<(Target, Instant), Denied> {
        let target = Target::open(*pid)?;
        let start = Instant::now();
        target.kill()?;
        Ok((target, start))
    };
    let sent: Vec<_> = pids.iter().map(send).collect();
    let targets: Vec<&Target> = sent.iter().flatten().map(|(target, _)| target).collect();
    let mut ends = target::wait(&targets, Instant::now() + PATIENCE).into_iter();
    let outcome = |(pid, sent): (&u32, &Result<_, Denied>)| match sent {
        Ok((target, start)) => Outcome::of_signal(*pid, target, *start, ends.next().flatten()),
        Err(denied) => Outcome::of_refusal(*pid, denied),
    };
    pids.iter().zip(&sent).map(outcome).collect()
}

impl Outcome {
    fn of_signal(pid: u32, target: &Target, start: Instant, end: Option<Instant>) -> Self {
        let comm = Some(target.comm().to_owned()).filter(|comm| !comm.is_empty());
        let took = end.map(|end| end.duration_since(start).as_nanos());
        let seconds = PATIENCE.as_secs();
        let stuck = || {
            format!("was sent SIGKILL and is still there after {seconds} s (stuck in the kernel)")
        };
        Self {
            pid,
            comm,
            killed: end.is_some(),
            duration_ns: took.map(|nanos| Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX))),
            reason: end.is_none().then(stuck),
            code: end.is_none().then_some(Code::Failed),
        }
    }

    fn of_refusal(pid: u32, denied: &Denied) -> Self {
        Self {
            pid,
            comm: denied.comm.clone(),
            killed: false,
            duration_ns: None,
            reason: Some(denied.reason.clone()),
            code: Some(denied.code),
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
    match (&outcome.reason, outcome.duration_ns) {
        (None, Some(duration)) => {
            output::say(&format!("{name}: gone after {}", span(duration, charset)))
        }
        (reason, _) => {
            output::complain(&format!(
                "{name}: {}",
                reason.as_deref().unwrap_or("not killed")
            ));
            Ok(())
        }
    }
}
