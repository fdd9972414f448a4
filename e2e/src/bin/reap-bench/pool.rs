// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reapers, in a process of their own as they are in bursard and `bursar kill`: what they weigh beside
//! others depends on the session they are in.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_host::{Pidfd, Signal, clock};
use bursar_model::{Nanos, Pid};
use bursar_reap::{Job, JobKind, ReapEvent, Reaper, Victim};
use serde::{Deserialize, Serialize};

use crate::sessions::{Sessions, part};

const TIMEOUT: Duration = Duration::from_secs(40);

/// What became of one victim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// CLOCK_MONOTONIC.
    pub(crate) signalled_ns: u64,
    /// The method, or what else happened.
    pub(crate) how: String,
}

/// That process, seen from outside.
#[derive(Debug)]
pub(crate) struct Reapers {
    child: Child,
    orders: ChildStdin,
    outcomes: BufReader<ChildStdout>,
}

impl Reapers {
    pub(crate) fn start(sessions: Sessions, dying: bool) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("pool")
            .args(sessions.are_several().then_some("--apart"))
            .args(dying.then_some("--dying"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the reapers")?;
        let orders = child.stdin.take().context("their input")?;
        let mut outcomes = BufReader::new(child.stdout.take().context("their output")?);
        let mut line = String::new();
        outcomes.read_line(&mut line)?;
        ensure!(line.trim() == "there", "the reapers did not start");
        Ok(Self {
            child,
            orders,
            outcomes,
        })
    }

    /// Has these killed, without waiting for it.
    pub(crate) fn kill(&mut self, pids: &[u32]) -> Result<()> {
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        writeln!(self.orders, "{}", pids.join(" ")).context("order a kill")
    }

    /// What became of `count` of them.
    pub(crate) fn outcomes(&mut self, count: usize) -> Result<Vec<Outcome>> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut line = String::new();
            self.outcomes.read_line(&mut line)?;
            all.push(serde_json::from_str(&line).context("an outcome")?);
        }
        Ok(all)
    }
}

impl Drop for Reapers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process itself: a line of pids is a job, each victim's outcome a line. Until its input ends. The `dying` are
/// signalled before the pool hears of them.
pub(crate) fn serve(apart: bool, dying: bool) -> Result<()> {
    if apart {
        part()?;
    }
    let (outbox, reports) = channel();
    let outbox = Mutex::new(outbox);
    let reaper = Reaper::start(move |event| {
        if let (ReapEvent::Settled(report), Ok(outbox)) = (event, outbox.lock()) {
            let _ = outbox.send(*report);
        }
    })?;
    println!("there");
    for line in std::io::stdin().lines() {
        let mut victims = Vec::new();
        for pid in line?.split_whitespace() {
            let pidfd = Pidfd::open(Pid::new(pid.parse()?))?.context("the victim is gone")?;
            let mut signalled = Nanos::new(0);
            if dying {
                signalled = clock::monotonic();
                pidfd.send(Signal::KILL)?;
            }
            victims.push(Victim::new(pidfd, signalled, 0));
        }
        let count = victims.len();
        let kind = if dying { JobKind::Reap } else { JobKind::Kill };
        reaper.submit(Job { kind, victims });
        for _ in 0..count {
            let report = reports.recv_timeout(TIMEOUT).context("a report")?;
            let method = report.fate.method();
            let outcome = Outcome {
                signalled_ns: report.signalled.get(),
                how: method.map_or_else(|| format!("{:?}", report.fate), str::to_owned),
            };
            println!("{}", serde_json::to_string(&outcome)?);
        }
    }
    Ok(())
}
