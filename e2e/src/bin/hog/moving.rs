// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `move`: memory that is never where it was, as whoever reads how much of it is shared would like it to be.

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
    for (from, to) in [(first, second), (second, first)].into_iter().cycle() {
        // SAFETY: from a mapping of ours, which nobody uses, to another one of its size.
        let moved = unsafe { libc::mremap(from.cast(), length, length, flags, to) };
        if moved != to.cast() {
            fail(STEP, std::io::Error::last_os_error());
        }
    }
    unreachable!("it goes round in circles")
}
