// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Has the kernel choose anew, every now and then, who runs on a reaper's CPU.
//!
//! Without high-resolution scheduler ticks the kernel does so at the tick (4 ms), or when somebody wakes up who
//! comes first at once. Beside a reaper whoever wakes up first lets somebody else run who has waited longer, and
//! then waits for the tick. A real-time thread that wakes up on that CPU and sleeps again is all it takes.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bursar_host::sched;
use bursar_policy::BEAT;

/// One reaper's; shared with its thread.
#[derive(Debug, Default)]
pub(crate) struct Ticker {
    /// On which CPU, while it is wanted.
    cpu: Mutex<Option<usize>>,
    bell: Condvar,
}

impl Ticker {
    /// From now on, on the CPU that the calling thread is on.
    pub(crate) fn start(&self) {
        *self.lock() = Some(sched::own_cpu());
        self.bell.notify_one();
    }

    /// It ends with the beat that it is in.
    pub(crate) fn stop(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<usize>> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    pub(crate) fn run(&self) {
        let own = sched::own_thread();
        let mut here = None;
        loop {
            let mut wanted = self.lock();
            while wanted.is_none() {
                wanted = self
                    .bell
                    .wait(wanted)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let cpu = *wanted;
            drop(wanted);
            if let Some(there) = cpu.filter(|_| cpu != here) {
                let _ = sched::allow_cpu(own, there);
                here = cpu;
            }
            std::thread::sleep(Duration::from_nanos(BEAT.get()));
        }
    }
}
