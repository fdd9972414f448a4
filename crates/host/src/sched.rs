// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the kernel schedules a thread: sched_setscheduler(2), sched_setaffinity(2), setpriority(2).
//!
//! A thread is named by its number; whoever calls holds a pidfd of its process and asks it afterwards
//! whether the number can have changed hands.

use bursar_model::{Nanos, Pid};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

/// A scheduling class, as far as reaping cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// First in, first out, before everybody of a lower class: 1 to 99 (SCHED_FIFO).
    RealTime(u8),
    /// Fair, by nice value, −20 to 19 (SCHED_OTHER).
    Fair(i8),
    /// Fair, by nice value, and content to wait for its share (slices of 100 ms, Linux 6.12 and later): whoever
    /// wakes up beside it with an ordinary slice goes first.
    Patient(i8),
    /// Runs when nobody else wants to (SCHED_IDLE).
    Idle,
    /// Anything else: batch, round robin, deadline, what may come.
    Other,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is so now.
    Done,
    /// The thread is gone.
    Gone,
    /// We may not: no CAP_SYS_NICE, or a group without real-time runtime (CONFIG_RT_GROUP_SCHED).
    Denied,
}

/// Our own thread's number.
pub fn own_thread() -> Pid {
    Pid::new(rustix::thread::gettid().as_raw_pid().unsigned_abs())
}

fn raw(thread: Pid) -> Option<libc::pid_t> {
    libc::pid_t::try_from(thread.get())
        .ok()
        .filter(|&it| it > 0)
}

fn outcome(done: libc::c_int) -> Changed {
    if done >= 0 {
        return Changed::Done;
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::SRCH) => Changed::Gone,
        _ => Changed::Denied,
    }
}

/// Puts one thread into a class; the others of its process stay where they are. [`Class::Other`]
/// changes nothing.
pub fn set_class(thread: Pid, class: Class) -> Changed {
    let Some(tid) = raw(thread) else {
        return Changed::Gone;
    };
    let (policy, priority) = match class {
        Class::RealTime(priority) => (libc::SCHED_FIFO, i32::from(priority)),
        Class::Fair(_) => (libc::SCHED_OTHER, 0),
        Class::Idle => (libc::SCHED_IDLE, 0),
        Class::Patient(nice) => return set_patient(tid, nice),
        Class::Other => return Changed::Done,
    };
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameter lives across the call, which only reads it.
    let changed = outcome(unsafe { libc::sched_setscheduler(tid, policy, &raw const parameter) });
    match class {
        Class::Fair(nice) if changed == Changed::Done => set_nice(tid, nice),
        _ => changed,
    }
}

/// Nanoseconds; fair threads can ask for 0.1 to 100 ms (kernel/sched/syscalls.c).
const LONG_SLICE: u64 = 100_000_000;

/// struct sched_attr, include/uapi/linux/sched/types.h, as of its first version.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

fn set_patient(tid: libc::pid_t, nice: i8) -> Changed {
    let attributes = Attributes {
        size: 48,
        policy: libc::SCHED_OTHER.unsigned_abs(),
        flags: 0,
        nice: i32::from(nice),
        priority: 0,
        // Before 6.12 nobody looks at it.
        runtime: LONG_SLICE,
        deadline: 0,
        period: 0,
    };
    let flags: libc::c_uint = 0;
    // SAFETY: the attributes live across the call, which reads as many bytes of them as they say.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, flags) };
    outcome(if done < 0 { -1 } else { 0 })
}

const _: () = assert!(
    size_of::<Attributes>() == 48,
    "the kernel's SCHED_ATTR_SIZE_VER0"
);

fn set_nice(tid: libc::pid_t, nice: i8) -> Changed {
    let pid = rustix::process::Pid::from_raw(tid);
    match rustix::process::setpriority_process(pid, i32::from(nice)) {
        Ok(()) => Changed::Done,
        Err(Errno::SRCH) => Changed::Gone,
        Err(_) => Changed::Denied,
    }
}

