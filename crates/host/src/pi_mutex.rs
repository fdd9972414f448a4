// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mutex between threads of different priorities: whoever holds it has the highest priority of those who wait
//! for it (futex(2), FUTEX_LOCK_PI).
//!
//! With an ordinary one an urgent thread waits for a holder that has lost its CPU to anybody in between.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};

/// Guards a value. Not to be locked twice by one thread: the second time waits for ever.
#[derive(Debug, Default)]
pub struct PiMutex<T> {
    turn: Turn,
    /// Never waited for: whoever asks has the turn.
    value: Mutex<T>,
}

/// Holds it until dropped.
#[derive(Debug)]
pub struct PiGuard<'a, T> {
    // Given up in this order.
    value: MutexGuard<'a, T>,
    _turn: Taken<'a>,
}

/// Whose turn it is: a thread's number, and the kernel's bits.
#[derive(Debug, Default)]
struct Turn(AtomicU32);

#[derive(Debug)]
struct Taken<'a> {
    turn: &'a Turn,
    own: u32,
}

/// Where the kernel cannot lend priorities, the turn is asked for again after so long: asleep, so that its
/// holder can run.
const AGAIN: Duration = Duration::from_micros(50);

impl<T> From<T> for PiMutex<T> {
    fn from(value: T) -> Self {
        Self {
            turn: Turn::default(),
            value: Mutex::new(value),
        }
    }
}

impl<T> PiMutex<T> {
    /// Waits until it is free and takes it.
    pub fn lock(&self) -> PiGuard<'_, T> {
        let turn = self.turn.take();
        PiGuard {
            value: self.value.lock().unwrap_or_else(PoisonError::into_inner),
            _turn: turn,
        }
    }
}

impl Turn {
    fn take(&self) -> Taken<'_> {
        let own = crate::sched::own_thread().get();
        while self.change(0, own, Ordering::Acquire).is_err() {
            match futex::lock_pi(&self.0, Flags::PRIVATE, None) {
                Ok(()) => break,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
        Taken { turn: self, own }
    }

    fn change(&self, from: u32, to: u32, order: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(from, to, order, Ordering::Relaxed)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.turn.change(self.own, 0, Ordering::Release).is_err() {
            // Somebody waits: the kernel passes it on.
            let _ = futex::unlock_pi(&self.turn.0, Flags::PRIVATE);
        }
    }
}

impl<T> Deref for PiGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for PiGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::sched::{self, Changed, Class};

    #[test]
    fn one_holds_it_at_a_time() {
        let sum = PiMutex::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let mut sum = sum.lock();
                        let before = *sum;
                        std::hint::black_box(&before);
                        *sum = before + 1;
                    }
                });
            }
        });
        assert_eq!(*sum.lock(), 80_000);
    }

    /// On one CPU: the holder is last of all, somebody in between never stops, an urgent one wants the lock.
    #[test]
    fn a_holder_has_the_priority_of_who_waits() {
        let here = sched::own_cpu();
        let run_here_as = |class| {
            let own = sched::own_thread();
            assert_eq!(sched::allow_cpu(own, here), Changed::Done);
            sched::set_class(own, class)
        };
        let mutex = PiMutex::<()>::default();
        let (is_held, is_over) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(run_here_as(Class::Idle), Changed::Done);
                let held = mutex.lock();
                is_held.store(1, Ordering::Release);
                // Until somebody in between has the CPU, and for a while of this thread's own time after that.
                while is_held.load(Ordering::Acquire) < 2 {
                    std::hint::spin_loop();
                }
                drop(held);
            });
            while is_held.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let between = scope.spawn(|| {
                let done = run_here_as(Class::Fair(0));
                while is_over.load(Ordering::Acquire) == 0 {
                    std::hint::spin_loop();
                }
                done
            });
            let waiter = scope.spawn(|| {
                if run_here_as(Class::RealTime(1)) != Changed::Done {
                    // Without CAP_SYS_NICE there is nothing to be lent.
                    is_held.store(2, Ordering::Release);
                    is_over.store(1, Ordering::Release);
                    return Duration::ZERO;
                }
                is_held.store(2, Ordering::Release);
                let start = Instant::now();
                drop(mutex.lock());
                let took = start.elapsed();
                is_over.store(1, Ordering::Release);
                took
            });
            let took = waiter.join().unwrap();
            assert!(took < Duration::from_millis(40), "{took:?}");
            between.join().unwrap();
        });
    }
}
