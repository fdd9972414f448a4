// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ctrl-C and SIGTERM end a run between two steps, so that whatever is loaded is taken away in order.
//! A second one ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};

static TOLD: AtomicBool = AtomicBool::new(false);

extern "C" fn take_note(signal: libc::c_int) {
    if TOLD.swap(true, Ordering::SeqCst) {
        // SAFETY: async-signal-safe; the default action ends us when the handler returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// From now on. Calls that wait, for a lock above all, are not taken up again.
pub(crate) fn listen() {
    let handler = take_note as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: plain data; all zeros is an action without flags, SA_RESTART among them.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // SAFETY: a handler that only touches an atomic and calls async-signal-safe functions; a
        // pointer to a live local.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Fails once we were told to end.
pub(crate) fn check() -> Result<()> {
    if TOLD.load(Ordering::SeqCst) {
        bail!("interrupted; what was loaded is taken away again");
    }
    Ok(())
}
