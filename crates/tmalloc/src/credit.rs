// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process's credit: what the daemon has reserved for it, and who may use how much of it.
//!
//! One equation holds whenever the lock is free:
//!
//! ```text
//! spent + Σ slices ≤ credit        spent = resident anonymous memory now − at the last settling
//! ```
//!
//! Granted memory is resident when malloc returns (resident.rs), so what the process has grown by since
//! the daemon last looked is what its resident memory says, and what it can still grow by without asking
//! is what its threads have left of their slices. Memory that was freed and used again does not grow it:
//! a program in its steady state never asks. When memory is given back to the system, `settled` follows
//! it down, because another process may have been promised it since.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use bursar_reserve::{Ask, Bound, Line, Refused, errno, set_errno, uncancelled};

use crate::environment;
use crate::glibc;
use crate::resident::{self, PAGE};
use crate::thread::{self, Thread};
use crate::verbose;

/// Asked for at first; a process that only starts and ends is not to keep much from others.
const FIRST: usize = 256 << 10;
/// Asked for at most. Each time twice as much, so that only who allocates much has much; the daemon
/// gives a sixteenth of what is free and no more.
const MOST: usize = 16 << 20;
/// With less than this more is asked for: small slices cost a look at /proc (4 µs) each.
const PLENTY: usize = MOST / 2;
/// A thread takes at most so much at once.
const SLICE: usize = 8 << 20;
/// What a thread may have before its process could ask anybody, and where nobody answers.
const UNCOUNTED: usize = 1 << 20;
/// A silent daemon is asked again after this, nanoseconds.
const PAUSE_NS: u64 = 1_000_000_000;
/// Free memory is given back to the system at most so often, nanoseconds: it walks the whole heap.
const TRIM_PAUSE_NS: u64 = 20_000_000;

/// Whom to ask.
#[derive(Debug)]
enum Daemon {
    /// Not yet asked, or asked by our parent.
    Unknown,
    Answers(Line),
    /// Until then (CLOCK_MONOTONIC, nanoseconds) it is not asked again.
    Silent(u64),
}

#[derive(Debug)]
struct Credit {
    daemon: Daemon,
    /// Reserved at the daemon, bytes, whole pages, page tables to be included.
    reserved: usize,
    /// Of those, what may be used.
    credit: usize,
    settled: usize,
    slices: usize,
    next: usize,
    /// Slices used up since the last settling. Where /proc cannot be read, or `is_scarce`, all of it
    /// counts as growth.
    taken: usize,
    /// We were given less than we would have liked. Before 6.18 /proc's figure may be behind by a batch
    /// for each CPU (lib/percpu_counter.c): much, where little is left.
    is_scarce: bool,
    trimmed_at: u64,
    /// The user for whom we asked: a program that becomes another's pays elsewhere from then on.
    user: libc::uid_t,
    key: libc::pthread_key_t,
}

struct Shared {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    credit: UnsafeCell<Credit>,
}

// SAFETY: `credit` is used under `lock` only; `lock` is made for being shared.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
    credit: UnsafeCell::new(Credit {
        daemon: Daemon::Unknown,
        reserved: 0,
        credit: 0,
        settled: 0,
        slices: 0,
        next: FIRST,
        taken: 0,
        is_scarce: false,
        trimmed_at: 0,
        user: 0,
        key: 0,
    }),
};

/// Whose credit it is; 0 until it is begun. Looked at without the lock, which in a child stays locked until
/// [`in_child`] has run if another thread of the parent's was asking.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The process was made by a signal handler while its thread was asking: what it was made with is its
/// parent's.
static IS_PARENTS: AtomicBool = AtomicBool::new(false);

