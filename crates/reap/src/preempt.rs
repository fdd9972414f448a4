// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps a reaper's CPU open to others: every now and then it has the kernel choose anew who runs there, and give
//! pages back in smaller batches.
//!
//! Without high-resolution scheduler ticks the kernel chooses at the tick (4 ms), or when somebody wakes up who
//! comes first at once. Beside a reaper whoever wakes up first lets somebody else run who has waited longer, and
//! then waits for the tick. A real-time thread that wakes up on that CPU and sleeps again is all it takes.
//!
//! A CPU that frees pages and takes none gives up to 2,016 of them back in one go, with interrupts off: 0.4 ms in
//! which nobody so much as wakes up. Every page taken there halves how many it will be (mm/page_alloc.c,
//! `free_count`, before Linux 6.7 `free_factor`). Where there is none to take, nobody is made to find one: a
//! real-time thread may use half of what is kept for emergencies, and one that had to wait does not ask again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bursar_policy::PREEMPT_INTERVAL;

use crate::interval::IntervalTimer;

/// Reading it takes a page and gives it back (fs/proc/base.c, get_mm_cmdline()).
const TAKES_A_PAGE: &str = "/proc/self/cmdline";
/// So many a beat: an eighth is left of a batch.
const PAGES: u32 = 3;
/// Taking them is a matter of microseconds, unless the machine is out of memory.
const TOO_LONG: Duration = Duration::from_millis(1);

/// One CPU's at a time; shared with its thread, which is confined to that CPU.
#[derive(Debug, Default)]
pub(crate) struct Preempter {
    wish: Mutex<Wish>,
    waker: Condvar,
}

/// What its thread is to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Rest,
    Run,
    /// Its reaper is lost.
    End,
}

impl Preempter {
    pub(crate) fn start(&self) {
        let mut wish = self.lock();
        if *wish == Wish::Rest {
            *wish = Wish::Run;
            self.waker.notify_one();
        }
    }

    /// It ends with the beat that it is in.
    pub(crate) fn stop(&self) {
        let mut wish = self.lock();
        if *wish == Wish::Run {
            *wish = Wish::Rest;
        }
    }

    /// Ends its thread.
    pub(crate) fn end(&self) {
        *self.lock() = Wish::End;
        self.waker.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Wish> {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    pub(crate) fn run(&self, mut interval: IntervalTimer) {
        // Without it, wake-ups only.
        let file = File::open(TAKES_A_PAGE).ok();
        loop {
            let mut wish = self.lock();
            while *wish == Wish::Rest {
                wish = self
                    .waker
                    .wait(wish)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if *wish == Wish::End {
                return;
            }
            drop(wish);
            // Whatever fails, it does not go on without sleeping.
            if let Err(error) = self.run_intervals(&mut interval, file.as_ref()) {
                tracing::warn!(%error, "a reaper's CPU was not kept open to others");
                self.stop();
            }
        }
    }

    fn run_intervals(
        &self,
        interval: &mut IntervalTimer,
        mut pages: Option<&File>,
    ) -> std::io::Result<()> {
        interval.start(Duration::from_nanos(PREEMPT_INTERVAL.get()))?;
        loop {
            interval.wait()?;
            if *self.lock() != Wish::Run {
                return interval.stop();
            }
            pages = pages.filter(|it| take_pages(it));
        }
    }
}

/// Takes some and gives them back; whether there were some at once.
fn take_pages(file: &File) -> bool {
    let start = Instant::now();
    for _ in 0..PAGES {
        if file.read_at(&mut [0], 0).is_err() {
            return false;
        }
    }
    start.elapsed() < TOO_LONG
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that the machine has handed out so far, all zones (/proc/vmstat).
    fn handed_out() -> u64 {
        let text = std::fs::read_to_string("/proc/vmstat").unwrap();
        let counts = text.lines().filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            name.starts_with("pgalloc_")
                .then(|| count.parse::<u64>().unwrap())
        });
        counts.sum()
    }

    #[test]
    fn one_whose_reaper_is_lost_ends_and_does_not_begin_again() {
        let preempter = std::sync::Arc::new(Preempter::default());
        let own = std::sync::Arc::clone(&preempter);
        let thread = std::thread::spawn(move || own.run(IntervalTimer::new().unwrap()));
        preempter.start();
        preempter.end();
        preempter.stop();
        preempter.start();
        thread.join().unwrap();
    }

    #[test]
    fn a_beat_takes_pages_from_the_machine() {
        const INTERVALS: u64 = 10_000;
        let file = File::open(TAKES_A_PAGE).unwrap();
        let before = handed_out();
        let start = Instant::now();
        for _ in 0..INTERVALS {
            take_pages(&file);
        }
        let taken = handed_out().saturating_sub(before);
        let each = start.elapsed() / INTERVALS as u32;
        assert!(taken >= INTERVALS * u64::from(PAGES), "{taken}");
        assert!(each < TOO_LONG / 10, "{each:?}");
    }
}
