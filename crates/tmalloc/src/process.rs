// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What belongs to the process: its credit, on pages that the kernel hands to every child as zeroes
//! (madvise(2), MADV_WIPEONFORK).
//!
//! So a child, however it was made (fork, clone, in a namespace where it has its parent's number), finds
//! that nothing has begun, and begins for itself. A lock that another thread of the parent held is
//! unlocked there.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicPtr, AtomicU64, Ordering};

use bursar_reserve::{Contact, errno, now_ns, set_errno, uncancelled};

use crate::credit::Credit;
use crate::thread;

/// Valid when zero: nothing has begun.
struct Process {
    /// Whose memory it is; 0: nobody has asked.
    owner: AtomicI32,
    /// 1 while somebody works with the credit; 0 there means that it was wiped meanwhile.
    is_at_work: u32,
    /// Until when nothing is reserved, and how much a thread may have before it asks again, without the lock.
    uncounted_until: AtomicU64,
    uncounted: AtomicIsize,
    lock: libc::pthread_mutex_t,
    credit: Credit,
}

/// Used under the lock only. Not on the pages: what a child finds in it is its parent's connection.
struct Shared(UnsafeCell<Contact>);

// SAFETY: as said there.
unsafe impl Sync for Shared {}

static CONTACT: Shared = Shared(UnsafeCell::new(Contact::NONE));

/// The connection to the daemon. For whoever has the lock.
///
/// # Safety
/// Under the lock ([`with`]), or in a child of fork(2) before it has a second thread; one reference at a
/// time.
pub(crate) unsafe fn contact<'a>() -> &'a mut Contact {
    // SAFETY: the caller's word.
    unsafe { &mut *CONTACT.0.get() }
}

/// NULL before our constructor, and if it failed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the pages.
pub(crate) fn begin() {
    let size = size_of::<Process>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    let pages = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the mapping made above.
    if unsafe { libc::madvise(pages, size, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nobody knows of it.
        unsafe { libc::munmap(pages, size) };
        return;
    }
    PROCESS.store(pages.cast(), Ordering::Release);
    child_sharing_memory();
}

/// The caller's number if it is a child that shares the memory of the process whose pages these are. In a
/// child with memory of its own they are its own.
pub(crate) fn child_sharing_memory() -> Option<libc::pid_t> {
    let process = PROCESS.load(Ordering::Acquire);
    if process.is_null() {
        return None;
    }
    // SAFETY: no arguments.
    let pid = unsafe { libc::getpid() };
    // SAFETY: pages that stay; an atomic number, valid when zero.
    let owner = unsafe { &(*process).owner };
    match owner.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != pid => Some(pid),
        _ => None,
    }
}

/// Until then nothing is reserved; a thread may have so many bytes before it asks whether that still holds.
/// Under the lock.
pub(crate) fn leave_uncounted(until: u64, bytes: isize) {
    let process = PROCESS.load(Ordering::Acquire);
    if process.is_null() {
        return;
    }
    // SAFETY: pages that stay; atomic numbers, valid when zero.
    let (place, amount) = unsafe { (&(*process).uncounted_until, &(*process).uncounted) };
    amount.store(bytes, Ordering::Relaxed);
    place.store(until, Ordering::Release);
}

/// How many bytes a thread may have now that nobody counts; `None`: the credit knows.
pub(crate) fn uncounted() -> Option<isize> {
    let process = PROCESS.load(Ordering::Acquire);
    if process.is_null() {
        return None;
    }
    // SAFETY: pages that stay; atomic numbers, valid when zero.
    let (place, amount) = unsafe { (&(*process).uncounted_until, &(*process).uncounted) };
    let until = place.load(Ordering::Acquire);
    (until > 0 && now_ns() < until).then(|| amount.load(Ordering::Relaxed))
}

/// With the process's credit, under its lock; `None` where there is none. errno stays as it was: a malloc
/// that succeeds leaves it.
pub(crate) fn with<T>(act: impl FnOnce(&mut Credit) -> T) -> Option<T> {
    let process = PROCESS.load(Ordering::Acquire);
    if process.is_null() {
        return None;
    }
    let before = errno();
    let own = thread::own();
    let result = uncancelled(|| {
        // From before the lock until after it: a signal handler may fork at any time.
        // SAFETY: the calling thread's own.
        unsafe { (*own).is_asking = true };
        // SAFETY: zero is what PTHREAD_MUTEX_INITIALIZER is.
        unsafe { libc::pthread_mutex_lock(&raw mut (*process).lock) };
        // SAFETY: under the lock.
        unsafe { (&raw mut (*process).is_at_work).write_volatile(1) };
        // SAFETY: under the lock, and nothing called from `act` comes back here (`is_asking`).
        let result = act(unsafe { &mut (*process).credit });
        // SAFETY: as above; volatile, for the kernel may have wiped it.
        if unsafe { (&raw const (*process).is_at_work).read_volatile() } == 0 {
            // A signal handler has forked, and this is the child: what was written since is its parent's.
            // SAFETY: of the child's only thread.
            unsafe { process.write_bytes(0, 1) };
            // SAFETY: the calling thread's own.
            unsafe { (*own).begin_slice(0, 0) };
        } else {
            // SAFETY: under the lock.
            unsafe { (*process).is_at_work = 0 };
            // SAFETY: locked above.
            unsafe { libc::pthread_mutex_unlock(&raw mut (*process).lock) };
        }
        // SAFETY: the calling thread's own.
        unsafe { (*own).is_asking = false };
        result
    });
    set_errno(before);
    Some(result)
}