/// Not before our constructor, nor in a child made by bare clone or vfork: its parent's credit is not its
/// own, and its memory may be its parent's.
fn is_ours() -> bool {
    // SAFETY: no arguments.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

fn lock() {
    // SAFETY: a statically initialised mutex.
    unsafe { libc::pthread_mutex_lock(SHARED.lock.get()) };
}

fn unlock() {
    // SAFETY: locked by this thread; where a signal handler forked meanwhile, unlocked by `in_child`, which
    // is nothing to a mutex of the default kind in glibc.
    unsafe { libc::pthread_mutex_unlock(SHARED.lock.get()) };
}

/// With the process's credit, under its lock. errno stays as it was: a malloc that succeeds leaves it.
fn with<T>(act: impl FnOnce(&mut Credit) -> T) -> T {
    let before = errno();
    let own = thread::own();
    let result = uncancelled(|| {
        // From before the lock until after it: a signal handler may fork at any time.
        // SAFETY: the calling thread's own.
        unsafe { (*own).is_asking = true };
        lock();
        // SAFETY: under the lock, and nothing called from `act` comes back here (`is_asking`).
        let result = act(unsafe { &mut *SHARED.credit.get() });
        unlock();
        // SAFETY: as above.
        unsafe { (*own).is_asking = false };
        result
    });
    set_errno(before);
    result
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec of our own.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

/// Page tables and what else comes with memory: a page for each 512 and each level, and one for the
/// arena that a new thread gets.
const fn with_tables(pages: usize) -> usize {
    pages.saturating_add(pages / 512).saturating_add(4)
}

fn without_tables(pages: usize) -> usize {
    let pages = pages.saturating_sub(4);
    pages.saturating_sub(pages.div_ceil(512))
}

impl Credit {
    /// Resident anonymous memory; `None` where it is not to be relied upon.
    fn resident(&self) -> Option<usize> {
        if self.is_scarce {
            return None;
        }
        resident::anonymous()
    }

    /// What can be given to a thread now.
    fn free(&self, resident: Option<usize>) -> usize {
        let grown = resident.map(|resident| resident.saturating_sub(self.settled));
        let spent = grown.unwrap_or(self.taken);
        self.credit
            .saturating_sub(spent)
            .saturating_sub(self.slices)
    }

    /// Whether `cost` bytes can be had; asks the daemon if need be.
    fn provide(&mut self, cost: usize, tentative: bool) -> Result<usize, Refused> {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        if user != self.user {
            self.user = user;
            self.hang_up();
            self.forget();
        }
        let resident = self.resident();
        self.settled = self.settled.min(resident.unwrap_or(usize::MAX));
        let free = self.free(resident);
        if free >= cost && (self.is_scarce || free >= PLENTY) {
            return Ok(free);
        }
        self.settle(cost, tentative)?;
        Ok(self.credit.saturating_sub(self.slices))
    }

    /// What has become resident needs no promise any more; for what is to come a new one is asked for.
    fn settle(&mut self, cost: usize, tentative: bool) -> Result<(), Refused> {
        // Before the daemon looks: what comes between counts twice, not never.
        let resident = resident::anonymous().unwrap_or(usize::MAX);
        let least = with_tables(cost.div_ceil(PAGE));
        let wanted = least.max(self.next / PAGE);
        // Of the old promise remains what other threads hold slices of.
        let kept = match self.slices {
            0 => 0,
            slices => with_tables(slices.div_ceil(PAGE)).min(self.reserved / PAGE),
        };
        let mut commit = (self.reserved / PAGE).saturating_sub(kept);
        for attempt in 0..2 {
            if let Err(refused) = self.connect() {
                self.forget();
                return Err(refused);
            }
            let Daemon::Answers(line) = &mut self.daemon else {
                return Err(Refused::Silent(libc::ENOTCONN));
            };
            let asked = line.ask(Ask::Reserve {
                pages: widen(wanted),
                at_least: widen(least),
                commit: widen(commit),
                bound: Bound::Barrier,
                tentative,
            });
            match asked {
                Ok(granted) => {
                    let granted = usize::try_from(granted).unwrap_or(0);
                    let kept = (self.reserved / PAGE).saturating_sub(commit);
                    self.reserved = kept.saturating_add(granted).saturating_mul(PAGE);
                    let fresh = without_tables(granted).saturating_mul(PAGE);
                    self.credit = self.slices.saturating_add(fresh.max(cost));
                    self.settled = resident;
                    self.taken = 0;
                    let is_plenty = granted >= wanted;
                    self.is_scarce = !is_plenty;
                    self.next = if is_plenty {
                        self.next.saturating_mul(2).min(MOST)
                    } else {
                        FIRST
                    };
                    return Ok(());
                }
                Err(Refused::Full) => {
                    // What was committed is committed: it is resident, and held speaks for it now.
                    self.reserved = (self.reserved / PAGE).saturating_sub(commit) * PAGE;
                    self.credit = self.slices;
                    self.settled = resident;
                    self.taken = 0;
                    self.is_scarce = true;
                    self.next = FIRST;
                    return Err(Refused::Full);
                }
                // The daemon was started anew, or somebody closed our descriptor: once more, with
                // nothing left to commit.
                Err(Refused::Silent(_) | Refused::Foreign | Refused::Senseless) if attempt == 0 => {
                    self.hang_up();
                    self.forget();
                    commit = 0;
                }
                Err(refused) => {
                    self.hang_up();
                    self.forget();
                    self.daemon = Daemon::Silent(now_ns().saturating_add(PAUSE_NS));
                    verbose::say_once(refused.errno());
                    return Err(refused);
                }
            }
        }
        Err(Refused::Foreign)
    }

    fn connect(&mut self) -> Result<(), Refused> {
        match self.daemon {
            Daemon::Answers(_) => return Ok(()),
            Daemon::Silent(until) if now_ns() < until => return Err(Refused::Silent(libc::EAGAIN)),
            Daemon::Silent(_) | Daemon::Unknown => {}
        }
        match Line::connect(environment::socket_path()) {
            Ok(line) => {
                self.daemon = Daemon::Answers(line);
                Ok(())
            }
            Err(refused) => {
                self.daemon = Daemon::Silent(now_ns().saturating_add(PAUSE_NS));
                verbose::say_once(refused.errno());
                Err(refused)
            }
        }
    }

    fn hang_up(&mut self) {
        if let Daemon::Answers(line) = std::mem::replace(&mut self.daemon, Daemon::Unknown) {
            line.close();
        }
    }

    /// Nothing is reserved nor known.
    fn begin_anew(&mut self) {
        self.hang_up();
        self.forget();
        self.slices = 0;
        self.taken = 0;
        self.settled = usize::MAX;
        self.next = FIRST;
    }

    /// Nothing is reserved. What threads hold is theirs all the same, until they have used it.
    fn forget(&mut self) {
        self.reserved = 0;
        self.credit = 0;
    }
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// What became of a request for credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Granted.
    Granted,
    /// Over the barrier.
    Refused,
}

/// Takes a new slice for the calling thread, of which `cost` bytes are used at once.
#[cold]
#[inline(never)]
pub(crate) fn take(thread: *mut Thread, cost: usize) -> Taken {
    // SAFETY: the calling thread's own, which nobody else uses.
    let own = unsafe { &mut *thread };
    let spared = |own: &mut Thread| {
        own.left = UNCOUNTED.cast_signed();
        Taken::Granted
    };
    if own.is_asking {
        return Taken::Granted;
    }
    if !is_ours() {
        return spared(own);
    }
    // Nothing of it has become resident: it is whole again.
    if cost < own.slice && resident::faults() == own.faults {
        own.left = (own.slice - cost).cast_signed();
        return Taken::Granted;
    }
    with(|credit| {
        // SAFETY: the calling thread's own; the borrow above is over.
        let own = unsafe { &mut *thread };
        if IS_PARENTS.swap(false, Ordering::Relaxed) {
            credit.begin_anew();
        }
        watch(own, credit.key);
        // The slice is used up: what came of it is resident.
        credit.slices = credit.slices.saturating_sub(own.slice);
        credit.taken = credit.taken.saturating_add(own.slice);
        own.slice = 0;
        own.left = 0;
        let mut found = credit.provide(cost, true);
        if found == Err(Refused::Full) {
            // What the program freed may be what is missing.
            let now = now_ns();
            if now.saturating_sub(credit.trimmed_at) >= TRIM_PAUSE_NS {
                credit.trimmed_at = now;
                // SAFETY: no pointers; locks glibc's arenas, never ours.
                unsafe { glibc::malloc_trim(0) };
            }
            found = credit.provide(cost, false);
        }
        match found {
            Ok(free) => {
                // Half for the others; a large block takes what it needs and no more.
                let slice = (free / 2).min(SLICE).max(cost);
                own.slice = slice;
                own.faults = resident::faults();
                own.left = slice.saturating_sub(cost).cast_signed();
                credit.slices = credit.slices.saturating_add(slice);
                Taken::Granted
            }
            Err(Refused::Full) => Taken::Refused,
            Err(_) => spared(own),
        }
    })
}

/// A thread's end gives its slice back.
fn watch(own: &mut Thread, key: libc::pthread_key_t) {
    if !own.is_watched {
        own.is_watched = true;
        // SAFETY: a key that we made; the value is only ever tested for being there.
        unsafe { libc::pthread_setspecific(key, SHARED.credit.get().cast()) };
    }
}

extern "C" fn thread_ends(_: *mut libc::c_void) {
    // SAFETY: the ending thread's own.
    let slice = unsafe { (*thread::own()).slice };
    if is_ours() {
        with(|credit| credit.slices = credit.slices.saturating_sub(slice));
    }
    // SAFETY: as above.
    let own = unsafe { &mut *thread::own() };
    own.slice = 0;
    own.left = 0;
    // What its later destructors allocate makes it take again, and be watched again.
    own.is_watched = false;
}

/// The child has no reservation: it asks for its own, over a line of its own.
///
/// The lock is not held across fork(2), as is usual: other libraries' handlers allocate between ours, or
/// wait for threads that do, and a signal handler forks while this very thread has the lock. What the child
/// finds may therefore be half written by a thread that it has not. All of it is written anew, and a line
/// is closed only if its cookie says that it is one.
extern "C" fn in_child() {
    // SAFETY: of the child's only thread; see `unlock` for where it is inside `with`.
    unsafe { SHARED.lock.get().write(libc::PTHREAD_MUTEX_INITIALIZER) };
    let own = thread::own();
    // SAFETY: the only thread's own.
    if unsafe { (*own).is_asking } {
        // Further up the stack somebody works with the credit.
        IS_PARENTS.store(true, Ordering::Relaxed);
    } else {
        IS_PARENTS.store(false, Ordering::Relaxed);
        with(Credit::begin_anew);
    }
    // SAFETY: as above.
    unsafe {
        (*own).left = 0;
        (*own).slice = 0;
    }
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Once, when the library is loaded. Until then, and if it fails, everything is plain malloc.
pub(crate) fn begin() {
    environment::look();
    let mut key = 0;
    // SAFETY: a key of our own and functions that stay as long as the process (the library is linked
    // with -z nodelete by build.rs).
    let failed = unsafe {
        libc::pthread_key_create(&raw mut key, Some(thread_ends)) != 0
            || libc::pthread_atfork(None, None, Some(in_child)) != 0
    };
    if failed {
        return;
    }
    with(|credit| {
        credit.key = key;
        credit.settled = usize::MAX;
    });
    // SAFETY: no arguments.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    // What was allocated before us is as it is; from now on it counts.
    // SAFETY: the calling thread's own.
    unsafe { (*thread::own()).left = 0 };
}
