// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time, without a system call where the kernel offers one (vdso(7)).

/// CLOCK_MONOTONIC, nanoseconds.
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, nanoseconds: files have this one.
pub(crate) fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    ns_of(now)
}

pub(crate) fn ns_of(time: libc::timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

pub(crate) fn timespec_of(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

/// Sleeps so long, or until a signal comes.
pub(crate) fn sleep_ns(ns: u64) {
    let time = timespec_of(ns);
    // SAFETY: a timespec; what is left of it is not asked for.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}
