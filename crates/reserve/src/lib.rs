// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reserving over bursard's control socket, for use inside an allocator: nothing here allocates, panics
//! or keeps errno as it found it.
//!
//! - [`Contact`] how a process reserves for itself: the reservation is the process's
//! - [`Line`] a connection that a process keeps open: the reservation is the connection's
//! - [`Silence`] how long a daemon that does not answer is left alone
//! - [`Ask`], [`Refused`] what is asked and why it was not done, as errno
//! - [`uncancelled`] for who holds a lock meanwhile
//!
//! The language is crates/protocol's; it is written and read by hand here because serde_json allocates.

mod ask;
mod clock;
mod contact;
mod environment;
mod inbox;
mod line;
mod silence;
mod socket;
mod text;
mod uncancelled;

pub use ask::{Ask, Bound, Grant, Refused};
pub use clock::now_ns;
pub use contact::Contact;
pub use environment::{socket_path, variable};
pub use line::Line;
pub use silence::Silence;
pub use uncancelled::uncancelled;

/// errno, which Rust has no safe name for.
pub fn errno() -> i32 {
    // SAFETY: the thread's own errno; it lives as long as the thread.
    unsafe { *libc::__errno_location() }
}

/// Sets errno.
pub fn set_errno(errno: i32) {
    // SAFETY: the thread's own errno; it lives as long as the thread.
    unsafe { *libc::__errno_location() = errno };
}
