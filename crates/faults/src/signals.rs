// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals that end a watch or a start phase, as flags to look at.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static INTERRUPTIONS: AtomicUsize = AtomicUsize::new(0);
static STARTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: libc::c_int) {
    if signal == libc::SIGUSR1 {
        STARTED.store(true, Ordering::SeqCst);
    } else {
        INTERRUPTIONS.fetch_add(1, Ordering::SeqCst);
    }
}

/// From now on SIGINT, SIGTERM and SIGUSR1 are noted instead of ending us.
pub fn note_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1] {
        // SAFETY: the handler changes an atomic only; zeroed is an empty mask and no flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Whether SIGINT or SIGTERM has come.
pub fn is_interrupted() -> bool {
    interruptions() > 0
}

/// How often one of them has come: who sends another while the last report is made wants no report.
pub(crate) fn interruptions() -> usize {
    INTERRUPTIONS.load(Ordering::SeqCst)
}

/// Whether SIGUSR1 has come: a verified program says that its start phase is over.
pub fn has_started() -> bool {
    STARTED.load(Ordering::SeqCst)
}
