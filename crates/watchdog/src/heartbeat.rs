// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which call a thread is in, and whether it was abandoned there: what the thread and its monitor share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bursar_model::Pid;

use crate::owner::Owner;

/// Set in the word when the thread was abandoned in its call.
const ABANDONED: u64 = 1 << 32;
const NUMBER_SHIFT: u32 = 33;

/// A thread's; no call costs it a system call.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat {
    /// The call's number, [`ABANDONED`], and the pid of the process called; pid 0 between calls.
    word: AtomicU64,
    /// Who pays for that process, where the thread knows; whether others wait for the thread.
    owner: Mutex<(Option<Owner>, bool)>,
}

/// A heartbeat at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Beat(u64);

impl Heartbeat {
    /// The thread begins a call to `pid`. `is_awaited`: others wait for it.
    pub(crate) fn begin(&self, pid: Pid, owner: Option<Owner>, is_awaited: bool) {
        *self.lock() = (owner, is_awaited);
        // Between calls nobody else writes the word.
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER_SHIFT).wrapping_add(1);
        let word = number << NUMBER_SHIFT | u64::from(pid.get());
        self.word.store(word, Ordering::Release);
    }

    /// The call has returned; whether the thread was abandoned in it.
    pub(crate) fn end(&self) -> bool {
        let number = self.word.load(Ordering::Relaxed) >> NUMBER_SHIFT;
        let word = self.word.swap(number << NUMBER_SHIFT, Ordering::AcqRel);
        word & ABANDONED != 0
    }

    pub(crate) fn now(&self) -> Beat {
        Beat(self.word.load(Ordering::Acquire))
    }

    /// Abandons the thread if it is still in the call of `beat`; whether it was.
    pub(crate) fn abandon(&self, beat: Beat) -> bool {
        self.word
            .compare_exchange(
                beat.0,
                beat.0 | ABANDONED,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        self.lock().0
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.lock().1
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Owner>, bool)> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread is in a call in which it was abandoned.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.now().0 & ABANDONED != 0
    }
}

impl Beat {
    /// The process called; `None` between calls.
    pub(crate) fn pid(self) -> Option<Pid> {
        let pid = u32::try_from(self.0 & (ABANDONED - 1)).ok()?;
        (pid > 0).then(|| Pid::new(pid))
    }
}
