// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `behind-moves=SIZE`: memory that moves out of the way of whoever reads how much of it is shared.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{PAGE, fail, map, size};

const STEP: &str = "behind-moves";
/// A change of a mapping that takes longer has waited for somebody who reads them all.
const SLOW: Duration = Duration::from_micros(30);
/// The reading is over by then.
const READ: Duration = Duration::from_millis(5);

/// Both moves are made while this is set, and taken back when it is not any more.
static IS_READ: AtomicBool = AtomicBool::new(false);
static HAS_MOVED: AtomicBool = AtomicBool::new(false);
/// Private memory is where it was, or somebody moves it.
static PRIVATE: Mutex<()> = Mutex::new(());

fn move_to(from: usize, to: usize, length: usize) {
    // The place itself stays ours.
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (from, to): (*mut libc::c_void, *mut libc::c_void) = (
        std::ptr::with_exposed_provenance_mut(from),
        std::ptr::with_exposed_provenance_mut(to),
    );
    // SAFETY: from a mapping of ours into room that we have reserved for it.
    let moved = unsafe { libc::mremap(from, length, length, flags, to) };
    if moved != to {
        fail(STEP, std::io::Error::last_os_error());
    }
}

/// Four places, one above the other: nothing, what is shared, nothing, what is private. Who reads from the lowest to the
/// highest meets what is shared; then both move, what is shared up and what is private down. So the first is met
/// twice and the other one not at all. What is shared are two mappings: a reader lets go between them.
pub(super) fn start(value: &str, held: &mut Vec<(*mut u8, usize)>) {
    let private = size(STEP, value);
    let Some((shared, length)) = held.pop() else {
        fail(STEP, "hold something before")
    };
    if private > length {
        fail(STEP, "no more than what is held");
    }
    let Some(room) = map(4 * (length + PAGE), libc::MAP_PRIVATE | libc::MAP_NORESERVE) else {
        fail(STEP, std::io::Error::last_os_error())
    };
    let place = |number: usize| room.expose_provenance() + number * (length + PAGE);
    let (below, low, high, above) = (place(0), place(1), place(2), place(3));
    move_to(shared.expose_provenance(), low, length);
    let first = length / 8 * 7 / PAGE * PAGE;
    let rest: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(low + first);
    // SAFETY: our own mapping, whose content stays.
    unsafe { libc::madvise(rest, length - first, libc::MADV_DONTDUMP) };
    let move_shared = move |from: usize, to: usize| {
        move_to(from, to, first);
        move_to(from + first, to + first, length - first);
    };
    std::thread::spawn(move || {
        loop {
            while !IS_READ.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let lock = PRIVATE.lock();
            move_to(above, below, length);
            HAS_MOVED.store(true, Ordering::Release);
            while IS_READ.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            move_to(below, above, length);
            HAS_MOVED.store(false, Ordering::Release);
            drop(lock);
        }
    });
    std::thread::spawn(move || {
        watch(
            move || move_shared(low, high),
            move || move_shared(high, low),
        )
    });
    for offset in (0..private).step_by(PAGE) {
        let lock = PRIVATE.lock();
        let page: *mut u8 = std::ptr::with_exposed_provenance_mut(above + offset);
        // SAFETY: inside what is private, which nobody moves while we have the lock.
        unsafe { page.write_volatile(1) };
        drop(lock);
        if offset.is_multiple_of(1 << 20) {
            std::thread::sleep(READ);
        }
    }
}

/// Waits for readers: a change of a mapping takes long while there is one.
fn watch(up: impl Fn(), down: impl Fn()) {
    let Some(page) = map(PAGE, libc::MAP_PRIVATE) else {
        fail(STEP, std::io::Error::last_os_error())
    };
    let wait_for = |wanted: bool| {
        while HAS_MOVED.load(Ordering::Acquire) != wanted {
            std::hint::spin_loop();
        }
    };
    for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE]
        .into_iter()
        .cycle()
    {
        let begun = Instant::now();
        // SAFETY: a page of our own that nobody uses.
        unsafe { libc::mprotect(page.cast(), PAGE, rights) };
        if begun.elapsed() < SLOW {
            continue;
        }
        IS_READ.store(true, Ordering::Release);
        up();
        wait_for(true);
        std::thread::sleep(READ);
        down();
        IS_READ.store(false, Ordering::Release);
        wait_for(false);
    }
}
