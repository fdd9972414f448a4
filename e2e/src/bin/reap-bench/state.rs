// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The states that a victim is killed in.

use anyhow::{Result, ensure};
use bursar_host::sched::{self, Changed, Class};
use bursar_model::Pid;
use clap::ValueEnum;

use crate::group::Group;
use crate::victim::{Hold, PageKind, Pastime, Process};

/// Where a victim was running when it was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum State {
    /// Nobody else wants a CPU.
    Free,
    /// One busy loop on every core, the victim at normal priority.
    Busy,
    /// Its group has used up 10 % of one CPU.
    Quota10,
    /// Its group has used up 5 % of one CPU.
    Quota5,
    /// Nice 19, one busy loop on every core.
    Nice19,
    /// SCHED_IDLE, one busy loop on every core.
    Idle,
    /// Pinned to one core beside a busy loop there, at nice 19.
    Pinned,
    /// SIGSTOP.
    Stopped,
    /// In the freezer.
    Frozen,
    /// SCHED_IDLE with eight threads, one busy loop on every core.
    Threads,
    /// SCHED_IDLE, three processes that share the memory, one busy loop on every core; all are killed.
    Twins,
}

impl State {
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Free => "free core",
            Self::Busy => "busy cores",
            Self::Quota10 => "throttled 10 %",
            Self::Quota5 => "throttled 5 %",
            Self::Nice19 => "nice 19, busy cores",
            Self::Idle => "SCHED_IDLE, busy cores",
            Self::Pinned => "nice 19, pinned, busy core",
            Self::Stopped => "SIGSTOP",
            Self::Frozen => "frozen",
            Self::Threads => "SCHED_IDLE, 9 threads",
            Self::Twins => "SCHED_IDLE, 3 processes, one memory",
        }
    }

    const fn has_loops(self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Nice19 | Self::Idle | Self::Pinned | Self::Threads | Self::Twins
        )
    }
}

/// A victim in its state, and whoever makes life hard for it.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) victim: Process,
    _loops: Vec<Process>,
    pub(crate) group: Group,
}

impl Scene {
    pub(crate) fn set(state: State, mib: usize, pages: PageKind, apart: bool) -> Result<Self> {
        let throttled = matches!(state, State::Quota10 | State::Quota5);
        let group = Group::new("victim", throttled)?;
        let hold = Hold {
            mib,
            pages,
            pastime: if throttled {
                Pastime::Spin
            } else {
                Pastime::Sleep
            },
            threads: if state == State::Threads { 8 } else { 0 },
            twins: if state == State::Twins { 2 } else { 0 },
            apart,
        };
        let victim = Process::victim(hold, &group, throttled)?;
        let pid = victim.pid();
        let class = match state {
            State::Nice19 | State::Pinned => Some(Class::Fair(19)),
            State::Idle | State::Threads | State::Twins => Some(Class::Idle),
            _ => None,
        };
        if let Some(class) = class {
            for process in victim.all() {
                for task in std::fs::read_dir(format!("/proc/{process}/task"))? {
                    let thread = task?.file_name().to_string_lossy().parse()?;
                    sched::set_class(Pid::new(thread), class);
                }
            }
        }
        if state == State::Pinned {
            let pinned = sched::allow_cpu(Pid::new(pid), 0);
            ensure!(pinned == Changed::Done, "cannot pin the victim");
        }
        match state {
            State::Quota10 => group.limit_cpu(10)?,
            State::Quota5 => group.limit_cpu(5)?,
            State::Frozen => group.freeze()?,
            State::Stopped => {
                // SAFETY: our own child, not waited for yet.
                let sent = unsafe { libc::kill(i32::try_from(pid)?, libc::SIGSTOP) };
                ensure!(sent == 0, "SIGSTOP: {}", std::io::Error::last_os_error());
            }
            _ => {}
        }
        let cpus = std::thread::available_parallelism()?.get();
        let loops = if state.has_loops() {
            (0..cpus)
                .map(|cpu| Process::busy(cpu, apart))
                .collect::<Result<_>>()?
        } else {
            Vec::new()
        };
        // So that quotas are used up, loops run, and whoever is to stand still does.
        std::thread::sleep(std::time::Duration::from_millis(if throttled {
            250
        } else {
            60
        }));
        Ok(Self {
            victim,
            _loops: loops,
            group,
        })
    }
}
