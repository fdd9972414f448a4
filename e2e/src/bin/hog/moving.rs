// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `move`: a mapping that moves between two places for ever, so that a reader of /proc meets it twice or not at all.

use super::{fail, map};

const STEP: &str = "move";

/// Moves a mapping between two places, for ever.
pub(super) fn for_ever(held: &[(*mut u8, usize)]) -> ! {
    let Some(&(first, length)) = held.last() else {
        fail(STEP, "hold something before")
    };
    let Some(second) = map(length, libc::MAP_PRIVATE | libc::MAP_NORESERVE) else {
        fail(STEP, std::io::Error::last_os_error())
    };
    // The place that is left stays ours.
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let move_to = |from: *mut u8, to: *mut u8| {
        // SAFETY: from a mapping of ours, which nobody uses, to another one of its size.
        let moved = unsafe { libc::mremap(from.cast(), length, length, flags, to) };
        if moved != to.cast() {
            fail(STEP, std::io::Error::last_os_error());
        }
    };
    loop {
        move_to(first, second);
        move_to(second, first);
    }
}
