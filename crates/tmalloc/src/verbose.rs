// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one thing that the library ever says.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::environment;

static SAID: AtomicBool = AtomicBool::new(false);

/// Says on stderr, once a process and only if `TMALLOC_VERBOSE` is set, that nobody answers.
pub(crate) fn say_once(errno: i32) {
    if !environment::is_verbose() || SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let text: &[u8] = match errno {
        libc::ENOENT | libc::ECONNREFUSED => {
            b"tmalloc: bursard does not run: allocating without reserving, like malloc\n"
        }
        libc::EACCES | libc::EPERM => {
            b"tmalloc: bursard's socket may not be used: allocating without reserving, like malloc\n"
        }
        libc::EAGAIN => {
            b"tmalloc: too many of this user's programs ask bursard: allocating without reserving, like malloc\n"
        }
        _ => b"tmalloc: bursard does not answer: allocating without reserving, like malloc\n",
    };
    // SAFETY: a live buffer and its length; nobody can be told if it fails.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}
