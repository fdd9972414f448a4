// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The second reaper. It is on a CPU and ready before the signal is sent (KERNEL.md: that, not its help
//! as such, is what makes the difference), and begins with the last victim while the first reaper
//! begins with the first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bursar_host::{Proc, Release, sched};

use crate::cpu_slot::CpuSlot;
use crate::job::Job;
use crate::priority::PriorityController;
use crate::supervisor::Supervised;
use bursar_watchdog::Abandoned;
use bursar_watchdog::Guard;

/// So long a reaper spins for the other one at most; on a machine that gives it no CPU it goes without.
const PATIENCE: Duration = Duration::from_micros(500);
/// Tries while the memory is being changed; the first reaper has more of them.
const TRIES: u32 = 3;

#[derive(Debug)]
struct Call {
    number: u64,
    job: Arc<Job>,
}

/// What both reapers know.
#[derive(Debug, Default)]
pub(crate) struct Helper {
    pub(crate) cpu_slot: Arc<CpuSlot>,
    pub(crate) guard: Guard,
    call: Mutex<Option<Call>>,
    waker: Condvar,
    at_work: AtomicBool,
    ready: AtomicU64,
    go: AtomicU64,
}

/// It has heard of a job, and waits for the word.
pub(crate) struct Called<'a> {
    helper: &'a Helper,
    number: u64,
}

impl Called<'_> {
    /// Waits until it is ready, for a moment.
    pub(crate) fn await_ready(&self) {
        let end = Instant::now() + PATIENCE;
        while self.helper.ready.load(Ordering::Acquire) < self.number && Instant::now() < end {
            std::hint::spin_loop();
        }
    }

    /// Its cpu_slot.
    pub(crate) const fn cpu_slot(&self) -> &Arc<CpuSlot> {
        &self.helper.cpu_slot
    }

    /// Sends it off; whoever does has entered it with the controller ([`PriorityController::begin`]).
    pub(crate) fn go(&self) {
        self.helper.go.store(self.number, Ordering::Release);
    }
}

impl Helper {
    /// Calls the helper for a job; `None` while it still has another.
    pub(crate) fn call(&self, job: &Arc<Job>) -> Option<Called<'_>> {
        if self.at_work.swap(true, Ordering::AcqRel) {
            return None;
        }
        let number = self.go.load(Ordering::Acquire).saturating_add(1);
        let call = Call {
            number,
            job: Arc::clone(job),
        };
        *self.call.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
        self.waker.notify_one();
        Some(Called {
            helper: self,
            number,
        })
    }

    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            guard,
            ..Self::default()
        }
    }

    /// The thread.
    pub(crate) fn run(&self, proc: &Proc, controller: &PriorityController) {
        if let Err(Abandoned) = self.work(proc, controller) {}
    }

    fn work(&self, proc: &Proc, controller: &PriorityController) -> Result<(), Abandoned> {
        loop {
            let call = {
                let mut slot = self.call.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    match slot.take() {
                        Some(call) => break call,
                        None => {
                            slot = self
                                .waker
                                .wait(slot)
                                .unwrap_or_else(PoisonError::into_inner)
                        }
                    }
                }
            };
            self.cpu_slot.take();
            self.ready.store(call.number, Ordering::Release);
            let end = Instant::now() + PATIENCE;
            while self.go.load(Ordering::Acquire) < call.number {
                if Instant::now() < end {
                    std::hint::spin_loop();
                } else {
                    // The first reaper lost its CPU: do not keep this one.
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            for victim in call.job.victims.iter().rev() {
                for _ in 0..TRIES {
                    let release = || victim.pidfd.release_memory();
                    let pid = victim.pidfd.pid();
                    match self.guard.call(proc, pid, victim.owner, release)? {
                        Some(Ok(Release::Busy)) => {}
                        _ => break,
                    }
                }
            }
            controller.end(&self.cpu_slot);
            controller.stand_by(sched::own_thread());
            self.at_work.store(false, Ordering::Release);
        }
    }
}

impl Supervised for Helper {
    fn is_busy(&self) -> bool {
        self.at_work.load(Ordering::Acquire)
    }
}
