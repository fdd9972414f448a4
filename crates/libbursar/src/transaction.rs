// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1 section 5.2: reserve and commit. The reservation lives as long as the line, and the line as long
//! as the process: a forked child gets a line of its own when it asks for something.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long};

use bursar_reserve::{Ask, Bound, Line, Refused, socket_path};

use crate::daemon::{Errno, to_c};

/// A child is another process, and who becomes another user pays elsewhere from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner(libc::pid_t, libc::uid_t);

/// The line and whose it is, under a lock that can be released in a forked child: one of std's would stay
/// locked there for ever if another thread held it.
struct Shared {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    line: UnsafeCell<Option<(Line, Owner)>>,
}

// SAFETY: `line` is used under `lock` only; `lock` is made for being shared.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    line: UnsafeCell::new(None),
};

fn lock() {
    // SAFETY: a statically initialised mutex.
    unsafe { libc::pthread_mutex_lock(SHARED.lock.get()) };
}

fn unlock() {
    // SAFETY: locked by this thread; where a signal handler forked meanwhile, unlocked by `in_child`, which
    // is nothing to a mutex of the default kind in glibc.
    unsafe { libc::pthread_mutex_unlock(SHARED.lock.get()) };
}

/// The lock is not held across fork(2): a signal handler may fork while this very thread has it. A line
/// that the child finds, written whole or half, is its parent's, and is closed only if its cookie says that
/// it is one.
extern "C" fn in_child() {
    // SAFETY: of the child's only thread.
    unsafe { SHARED.lock.get().write(libc::PTHREAD_MUTEX_INITIALIZER) };
}

extern "C" fn loaded() {
    // SAFETY: a function that stays as long as the process (build.rs: nodelete).
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Talks over the process's line; opens it if there is none and `may_open`.
fn talk<T>(may_open: bool, say: impl Fn(&mut Line) -> Result<T, Refused>) -> Result<T, Refused> {
    lock();
    // SAFETY: under the lock.
    let answer = talk_over(unsafe { &mut *SHARED.line.get() }, may_open, say);
    unlock();
    answer
}

fn talk_over<T>(
    held: &mut Option<(Line, Owner)>,
    may_open: bool,
    say: impl Fn(&mut Line) -> Result<T, Refused>,
) -> Result<T, Refused> {
    // SAFETY: no arguments.
    let own = Owner(unsafe { libc::getpid() }, unsafe { libc::geteuid() });
    if held.as_ref().is_some_and(|(_, owner)| *owner != own)
        && let Some((parents, _)) = held.take()
    {
        // Only our copy of the descriptor.
        parents.close();
    }
    let is_fresh = held.is_none();
    let answer = talk_once(held, own, may_open, &say);
    match answer {
        // The daemon was started anew, or the program has closed the descriptor: what was reserved over it
        // is gone, and a new line is as good.
        Err(Refused::Silent(libc::EPIPE | libc::ECONNRESET | libc::EBADF))
            if may_open && !is_fresh =>
        {
            talk_once(held, own, may_open, &say)
        }
        answer => answer,
    }
}

fn talk_once<T>(
    held: &mut Option<(Line, Owner)>,
    own: Owner,
    may_open: bool,
    say: impl Fn(&mut Line) -> Result<T, Refused>,
) -> Result<T, Refused> {
    if held.is_none() {
        if !may_open {
            return Err(Refused::Senseless);
        }
        *held = Some((Line::connect(socket_path())?, own));
    }
    let Some((line, _)) = held.as_mut() else {
        return Err(Refused::Foreign);
    };
    let answer = say(line);
    if let Err(Refused::Silent(_) | Refused::Foreign) = answer
        && let Some((broken, _)) = held.take()
    {
        // What was reserved went with the daemon; the next call finds the new one.
        broken.close();
    }
    answer
}

fn pages_of(pages: c_long) -> Result<u64, Errno> {
    let known = u64::try_from(pages).ok().filter(|&pages| pages > 0);
    known.ok_or(Errno(libc::EINVAL))
}

/// Reserves; see bursar.h.
#[unsafe(no_mangle)]
pub extern "C" fn transaction_reserve(pages: c_long) -> c_int {
    to_c(|| {
        let pages = pages_of(pages)?;
        let whole = Ask::Reserve {
            pages,
            bound: Bound::Limit,
        };
        match talk(true, |line| line.ask(whole)) {
            Ok(_) => Ok(0),
            Err(refused) => Err(Errno(refused.errno())),
        }
    })
}

/// Gives back; see bursar.h.
#[unsafe(no_mangle)]
pub extern "C" fn transaction_commit(pages: c_long) -> c_int {
    to_c(|| {
        let pages = pages_of(pages)?;
        match talk(false, |line| line.give_back(pages)) {
            Ok(()) => Ok(0),
            Err(refused) => Err(Errno(refused.errno())),
        }
    })
}
