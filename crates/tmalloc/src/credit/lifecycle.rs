// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Begin and end: of the library, a thread, a child of fork(2), the process.

use std::sync::atomic::{AtomicU32, Ordering};

use bursar_reserve::Ask;

use super::getpid;
use crate::confined;
use crate::environment;
use crate::glibc::{find_trim, pthread_atfork, pthread_key_create};
use crate::process::{self, contact, with};
use crate::thread::{self, Thread};
use crate::usage;

/// What a process may have before it asks: most programs never need more.
const UNASKED: isize = 128 << 10;
/// What was refused is still reported when the process ends, if the daemon answers within this.
const LAST_TIMEOUT_NS: u64 = 200_000_000;

/// Of the key whose destructor notices a thread's end, one more; 0: there is none.
static KEY: AtomicU32 = AtomicU32::new(0);

pub(super) fn key() -> libc::pthread_key_t {
    KEY.load(Ordering::Relaxed).wrapping_sub(1)
}

/// A thread's end gives its slice back.
pub(super) fn watch(own: &mut Thread, key: libc::pthread_key_t) {
    if !own.is_watched {
        own.is_watched = true;
        // SAFETY: a key that we made; the value is only ever tested for being there.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

extern "C-unwind" fn thread_ends(_: *mut libc::c_void) {
    // SAFETY: the ending thread's own.
    let own = unsafe { &mut *thread::own() };
    if own.slice > 0 && !confined::is_confined() {
        with(|credit| {
            let unused = usize::try_from(own.left).unwrap_or(0).min(own.slice);
            credit.end_slice(own, usage::faults());
            credit.taken = credit.taken.saturating_sub(unused);
        });
    }
    own.begin_slice(0, 0);
    // What its later destructors allocate makes it take again, and be watched again.
    own.is_watched = false;
}

/// A child of fork(2) finds the process's pages wiped; of its thread it has a copy.
extern "C-unwind" fn in_child() {
    // SAFETY: of the child's only thread.
    let own = unsafe { &mut *thread::own() };
    if !own.is_asking {
        // Ours is a copy of our parent's.
        // SAFETY: in a child of fork(2), outside `with`.
        unsafe { contact() }.close();
    }
    own.begin_slice(0, 0);
    own.left = UNASKED;
    if !confined::is_confined() {
        // Before a child of its own does that shares its memory.
        process::child_sharing_memory();
    }
}

/// What the daemon has not heard of yet.
extern "C-unwind" fn at_exit() {
    // SAFETY: the calling thread's own.
    if unsafe { (*thread::own()).is_asking } || confined::is_confined() {
        return;
    }
    with(|credit| {
        if credit.refusals > 0 && credit.pid == getpid() {
            credit.hear_overdue(LAST_TIMEOUT_NS);
            let overdue = credit.contact().overdue();
            if let Some(Ask::Renew {
                is_tentative: false,
                ..
            }) = overdue
            {
                // There was little room: the daemon refuses it, and counts that.
                credit.refusals = credit.refusals.saturating_sub(1);
            }
            let (socket, report) = (environment::socket_path(), credit.report(0));
            // Nobody is left to be told of a failure.
            let _ = match overdue {
                None => {
                    let answer = credit.contact().ask(socket, report, LAST_TIMEOUT_NS, false);
                    answer.map(drop)
                }
                Some(_) => credit.contact().tell(socket, report),
            };
            credit.refusals = 0;
        }
    });
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C-unwind" fn() = at_exit;

/// Once, when the library is loaded. Until then, and if it fails, everything is plain malloc.
pub(crate) fn begin() {
    environment::look();
    let mut key = 0;
    // SAFETY: a key of our own and functions that stay as long as the process (the library is linked
    // with -z nodelete by build.rs).
    let failed = unsafe {
        pthread_key_create(&raw mut key, Some(thread_ends)) != 0
            || pthread_atfork(None, None, Some(in_child)) != 0
    };
    if failed {
        return;
    }
    find_trim();
    KEY.store(key.wrapping_add(1), Ordering::Relaxed);
    process::begin();
    // What was allocated before us is as it is; from now on it counts.
    // SAFETY: the calling thread's own.
    unsafe { (*thread::own()).left = UNASKED };
}
