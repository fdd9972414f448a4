// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Child processes that never outlive their test.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bursar_host::Signal;
use bursar_model::Pid;

/// A program.
pub(crate) struct Spawned(Child);

impl Spawned {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::new(self.0.id())
    }

    #[allow(dead_code, reason = "each test program uses a part of this file")]
    pub(crate) fn reap(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A copy of ourselves that runs a closure and ends.
#[allow(dead_code, reason = "each test program uses a part of this file")]
pub(crate) struct Forked(libc::pid_t);

#[allow(dead_code, reason = "each test program uses a part of this file")]
impl Forked {
    pub(crate) fn of(child: impl FnOnce()) -> Self {
        // SAFETY: glibc makes its allocator usable in the child of a process with threads; the child
        // takes no lock of ours and leaves by _exit.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            0 => {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
                // SAFETY: ends the child without running anybody's destructors.
                unsafe { libc::_exit(if done.is_ok() { 0 } else { 101 }) }
            }
            pid => Self(pid),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::new(self.0.cast_unsigned())
    }

    /// Waits until it ends by itself; its exit code.
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: waits for our own child and writes to a local.
        unsafe { libc::waitpid(self.0, &mut status, 0) };
        self.0 = 0;
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: a signal to our own child, which nobody has reaped yet.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
            // SAFETY: waits for our own child; no status is written.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }
}

/// Does nothing for ever.
#[allow(dead_code, reason = "each test program uses a part of this file")]
pub(crate) fn pause() {
    loop {
        std::thread::sleep(Duration::from_secs(1000));
    }
}

/// Ends the calling thread alone, without the C library noticing.
#[allow(dead_code, reason = "each test program uses a part of this file")]
pub(crate) fn end_this_thread() {
    // SAFETY: in a forked child that owns nothing anybody waits for.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

#[allow(dead_code, reason = "each test program uses a part of this file")]
pub(crate) fn ignore(signal: Signal) {
    // SAFETY: SIG_IGN runs no code.
    unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
}

/// Waits for a condition, not for a time; fails after 20 s.
#[allow(dead_code, reason = "each test program uses a part of this file")]
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen within 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}
