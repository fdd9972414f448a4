// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads of this process: each has a name, and none ends unnoticed.
//!
//! A thread ends as planned when its work returns. It ends otherwise when it panics, when it cannot go on
//! ([`cannot_go_on`]), or when the kernel ends it alone (an oops in a system call, a seccomp filter). A process that
//! calls [`supervise`] hears of the latter three. In one that does not, they are as std has them.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};

use bursar_model::Pid;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::sched::own_thread;

/// `PIDFD_THREAD`, since 6.9.
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);
/// What is said of one that the kernel has ended.
const BY_KERNEL: &str = "the kernel has ended it";

/// What a supervised process does when a thread (its name) has ended otherwise than planned (why).
pub type OnEnd = fn(thread: &str, why: &str) -> !;

static SUPERVISION: OnceLock<Supervision> = OnceLock::new();

struct Supervision {
    on_end: OnEnd,
    epoll: OwnedFd,
    running: Mutex<BTreeMap<Pid, Running>>,
}

struct Running {
    name: String,
    /// None before 6.9: the kernel cannot tell the end of one thread.
    pidfd: Option<OwnedFd>,
}

/// From now on `on_end` is called when a thread that [`spawn`] starts ends otherwise than planned. The first call
/// counts.
///
/// # Errors
/// When descriptors run out.
pub fn supervise(on_end: OnEnd) -> io::Result<()> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    SUPERVISION.get_or_init(|| Supervision {
        on_end,
        epoll,
        running: Mutex::default(),
    });
    Ok(())
}

/// Readable when the kernel has ended a thread: for [`check`].
pub fn wake() -> Option<BorrowedFd<'static>> {
    SUPERVISION.get().map(|it| it.epoll.as_fd())
}

/// Does not return when the kernel has ended a thread.
pub fn check() {
    if let Some(supervision) = SUPERVISION.get()
        && let Some(name) = supervision.ended()
    {
        (supervision.on_end)(&name, BY_KERNEL)
    }
}

/// Starts a thread.
///
/// # Errors
/// When there is no room for one.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_by(Builder::new(), name, work)
}

/// Starts a thread with a stack of so many bytes.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_small<T: Send + 'static>(
    name: &str,
    stack: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_by(Builder::new().stack_size(stack), name, work)
}

/// Ends the calling thread as a panic does, which says nothing by itself.
pub fn cannot_go_on(why: impl Display) -> ! {
    resume_unwind(Box::new(why.to_string()))
}

fn spawn_by<T: Send + 'static>(
    builder: Builder,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let own = name.to_owned();
    builder.name(own.clone()).spawn(move || run(&own, work))
}

fn run<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let Some(supervision) = SUPERVISION.get() else {
        return work();
    };
    let thread = own_thread();
    supervision.enter(thread, name);
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => {
            supervision.lock().remove(&thread);
            done
        }
        Err(payload) => (supervision.on_end)(name, said_by(&*payload)),
    }
}

fn said_by(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic")
}

impl Supervision {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Pid, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, thread: Pid, name: &str) {
        let number = i32::try_from(thread.get()).ok();
        let number = number.and_then(rustix::process::Pid::from_raw);
        let pidfd = number.and_then(|it| pidfd_open(it, OF_THREAD).ok());
        if let Some(pidfd) = &pidfd {
            let data = EventData::new_u64(thread.get().into());
            // Without it a panic is noticed still.
            let _ = epoll::add(&self.epoll, pidfd, data, EventFlags::IN);
        }
        let name = name.to_owned();
        self.lock().insert(thread, Running { name, pidfd });
    }

    /// One that is not running any more, and has not said that it would end.
    fn ended(&self) -> Option<String> {
        let running = self.lock();
        let ended = running.values().find(|it| {
            let Some(pidfd) = &it.pidfd else {
                return false;
            };
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
        });
        ended.map(|it| it.name.clone())
    }
}

#[cfg(test)]
#[expect(unsafe_code, reason = "a thread that ends by itself alone")]
mod tests {
    use std::process::{Command, Output, exit};
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    const IN_CHILD: &str = "BURSAR_TEST_THREAD_ENDS";

    fn say_and_exit(thread: &str, why: &str) -> ! {
        eprintln!("<{thread}: {why}>");
        exit(7)
    }

    /// What becomes of a process of its own in which a thread ends so.
    fn in_child(test: &str, work: fn()) -> Output {
        if std::env::var_os(IN_CHILD).is_some() {
            supervise(say_and_exit).unwrap();
            // One that ends as planned is no reason.
            spawn("planned", || ()).unwrap().join().unwrap();
            check();
            let _thread = spawn("worker", work).unwrap();
            let mut fds = [PollFd::from_borrowed_fd(wake().unwrap(), PollFlags::IN)];
            let timeout = Timespec::try_from(Duration::from_secs(10)).unwrap();
            poll(&mut fds, Some(&timeout)).unwrap();
            check();
            exit(0);
        }
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("thread::tests::{test}"), "--nocapture"])
            .env(IN_CHILD, "1")
            .output()
            .unwrap()
    }

    fn assert_said(output: &Output, said: &str) {
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }

    #[test]
    fn a_panic_ends_the_process() {
        let output = in_child("a_panic_ends_the_process", || panic!("lost its way"));
        assert_said(&output, "<worker: lost its way>");
    }

    #[test]
    fn a_thread_that_cannot_go_on_ends_the_process() {
        let test = "a_thread_that_cannot_go_on_ends_the_process";
        let output = in_child(test, || cannot_go_on("the ring is gone"));
        assert_said(&output, "<worker: the ring is gone>");
    }

    #[test]
    fn a_thread_that_the_kernel_ends_ends_the_process() {
        let test = "a_thread_that_the_kernel_ends_ends_the_process";
        let output = in_child(test, || {
            sleep(Duration::from_millis(20));
            // SAFETY: ends this thread and nothing else; nobody joins it.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        assert_said(&output, "<worker: the kernel has ended it>");
    }

    #[test]
    fn without_a_supervisor_it_is_as_std_has_it() {
        let thread = spawn("alone", || cannot_go_on("no more")).unwrap();
        let payload = thread.join().unwrap_err();
        assert_eq!(said_by(&*payload), "no more");
    }
}
