// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes of one address space (CLONE_VM): `sharers=N:SIZE`, `sharers-apart=N:SIZE`, `release`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{fail, map, number, size, touch};

const STACK: usize = 16 << 10;

/// What all of them see: they have one memory.
static IS_RELEASED: AtomicBool = AtomicBool::new(false);
static AT: AtomicUsize = AtomicUsize::new(0);
static EACH: AtomicUsize = AtomicUsize::new(0);

/// Waits, touches its part, and waits for ever: by system calls alone, for the C library knows one thread here.
extern "C" fn share(part: *mut libc::c_void) -> libc::c_int {
    let each = EACH.load(Ordering::Relaxed);
    let at = AT.load(Ordering::Relaxed) + part.addr() * each;
    let doze = libc::timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    while !IS_RELEASED.load(Ordering::Acquire) {
        // SAFETY: one live timespec.
        unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, &raw const doze, 0, 0) };
    }
    touch(std::ptr::with_exposed_provenance_mut(at), each);
    loop {
        // SAFETY: numbers only.
        unsafe { super::pause() };
    }
}

/// N processes that wait for `release`, and then touch SIZE each. `flags`: of clone(2), beside CLONE_VM.
pub(super) fn start(step: &str, value: &str, flags: libc::c_int) {
    let Some((count, each)) = value.split_once(':') else {
        fail(step, "N:SIZE")
    };
    let (count, each) = (number(step, count) as usize, size(step, each));
    let (Some(parts), Some(stacks)) = (
        map(count * each, libc::MAP_PRIVATE),
        map(count * STACK, libc::MAP_PRIVATE),
    ) else {
        fail(step, std::io::Error::last_os_error())
    };
    touch(stacks, count * STACK);
    AT.store(parts.expose_provenance(), Ordering::Relaxed);
    EACH.store(each, Ordering::Relaxed);
    for part in 0..count {
        // SAFETY: each has a stack of its own, which is never unmapped; they share the rest on purpose.
        let pid = unsafe {
            libc::clone(
                share,
                stacks.add((part + 1) * STACK).cast(),
                libc::CLONE_VM | libc::SIGCHLD | flags,
                std::ptr::without_provenance_mut(part),
            )
        };
        if pid < 0 {
            fail(step, std::io::Error::last_os_error());
        }
    }
}

pub(super) fn release() {
    IS_RELEASED.store(true, Ordering::Release);
}
