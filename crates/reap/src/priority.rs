// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How threads that must not wait for others compete for CPUs.

use bursar_host::sched::{self, Changed, Class};
use bursar_host::thread;

/// Above every ordinary program, below the machine's own real-time threads (interrupt threads have 50).
const HIGH: u8 = 10;
/// The worker's and raised victims': six sevenths of a CPU against one ordinary thread that always wants it too. With
/// long slices: whoever wakes up beside one goes first (docs/design/11-reapers-among-neighbours.md).
const RAISED: Class = Class::Patient(-8);

/// What this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Real-time.
    RealTime,
    /// Nice −20: no CAP_SYS_NICE for more, or a group without real-time runtime.
    Nice,
    /// Like everybody else.
    Ordinary,
}

impl Priority {
    /// Tries it on a thread of its own.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn possible() -> std::io::Result<Self> {
        let try_them = || {
            let own = sched::own_thread();
            let has = |class| sched::set_class(own, class) == Changed::Done;
            if has(Class::RealTime(HIGH)) {
                Self::RealTime
            } else if has(Class::Fair(-20)) {
                Self::Nice
            } else {
                Self::Ordinary
            }
        };
        let thread = thread::spawn("reap-try", try_them)?;
        Ok(thread.join().unwrap_or(Self::Ordinary))
    }

    /// The word in `status --json`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::RealTime => "real_time",
            Self::Nice => "nice",
            Self::Ordinary => "ordinary",
        }
    }

    /// Gives the calling thread this priority: for one that only wakes, hands work on and sleeps again.
    pub fn take(self) {
        let class = match self {
            Self::RealTime => Class::RealTime(HIGH),
            Self::Nice => Class::Fair(-20),
            Self::Ordinary => return,
        };
        let _ = sched::set_class(sched::own_thread(), class);
    }

    /// Gives the calling thread everybody's.
    pub fn calm() {
        let _ = sched::set_class(sched::own_thread(), Class::Fair(0));
    }

    /// Gives the calling thread what a worker has that runs for long.
    pub(crate) fn take_as_worker(self) {
        let own = sched::own_thread();
        let _ = sched::allow_all_cpus(own);
        let class = match self {
            Self::RealTime | Self::Nice => RAISED,
            Self::Ordinary => Class::Fair(0),
        };
        let _ = sched::set_class(own, class);
    }
}

/// Puts a victim's thread before others, as far as we may.
pub(crate) fn raise(thread: bursar_model::Pid) -> bool {
    sched::set_class(thread, RAISED) == Changed::Done
}
