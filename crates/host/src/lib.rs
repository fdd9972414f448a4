// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this machine is and does: processes and memory ([`Proc`]), a process that cannot be mistaken
//! for another ([`Pidfd`]), names of users and groups ([`Users`]), the terminals a user sits at
//! ([`Terminals`]), clocks, mounts.
//!
//! It observes, and does what it is told; it decides nothing. Readers of /proc, /sys and /dev take a
//! root path, so that tests can bring their own. A process that has vanished is `None`, never an error.

#![deny(unsafe_code)]

mod bytes;
pub mod clock;
mod error;
mod login_defs;
pub mod machine;
mod mounts;
#[expect(unsafe_code, reason = "process_mrelease is in no safe library")]
mod mrelease;
#[expect(
    unsafe_code,
    reason = "safe libraries hide whether the source of names answered"
)]
mod nss;
mod pidfd;
mod proc;
mod terminals;
mod users;

pub use error::{HostError, Malformed};
pub use login_defs::{DEFAULT_UID_MIN, UidMin, uid_min};
pub use mounts::{Mount, Mounted, Mounts, mount_bpffs, mount_tracefs};
pub use mrelease::Release;
pub use nss::{Group, Lookup, User};
pub use pidfd::{Pidfd, Sent};
pub use proc::{
    Adjusted, Comm, Device, MemInfo, Memory, Pids, Proc, Process, StartTime, Stat, State, Status,
};
pub use rustix::io::Errno;
pub use rustix::process::Signal;
pub use terminals::{MAX_TERMINALS, Terminals, Told};
pub use users::{Members, Users};
