// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the process and the machine have, read without allocating: malloc must be as the program will
//! find it.

use std::ffi::{CStr, c_int};

pub(crate) fn page_bytes() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// (minor, major) of the process so far.
pub(crate) fn faults() -> (u64, u64) {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    (count(usage.ru_minflt), count(usage.ru_majflt))
}

/// RLIMIT_MEMLOCK, bytes.
pub(crate) fn memlock_limit() -> u64 {
    limit(libc::RLIMIT_MEMLOCK)
}

fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrlimit(which, &mut limit) };
    limit.rlim_cur
}

/// Whether RLIMIT_MEMLOCK does not bind: it is unlimited, or we have CAP_IPC_LOCK.
pub(crate) fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    memlock_limit() == libc::RLIM_INFINITY
        || number(c"/proc/self/status", b"CapEff:", 16)
            .is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// What the machine can still give, bytes.
pub(crate) fn available_bytes() -> Option<u64> {
    Some(number(c"/proc/meminfo", b"MemAvailable:", 10)? << 10)
}

/// All that is mapped, bytes.
pub(crate) fn mapped_bytes() -> u64 {
    number(c"/proc/self/status", b"VmSize:", 10).unwrap_or(0) << 10
}

/// What is mapped and not resident, bytes: mlockall will make it resident.
pub(crate) fn unresident_bytes() -> u64 {
    let resident = number(c"/proc/self/status", b"VmRSS:", 10).unwrap_or(0) << 10;
    mapped_bytes().saturating_sub(resident)
}

/// The lowest address that this thread's stack may reach, and the stack's size, bytes.
pub(crate) fn stack_floor() -> Option<(usize, usize)> {
    // SAFETY: plain data that the calls below fill.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut lowest = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: pointers to live locals; destroyed when and only when it was filled.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let got = libc::pthread_attr_getstack(&attributes, &mut lowest, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        if got != 0 {
            return None;
        }
    }
    Some((lowest.addr(), size))
}

/// The number behind `key` in a file of /proc, in the first 16 KiB of it.
fn number(path: &CStr, key: &[u8], radix: u32) -> Option<u64> {
    let mut bytes = [0u8; 16 << 10];
    let mut used = 0;
    // SAFETY: a C string; the descriptor is closed below and used in between only.
    let fd: c_int = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    while let Some(rest) = bytes.get_mut(used..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` is live memory of that length.
        let got = unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(got) {
            Ok(more) if more > 0 => used += more,
            _ => break,
        }
    }
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    let line = bytes
        .get(..used)?
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(key))?;
    let digits = line
        .trim_ascii()
        .split(|byte| !byte.is_ascii_hexdigit())
        .next()?;
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = (digit as char).to_digit(radix)?;
        value
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))
    })
}
