// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One kill, timed from the signal until 99 % of the memory is back: by the victim's own control group,
//! which is charged exactly, not by what anybody says about it.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bursar_host::{Pidfd, Signal, clock, sched};
use bursar_model::{Nanos, Pid};
use clap::ValueEnum;

use crate::pool::{Outcome, Reapers};
use crate::sessions::Sessions;
use crate::state::Scene;

/// How a victim is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// SIGKILL.
    Normal,
    /// bursar's reapers.
    Bursar,
}

/// Kills in either way.
pub(crate) struct Killer {
    reapers: Reapers,
}

/// What one kill showed.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    /// From the signal to 99 % of the memory being back.
    pub(crate) took: Duration,
    /// The window in which that was, CLOCK_MONOTONIC.
    pub(crate) window: (Nanos, Nanos),
    /// What bursar says about it.
    pub(crate) outcomes: Vec<Outcome>,
}

/// Between two looks at the group, at least and at most.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));
const TIMEOUT: Duration = Duration::from_secs(300);

impl Killer {
    pub(crate) fn new(sessions: Sessions, dying: bool) -> Result<Self> {
        Ok(Self {
            reapers: Reapers::start(sessions, dying)?,
        })
    }

    pub(crate) fn kill(&mut self, scene: &Scene, method: Method) -> Result<Trial> {
        let file = scene.group.held()?;
        let held = || -> Result<u64> {
            let mut text = [0_u8; 32];
            let length = file.read_at(&mut text, 0)?;
            let text = std::str::from_utf8(text.get(..length).unwrap_or_default())?;
            text.trim().parse().context("the group's usage")
        };
        let all = held()?;
        let enough = all / 100;
        // Above everybody, also above reapers: a starved clock measures nothing.
        sched::set_class(sched::own_thread(), sched::Class::RealTime(50));
        let pids = scene.victim.all();
        let open = |&pid: &u32| Pidfd::open(Pid::new(pid))?.context("the victim is gone");
        let victims = pids.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut start = clock::monotonic();
        match method {
            Method::Normal => {
                for victim in &victims {
                    victim.send(Signal::KILL)?;
                }
            }
            Method::Bursar => self.reapers.kill(&pids)?,
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = held()?;
            if left <= enough {
                break;
            }
            if Instant::now() > deadline {
                sched::set_class(sched::own_thread(), sched::Class::Fair(0));
                // What is left is given back before anybody waits for it.
                scene.group.let_go();
                bail!("{left} bytes are still held after {TIMEOUT:?}");
            }
            let since = clock::monotonic().get().saturating_sub(start.get());
            std::thread::sleep(until_half(all, left, since));
        }
        let end = clock::monotonic();
        sched::set_class(sched::own_thread(), sched::Class::Fair(0));
        let mut outcomes = Vec::new();
        if method == Method::Bursar {
            outcomes = self.reapers.outcomes(pids.len())?;
            let signalled = outcomes.iter().map(|it| it.signalled_ns).min();
            start = signalled.map_or(start, Nanos::new);
        }
        let took = Duration::from_nanos(end.get().saturating_sub(start.get()));
        Ok(Trial {
            took,
            window: (start, end),
            outcomes,
        })
    }
}

/// How long half of what is left takes at the rate so far, which may change: an eighth of the time that has
/// passed at most. Whoever looks ten times a millisecond, above everybody, takes a part of a CPU: from the
/// reapers where they want all of them, from nobody where a victim exits beside an idle one.
fn until_half(all: u64, left: u64, since_ns: u64) -> Duration {
    let gone = all.saturating_sub(left).max(1);
    let half = u128::from(since_ns) * u128::from(left) / u128::from(gone) / 2;
    let wait = half.min(u128::from(since_ns / 8));
    let (least, most) = LOOK_AFTER;
    Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)).clamp(least, most)
}

/// Waits until the rest of the machine leaves nine tenths of its CPUs alone for a moment; false when it
/// does not within `timeout`.
pub(crate) fn await_quiet(timeout: Duration) -> Result<bool> {
    let look = || -> Result<(u64, u64)> {
        let text = std::fs::read_to_string("/proc/stat").context("read /proc/stat")?;
        let line = text.lines().next().context("its first line")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|it| it.parse().ok())
            .collect();
        Ok((
            ticks.iter().take(8).sum(),
            ticks.get(3).copied().unwrap_or(0),
        ))
    };
    let deadline = Instant::now() + timeout;
    loop {
        let before = look()?;
        std::thread::sleep(Duration::from_millis(150));
        let after = look()?;
        let (all, idle) = (after.0 - before.0, after.1 - before.1);
        if idle * 10 >= all * 9 {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
    }
}
