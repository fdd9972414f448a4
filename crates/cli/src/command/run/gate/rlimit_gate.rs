// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rlimit gate: parent of a command, who lets each process of its tree grow only as far as there is
//! room, by its soft RLIMIT_DATA. The hard limit stays as it is, so everything can be undone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_host::{DataLimit, HostError, Proc, set_data_limit};
use bursar_model::{Bytes, Pid};
use rustix::io::Errno;
use rustix::process::{
    Resource, Rlimit, WaitOptions, WaitStatus, getrlimit, set_child_subreaper, setrlimit, wait,
};

use super::headroom::{self, Activity};
use super::ledger::Standing;
use super::tree::Tree;
use crate::command::run::signals::{self, Signals};
use crate::complaint::complain;
use crate::failure::Failure;
use crate::launch::Launch;

/// Between looks, far and near: whether somebody made a process, who would otherwise live on what he
/// inherited.
const GLANCE_FAR: Duration = Duration::from_millis(50);
const GLANCE: Duration = Duration::from_millis(25);
/// After a look that failed.
const LATER: Duration = Duration::from_secs(1);
/// What starting a child takes of us.
const OWN_NEEDS: u64 = 512 << 10;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct RlimitGate {
    tree: Tree,
    signals: Signals,
    own: DataLimit,
    socket: PathBuf,
    looked: Instant,
    has_complained: bool,
}

impl RlimitGate {
    /// One with nobody to steer yet, whose own limit is `own`.
    pub(super) fn new(tree: Tree, own: DataLimit, socket: &Path) -> Result<Self, Failure> {
        let signals = Signals::catch()?;
        set_child_subreaper(Some(rustix::process::getpid()))
            .map_err(|error| Failure::failed(format!("cannot keep orphans with us: {error}")))?;
        Ok(Self {
            tree,
            signals,
            own,
            socket: socket.to_owned(),
            looked: Instant::now(),
            has_complained: false,
        })
    }

    /// Starts the command, steers its processes and ends as it ended. Comes back only when it could
    /// not be started.
    pub(super) fn serve(mut self, launch: &Launch, standing: Standing) -> Failure {
        let command = match self.start(launch, standing) {
            Ok(command) => command,
            Err(failure) => return failure,
        };
        // A descriptor for each process; the command has its own limit by now.
        let files = getrlimit(Resource::Nofile);
        let most = Rlimit {
            current: files.maximum,
            ..files
        };
        let _ = setrlimit(Resource::Nofile, most);
        let status = self.attend(command);
        // Whoever outlives the command has no rlimit gate any more, and nobody who would give him more.
        let _ = self.tree.style(Duration::ZERO);
        let _ = self.tree.limit(|_, member| member.own);
        if let Some(signal) = status.terminating_signal() {
            signals::end_by(signal);
        }
        std::process::exit(status.exit_status().unwrap_or(1));
    }

    /// The command inherits its first limit: none of its instructions runs without one.
    fn start(&self, launch: &Launch, standing: Standing) -> Result<rustix::process::Pid, Failure> {
        let failed = |error: HostError| Failure::failed(error.to_string());
        let me = Pid::new(std::process::id());
        let status = Proc::host()
            .and_then(|proc| proc.status(me))
            .map_err(failed)?;
        let data = status
            .and_then(|it| it.memory)
            .map_or(0, |it| it.data.get());
        let share = standing.barrier.saturating_sub(standing.taken);
        let own = self.own.soft.map(Bytes::get);
        let first = headroom::soft(data.saturating_add(OWN_NEEDS), share, own, true);
        let first = DataLimit {
            soft: Some(Bytes::new(first)),
            ..self.own
        };
        set_data_limit(me, first).map_err(failed)?;
        let child = launch.spawn();
        set_data_limit(me, self.own).map_err(failed)?;
        let number = i32::try_from(child?.id()).ok();
        number
            .and_then(rustix::process::Pid::from_raw)
            .ok_or_else(|| Failure::failed("the command's process has no number"))
    }

    /// Until the command has ended.
    fn attend(&mut self, command: rustix::process::Pid) -> WaitStatus {
        let mut pause = Duration::from_millis(1);
        loop {
            pause = self.step(pause);
            let due = Instant::now() + pause;
            let glance = (pause / 5).clamp(GLANCE, GLANCE_FAR);
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                if self.signals.wait(left.min(glance)) {
                    self.signals.forward(command);
                    if let Some(status) = reap(command) {
                        return status;
                    }
                } else if left > glance && self.tree.may_have_grown() {
                    break;
                }
            }
        }
    }

    /// Looks and limits; says when to do so again.
    fn step(&mut self, last: Duration) -> Duration {
        match self.try_step(last) {
            Ok(pause) => pause,
            Err(failure) => {
                if let (false, Failure::Wrong(_, message)) = (self.has_complained, failure) {
                    self.has_complained = true;
                    complain(&format!(
                        "--gate: the command's processes keep the limits they have until this is over: {message}"
                    ));
                }
                LATER
            }
        }
    }

    fn try_step(&mut self, last: Duration) -> Result<Duration, Failure> {
        let failed = |error: HostError| Failure::failed(error.to_string());
        let elapsed = self.looked.elapsed();
        self.looked = Instant::now();
        // The processes before the ledger: what they take in between is counted twice and not never.
        self.tree.style(elapsed).map_err(failed)?;
        if self.tree.told_overfull() {
            complain(
                "--gate: the command has more processes than can be steered; the newest keep what they inherited",
            );
        }
        let Some(standing) = Standing::read(&self.socket)? else {
            self.tree.limit(|_, member| member.own).map_err(failed)?;
            self.has_complained = false;
            return Ok(headroom::pause(u64::MAX, 0, 0, last));
        };
        let untouched = self
            .tree
            .members()
            .fold(0_u64, |sum, member| sum.saturating_add(member.untouched));
        let grown = self
            .tree
            .members()
            .fold(0_u64, |sum, member| sum.saturating_add(member.grown));
        let taken = standing.taken.saturating_add(untouched);
        let free = standing.barrier.saturating_sub(taken);
        let activities: Vec<Activity> = self.tree.members().map(|it| it.activity).collect();
        let shares = headroom::shares(free, &activities);
        let is_below_limit = taken < standing.limit;
        self.tree
            .limit(|index, member| {
                let share = shares.get(index).copied().unwrap_or(0);
                Some(headroom::soft(
                    member.data,
                    share,
                    member.own,
                    is_below_limit,
                ))
            })
            .map_err(failed)?;
        self.has_complained = false;
        Ok(headroom::pause(free, standing.barrier, grown, elapsed))
    }
}

/// Buries whoever has ended; how the command did, if it has. Stops with it when it stopped.
fn reap(command: rustix::process::Pid) -> Option<WaitStatus> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if pid == command => {
                if status.stopped() {
                    signals::stop();
                } else if status.exited() || status.signaled() {
                    return Some(status);
                }
            }
            // An orphan's.
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}
