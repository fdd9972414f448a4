// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A timer that is a file descriptor, on CLOCK_MONOTONIC (timerfd_create(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bursar_model::Nanos;
use rustix::io::{read, retry_on_intr};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Stopped at first; readable once it has expired.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One to be waited for among others, by poll(2).
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn polled() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// From now on it expires after `first`, and `every` so long after that: with nothing for `every` once,
    /// with nothing for `first` it is stopped.
    ///
    /// # Errors
    /// When a span is longer than the kernel counts, some 292,000,000,000 years.
    pub fn set(&self, first: Duration, every: Duration) -> io::Result<()> {
        self.wind(TimerfdTimerFlags::empty(), first, every)
    }

    /// From now on it expires once, at this moment of CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// None that is known.
    pub fn set_at(&self, moment: Nanos) -> io::Result<()> {
        let moment = Duration::from_nanos(moment.get());
        self.wind(TimerfdTimerFlags::ABSTIME, moment, Duration::ZERO)
    }

    fn wind(&self, flags: TimerfdTimerFlags, first: Duration, every: Duration) -> io::Result<()> {
        let spec = |span: Duration| Timespec::try_from(span).map_err(io::Error::other);
        let times = Itimerspec {
            it_interval: spec(every)?,
            it_value: spec(first)?,
        };
        timerfd_settime(&self.0, flags, &times)?;
        Ok(())
    }

    /// Takes note that it has expired, however often. The kernel sets a timer that repeats anew only here.
    ///
    /// # Errors
    /// EAGAIN from one that has not expired.
    pub fn take_expiry(&self) -> io::Result<()> {
        retry_on_intr(|| read(&self.0, &mut [0; 8]))?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::clock;

    #[test]
    fn it_expires_once_or_again_and_again_and_not_when_stopped() {
        let short = Duration::from_millis(2);
        let polled = Timer::polled().unwrap();
        polled.set(short, short).unwrap();
        for _ in 0..3 {
            poll(&mut [PollFd::new(&polled, PollFlags::IN)], None).unwrap();
            polled.take_expiry().unwrap();
        }
        polled.set(Duration::ZERO, Duration::ZERO).unwrap();
        let has_expired = || polled.take_expiry().is_ok();
        assert!(!has_expired());
        polled.set_at(clock::monotonic()).unwrap();
        std::thread::sleep(short);
        assert!(has_expired() && !has_expired());
        polled.set(short, short).unwrap();
        polled.set(Duration::ZERO, Duration::ZERO).unwrap();
        std::thread::sleep(short * 2);
        assert!(!has_expired());
    }
}
