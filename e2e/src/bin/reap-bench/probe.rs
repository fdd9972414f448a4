// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ordinary neighbour: sleeps, wakes, and notes how late it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use bursar_host::clock;

/// Between two wake-ups.
const EVERY_NS: i64 = 500_000;

/// Threads at normal priority that wake up every half a millisecond.
pub(crate) struct Probe {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(u64, u64)>>>,
}

impl Probe {
    pub(crate) fn start(count: usize) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..count {
            let stop = Arc::clone(&stop);
            let thread = std::thread::Builder::new()
                .name("probe".into())
                .spawn(move || watch(&stop));
            threads.push(thread.context("start a probe")?);
        }
        Ok(Self { stop, threads })
    }

    /// When it should have woken, and how late it was, ns.
    pub(crate) fn finish(self) -> Vec<(u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .into_iter()
            .filter_map(|it| it.join().ok())
            .flatten()
            .collect()
    }
}

fn watch(stop: &AtomicBool) -> Vec<(u64, u64)> {
    // SAFETY: a plain system call about this thread: timers as exact as the machine can.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut late = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let wanted = clock::monotonic().get() + EVERY_NS as u64;
        let at = libc::timespec {
            tv_sec: (wanted / 1_000_000_000) as i64,
            tv_nsec: (wanted % 1_000_000_000) as i64,
        };
        // SAFETY: the time lives across the call; no remainder is asked for.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &at,
                std::ptr::null_mut(),
            );
        }
        late.push((wanted, clock::monotonic().get().saturating_sub(wanted)));
    }
    late
}
