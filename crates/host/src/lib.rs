// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this machine is and does: processes and memory ([`Proc`]), a process that cannot be mistaken
//! for another ([`Pidfd`]), names of users and groups ([`Users`]), the terminals a user sits at
//! ([`Terminals`]), clocks, mounts.
//!
//! It observes, and does what it is told; it decides nothing. Readers of /proc, /sys and /dev take a
//! root path, so that tests can bring their own. A process that has vanished is `None`, never an error.
//! What a process can keep us waiting with is asked by whom the caller sends ([`Ask`]).

#![deny(unsafe_code)]

mod alarm;
mod bytes;
mod capability;
mod cgroup_memory;
mod cgroups;
pub mod clock;
#[expect(
    unsafe_code,
    reason = "prlimit without a new limit is in no safe library"
)]
mod data_limit;
mod descriptors;
mod directory;
mod directory_watch;
mod error;
mod executable;
mod exempt_cgroups;
mod file_watch;
mod group_file;
mod huge_pages;
#[expect(unsafe_code, reason = "kcmp is in no safe library")]
mod kcmp;
#[expect(unsafe_code, reason = "process_madvise is in no safe library")]
mod lazy_free;
mod login_defs;
pub mod machine;
mod memory_files;
mod mounts;
#[expect(unsafe_code, reason = "process_mrelease is in no safe library")]
mod mrelease;
#[expect(
    unsafe_code,
    reason = "safe libraries hide whether the source of names answered"
)]
mod nss;
#[expect(unsafe_code, reason = "PAGEMAP_SCAN is in no safe library")]
mod pagemap;
#[expect(unsafe_code, reason = "SO_PASSRIGHTS is in no safe library")]
mod passed;
#[expect(unsafe_code, reason = "SO_PEERPIDFD is in no safe library")]
mod peer;
mod pi_mutex;
mod pidfd;
mod proc;
mod process_query;
mod replaced_file;
#[expect(unsafe_code, reason = "sched_setscheduler is in no safe library")]
pub mod sched;
mod subuid;
mod terminals;
pub mod thread;
mod timer;
#[expect(unsafe_code, reason = "questions to namespaces are in no safe library")]
mod user_namespaces;
mod users;
pub mod vm;
mod waker;

pub use alarm::Alarm;
pub use capability::leave_oom_score_minimum;
pub use cgroup_memory::kernel_memory_of_slice;
pub use cgroups::{Cgroup, Cgroups, Controller};
pub use data_limit::{DataLimit, Limited, data_limit, set_data_limit};
pub use descriptors::raise_descriptors;
pub use directory::make_directory;
pub use directory_watch::DirectoryWatch;
pub use error::{HostError, Malformed};
pub use executable::Executable;
pub use exempt_cgroups::{ExemptCgroups, ResolvedCgroups};
pub use file_watch::FileWatch;
pub use group_file::gid_in_file;
pub use huge_pages::HugePages;
pub use kcmp::{order_of_memory, share_memory};
pub use lazy_free::PageFlags;
pub use login_defs::{DEFAULT_UID_MIN, UidMin, uid_min};
pub use memory_files::{MemoryFile, MemoryFiles};
pub use mounts::{Mount, Mounted, Mounts, mount_bpffs, mount_tracefs};
pub use mrelease::Release;
pub use nss::{Group, Lookup, User, names_in_passwd};
pub use pagemap::{MapCounts, PageEntry, Pagemap, Walked, expect_frames};
pub use passed::{peek, refuse_passed};
pub use peer::Peer;
pub use pi_mutex::{PiGuard, PiMutex};
pub use pidfd::{Pidfd, Sent};
pub use proc::{
    Adjusted, Comm, Device, Image, MemInfo, Memory, Pids, Proc, Process, Rollup, Segment,
    SharedMemory, StartTime, Stat, State, Statm, Status,
};
pub use process_query::{Patient, ProcessQuery};
pub use replaced_file::replace_file;
pub use rustix::io::Errno;
pub use rustix::process::Signal;
pub use sched::Changed;
pub use subuid::{SubuidLine, SubuidOwner, Subuids, subuids};
pub use terminals::{MAX_NOTIFICATION, MAX_TERMINALS, Notified, Terminals, UserTerminals};
pub use timer::Timer;
pub use user_namespaces::{PeerOwner, Unresponsive, UserNamespaces, UsernsOwner};
pub use users::{Members, Users};
pub use waker::Waker;
