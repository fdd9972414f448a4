// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a story that lasts is told: as long as an issue asks, or as long as an everyday run affords.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_WHOLE: AtomicBool = AtomicBool::new(false);

/// From now on every story is told at its whole length (`stories --whole`).
pub fn tell_whole() {
    IS_WHOLE.store(true, Ordering::Relaxed);
}

/// A length of which an everyday run tells less: seconds, or rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole(u64);

/// The length that an issue asks for.
pub(crate) const fn whole(length: u64) -> Whole {
    Whole(length)
}

impl Whole {
    /// Otherwise this much.
    pub(crate) fn or(self, everyday: u64) -> u64 {
        if IS_WHOLE.load(Ordering::Relaxed) {
            self.0
        } else {
            everyday
        }
    }
}
