// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread's wake-ups at a steady rate, each for as little as a timer can cost.
//!
//! Whenever another timer becomes a CPU's first to expire, its clock event device is programmed: 12 us where that
//! leaves a virtual machine (docs/REAP.md). One that is set anew at each beat is the first each time, so that a
//! beat costs two programmings: when it has expired, and when it is set. Of two that take turns the one that is
//! set expires after the other: one is left.

use std::io;
use std::time::{Duration, Instant};

use bursar_host::Timer;

/// Stopped at first.
#[derive(Debug)]
pub(crate) struct IntervalTimer {
    /// The one that expires next, and the other.
    timers: [Timer; 2],
    period: Duration,
}

impl IntervalTimer {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            timers: [Timer::slept_on()?, Timer::slept_on()?],
            period: Duration::ZERO,
        })
    }

    /// From now on one after each `period`.
    pub(crate) fn start(&mut self, period: Duration) -> io::Result<()> {
        self.period = period;
        for (timer, first) in self.timers.iter().zip(1..) {
            timer.set(period * first, period * 2)?;
        }
        Ok(())
    }

    /// Sleeps until the next one, always: on a machine where what is done at a beat takes longer than a period, a
    /// real-time thread that went on with a beat that is overdue would never let go of its CPU.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        let before = Instant::now();
        let [next, _] = &self.timers;
        // Sets it anew, for the beat after the other's.
        next.take_expiry()?;
        self.timers.reverse();
        if before.elapsed() < self.period / 4 {
            std::thread::sleep(self.period);
        }
        Ok(())
    }

    /// None until it is started again.
    pub(crate) fn stop(&self) -> io::Result<()> {
        let stop = |timer: &Timer| timer.set(Duration::ZERO, Duration::ZERO);
        self.timers.iter().try_for_each(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_that_is_overdue_does_not_take_the_cpu() {
        const PERIOD: Duration = Duration::from_millis(1);
        let mut interval = IntervalTimer::new().unwrap();
        interval.start(PERIOD).unwrap();
        let mut slept = Duration::ZERO;
        for _ in 0..20 {
            let work = Instant::now();
            while work.elapsed() < PERIOD * 3 {
                std::hint::spin_loop();
            }
            let before = Instant::now();
            interval.wait().unwrap();
            slept += before.elapsed();
        }
        assert!(slept >= PERIOD * 10, "{slept:?}");
    }

    /// A timer that nobody sets anew would end it; two that are not in turn would not keep the rate.
    #[test]
    fn they_keep_the_rate_and_begin_again() {
        const PERIOD: Duration = Duration::from_millis(2);
        const COUNT: u32 = 50;
        let mut interval = IntervalTimer::new().unwrap();
        let rounds = (0..3).map(|_| {
            let start = Instant::now();
            interval.start(PERIOD).unwrap();
            for _ in 0..COUNT {
                interval.wait().unwrap();
            }
            interval.stop().unwrap();
            start.elapsed()
        });
        let rounds: Vec<Duration> = rounds.collect();
        let (least, most) = (PERIOD * COUNT, PERIOD * COUNT * 5 / 4);
        assert!(rounds.iter().all(|&took| took >= least), "{rounds:?}");
        // The machine may be busy with something else, not each time.
        assert!(rounds.iter().any(|&took| took < most), "{rounds:?}");
    }
}