/// The class of one thread; `None` when it is gone.
pub fn class(thread: Pid) -> Option<Class> {
    let tid = raw(thread)?;
    // SAFETY: takes a number, returns a number.
    let policy = unsafe { libc::sched_getscheduler(tid) };
    // The kernel may add "reset on fork" to what it says.
    Some(match policy & !libc::SCHED_RESET_ON_FORK {
        _ if policy < 0 => return None,
        libc::SCHED_OTHER => {
            let pid = rustix::process::Pid::from_raw(tid);
            let nice = rustix::process::getpriority_process(pid).ok()?;
            Class::Fair(i8::try_from(nice).unwrap_or(0))
        }
        libc::SCHED_IDLE => Class::Idle,
        libc::SCHED_FIFO => {
            let mut parameter = libc::sched_param { sched_priority: 0 };
            // SAFETY: the parameter lives across the call, which writes it.
            unsafe { libc::sched_getparam(tid, &raw mut parameter) };
            Class::RealTime(u8::try_from(parameter.sched_priority).unwrap_or(0))
        }
        _ => Class::Other,
    })
}

/// The processor time that a thread of our own process has had; `None` when it is gone.
pub fn work_of(thread: Pid) -> Option<Nanos> {
    // What is left of a larger number would name another clock.
    let tid = raw(thread).filter(|&it| it < 1 << 28)?;
    // MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED), include/linux/posix-timers.h.
    let clock: libc::clockid_t = (!tid << 3) | 6;
    let mut spent = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time lives across the call, which writes it.
    let done = unsafe { libc::clock_gettime(clock, &raw mut spent) };
    if done != 0 {
        return None;
    }
    let seconds = u64::try_from(spent.tv_sec).ok()?;
    let part = u64::try_from(spent.tv_nsec).ok()?;
    let whole = seconds.saturating_mul(1_000_000_000);
    Some(Nanos::new(whole.saturating_add(part)))
}

/// The CPU that the calling thread is on; it may be on another one by now.
pub fn own_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// Lets a thread run on every CPU that its cpuset allows.
pub fn allow_all_cpus(thread: Pid) -> Changed {
    allow_cpus(thread, |_| true)
}

/// Lets a thread run on one CPU only.
pub fn allow_cpu(thread: Pid, only: usize) -> Changed {
    allow_cpus(thread, |cpu| cpu == only)
}

fn allow_cpus(thread: Pid, may: impl Fn(usize) -> bool) -> Changed {
    let Some(pid) = raw(thread).and_then(rustix::process::Pid::from_raw) else {
        return Changed::Gone;
    };
    let mut allowed = CpuSet::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| may(cpu)) {
        allowed.set(cpu);
    }
    match sched_setaffinity(Some(pid), &allowed) {
        Ok(()) => Changed::Done,
        Err(Errno::SRCH) => Changed::Gone,
        Err(_) => Changed::Denied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_ours_can_be_put_last_and_is_found_there() {
        std::thread::spawn(|| {
            let own = own_thread();
            assert!(matches!(class(own), Some(Class::Fair(_))));
            assert_eq!(set_class(own, Class::Idle), Changed::Done);
            assert_eq!(class(own), Some(Class::Idle));
            assert_eq!(set_class(own, Class::Patient(-5)), Changed::Done);
            assert_eq!(class(own), Some(Class::Fair(-5)));
            assert_eq!(allow_all_cpus(own), Changed::Done);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_works_is_seen_to_and_one_that_sleeps_is_not() {
        let (said, heard) = std::sync::mpsc::channel();
        let (go_on, told) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            said.send(own_thread()).unwrap();
            told.recv().unwrap();
            let start = std::time::Instant::now();
            while start.elapsed() < std::time::Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            said.send(own_thread()).unwrap();
            let _ = told.recv();
        });
        let thread_number = heard.recv().unwrap();
        let await_sleep = || {
            let stat = || std::fs::read_to_string(format!("/proc/{thread_number}/stat")).unwrap();
            while !stat().contains(") S ") {
                std::thread::yield_now();
            }
            work_of(thread_number).unwrap()
        };
        let asleep = await_sleep();
        assert_eq!(work_of(thread_number), Some(asleep));
        go_on.send(()).unwrap();
        heard.recv().unwrap();
        assert!(await_sleep() > asleep);
        drop(go_on);
        thread.join().unwrap();
    }

    #[test]
    fn who_is_not_there_is_gone() {
        for nobody in [0, i32::MAX as u32, u32::MAX] {
            let nobody = Pid::new(nobody);
            assert_eq!(set_class(nobody, Class::Idle), Changed::Gone);
            assert_eq!(class(nobody), None);
            assert_eq!(work_of(nobody), None);
            assert_eq!(allow_all_cpus(nobody), Changed::Gone);
        }
    }
}
