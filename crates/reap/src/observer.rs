// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Observes a victim: one look costs some 100 µs, before the signal.

use bursar_host::{Cgroups, Controller, HostError, Memory, Proc, SharedMemory, sched};
use bursar_model::{Bytes, Pid};
use bursar_policy::{Doing, Freezer, MachineFacts, Standing, VictimFacts};

/// What was seen of a victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    /// For the plan.
    pub(crate) facts: VictimFacts,
    /// The shared memory it maps, if it has touched any.
    pub(crate) shared: Vec<SharedMemory>,
    /// Whether it had memory of its own when it was looked at.
    pub(crate) has_memory: bool,
}

/// Looks at processes and at the machine.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) proc: Proc,
    pub(crate) cgroups: Cgroups,
    pub(crate) cpus: u32,
}

impl Observer {
    /// For this machine.
    ///
    /// # Errors
    /// When /proc cannot be opened.
    pub(crate) fn new() -> Result<Self, HostError> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            proc: Proc::host()?,
            // Without cgroups nothing is throttled or frozen.
            cgroups: Cgroups::find().unwrap_or_default(),
            cpus: u32::try_from(cpus).unwrap_or(1),
        })
    }

    /// A process as it is now; `None` when it is gone. Whoever asks holds its pidfd and asks that
    /// afterwards whether the process still lived: then it was this one that was looked at.
    pub(crate) fn observe(&self, pid: Pid) -> Option<Seen> {
        let stat = self.proc.stat(pid).ok().flatten()?;
        let status = self.proc.status(pid).ok().flatten()?;
        let memory = status.memory;
        let shared = memory.map_or(Bytes::ZERO, |it| it.rss_shmem);
        let doing = match stat.state {
            state if state.is_dead() => Doing::Ended,
            state if state.is_stopped() => Doing::Stopped,
            state if state.is_uninterruptible() => Doing::Uninterruptible,
            _ => Doing::Usual,
        };
        let standing = match sched::class(pid) {
            Some(sched::Class::Idle) => Standing::Last,
            Some(sched::Class::Fair(nice)) if nice > 0 => Standing::Low,
            _ => Standing::Fair,
        };
        let freezer = self.cgroups.of(pid, Controller::Freezer);
        let freezer = freezer.filter(|it| it.is_frozen()).map(|it| {
            if it.thaws_by_kill() {
                Freezer::ThawsByKill
            } else {
                Freezer::HoldsTheDying
            }
        });
        let quota = self.cgroups.of(pid, Controller::Cpu);
        let facts = VictimFacts {
            doing,
            threads: status.threads.max(stat.threads),
            private: memory.map_or(Bytes::ZERO, Memory::comes_back),
            shared,
            locked: memory.map_or(Bytes::ZERO, |it| it.locked),
            standing,
            cpus: status.cpus.unwrap_or(self.cpus).min(self.cpus),
            quota_permille: quota.and_then(|it| it.quota_permille()),
            freezer,
            tracer: status.tracer,
            // Of its threads the first one may have ended alone.
            is_dying: status.is_kill_pending
                || stat.is_killed
                || stat.is_exiting && status.threads <= 1,
        };
        let shared = if shared > Bytes::ZERO {
            self.proc
                .shared_memory(pid)
                .ok()
                .flatten()
                .unwrap_or_default()
        } else {
            Vec::new()
        };
        Some(Seen {
            facts,
            shared,
            has_memory: memory.is_some(),
        })
    }

    /// The machine as it is now. `runnable` leaves out the asking thread.
    pub(crate) fn machine(&self) -> MachineFacts {
        let runnable = self.proc.runnable().unwrap_or(0).saturating_sub(1);
        MachineFacts {
            cpus: self.cpus,
            runnable,
        }
    }
}

/// What is assumed of a victim that was gone before anybody looked.
pub(crate) fn unseen(cpus: u32, private: Option<Bytes>) -> VictimFacts {
    VictimFacts {
        doing: Doing::Usual,
        threads: 1,
        private: private.unwrap_or(Bytes::from_mib(64)),
        shared: Bytes::ZERO,
        locked: Bytes::ZERO,
        standing: Standing::Fair,
        cpus,
        quota_permille: None,
        freezer: None,
        tracer: None,
        is_dying: false,
    }
}
