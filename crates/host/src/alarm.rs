// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A timer on the wall clock that is a file descriptor, and also tells when that clock is set (timerfd_create(2)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::{read, retry_on_intr};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Stopped at first; readable once it has expired, or the clock was set while it was going.
#[derive(Debug)]
pub struct Alarm(OwnedFd);

impl Alarm {
    /// One to be waited for among others.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Realtime, flags)?))
    }

    /// From now on it expires once, at this moment, at once if that is past; `None`: never. A machine that slept
    /// meanwhile has it expire when it wakes.
    ///
    /// # Errors
    /// When the moment is later than the kernel counts.
    pub fn set(&self, moment: Option<SystemTime>) -> io::Result<()> {
        let since = moment.map(|it| it.duration_since(UNIX_EPOCH).unwrap_or_default());
        // Nothing would stop it.
        let least = |it: Duration| it.max(Duration::from_nanos(1));
        let value = Timespec::try_from(since.map_or(Duration::ZERO, least));
        let times = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value.map_err(io::Error::other)?,
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&self.0, flags, &times)?;
        Ok(())
    }

    /// Takes note that it has expired, or that the clock was set. Set it again after that.
    pub fn take(&self) {
        // ECANCELED is how the kernel says that the clock was set.
        let _ = retry_on_intr(|| read(&self.0, &mut [0; 8]));
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn expires_within(alarm: &Alarm, span: Duration) -> bool {
        let timeout = Timespec::try_from(span).unwrap();
        let mut fds = [PollFd::new(alarm, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).unwrap() == 1
    }

    #[test]
    fn it_expires_at_its_moment_and_at_once_when_that_is_past() {
        let alarm = Alarm::new().unwrap();
        let short = Duration::from_millis(20);
        assert!(!expires_within(&alarm, short));
        for moment in [SystemTime::now() + short, UNIX_EPOCH] {
            alarm.set(Some(moment)).unwrap();
            assert!(expires_within(&alarm, Duration::from_secs(5)));
            alarm.take();
            assert!(!expires_within(&alarm, short));
        }
        alarm.set(Some(SystemTime::now() + short)).unwrap();
        alarm.set(None).unwrap();
        assert!(!expires_within(&alarm, short * 2));
    }
}
