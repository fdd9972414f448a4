// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the environment said when the library was loaded. Later the program may change it, in another
//! thread and at any time: getenv(3) is not for use inside malloc.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One byte more than bursard's socket can have, so that a path that is too long stays too long (unix(7)).
const LONGEST: usize = 108;

struct Path(UnsafeCell<[u8; LONGEST]>);

// SAFETY: written once, by the constructor, before anybody reads it (`LENGTH`).
unsafe impl Sync for Path {}

static SOCKET: Path = Path(UnsafeCell::new([0; LONGEST]));
static LENGTH: AtomicUsize = AtomicUsize::new(0);
static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

/// Looks at it, in the constructor.
pub(crate) fn look() {
    let path = bursar_reserve::socket_path();
    // SAFETY: nobody reads it before `LENGTH` is set.
    let socket = unsafe { &mut *SOCKET.0.get() };
    for (place, &byte) in socket.iter_mut().zip(path) {
        *place = byte;
    }
    LENGTH.store(path.len().min(LONGEST), Ordering::Release);
    let is_verbose = bursar_reserve::variable(c"TMALLOC_VERBOSE").is_some();
    IS_VERBOSE.store(is_verbose, Ordering::Relaxed);
}

/// Where the daemon listens.
pub(crate) fn socket_path() -> &'static [u8] {
    let length = LENGTH.load(Ordering::Acquire);
    // SAFETY: not written any more.
    let socket: &'static [u8; LONGEST] = unsafe { &*SOCKET.0.get() };
    socket.get(..length).unwrap_or_default()
}

/// Whether somebody wants to hear that nobody answers.
pub(crate) fn is_verbose() -> bool {
    IS_VERBOSE.load(Ordering::Relaxed)
}
