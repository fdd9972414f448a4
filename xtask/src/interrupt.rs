// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C and its kin: noticed, so that guests are ended and temporary files removed before we go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static CAME: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Notices signals from now on. A second one ends the process at once; QEMU then dies with us.
pub(crate) fn watch() {
    came_flag();
}

/// Whether a signal came.
pub(crate) fn came() -> bool {
    came_flag().load(Ordering::Relaxed)
}

fn came_flag() -> &'static Arc<AtomicBool> {
    CAME.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag unset and only sets it. Registering
            // fails for forbidden signal numbers only, and these are none.
            let _ =
                signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
            let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
        }
        flag
    })
}
