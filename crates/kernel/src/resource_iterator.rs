// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Iterates over the machine: every task and every open file with what is on somebody's bill
//! (`bpf/beancounters/resource_iterator.bpf.c`). Nothing runs between two scans.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Instant;

use bursar_model::{AccountId, Bytes, Pages, Pid, Uid, namespace_bytes};
use libbpf_rs::Link;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::abi::{self, Pod};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::resource_iterator as object;
use crate::skeleton::resource_iterator::types::{seen_file, seen_kind, seen_task};
use crate::{Error, Options, call};

/// A task. What is said of its address space is said by each of the tasks that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenTask {
    /// Its user, whose queued signals are told.
    pub uid: Uid,
    /// Who pays for it: its user, or the number of the account that it has entered.
    pub payer: AccountId,
    /// Its process.
    pub process: Pid,
    /// Its address space; `None` once it has none.
    pub space: Option<SeenSpace>,
    /// Signals queued for its user, over all of his processes.
    pub pending_signals: u64,
    /// The kernel's memory for all namespaces that its user has made and that still are.
    pub namespaces: Bytes,
}

/// An address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenSpace {
    /// Names it during this scan.
    pub mark: u64,
    /// Resident, file pages among it; exact.
    pub resident: Pages,
    /// Swapped out.
    pub swapped: Pages,
    /// Private writable memory and stacks, touched or not.
    pub private: Pages,
    /// Locked, and pinned by drivers.
    pub locked: Pages,
    /// Its page tables.
    pub tables: Bytes,
    /// Its mappings.
    pub areas: u64,
}

/// An open file: once for each descriptor that refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenFile {
    /// Names it during this scan.
    pub mark: u64,
    /// Names its inode during this scan; 0: it has none.
    pub inode: u64,
    /// Who pays for it: who opened it, or the number of the account that who has it open has entered.
    pub payer: AccountId,
    /// What kind of open file it is.
    pub kind: SeenKind,
    /// File locks taken through it.
    pub locks: u64,
    /// Its inode has more locks than were counted.
    pub is_cut: bool,
    /// In its socket's send buffers.
    pub sending: Bytes,
    /// In its socket's receive buffers.
    pub received: Bytes,
}

/// What an open file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenKind {
    /// Nothing of these.
    Other,
    /// A TCP socket.
    Tcp,
    /// A datagram socket.
    Datagram,
    /// Another socket.
    Socket,
    /// The master of a pseudo terminal.
    Terminal,
    /// An end of a pipe.
    Pipe,
}

/// Something that a scan meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A task, none of the kernel's own; all of them before any file.
    Task(SeenTask),
    /// An open file.
    File(SeenFile),
}

/// The iterators over tasks and files.
#[derive(Debug)]
pub struct ResourceIterator {
    tasks: Link,
    files: Link,
}

// SAFETY: integers only (beancounters.h).
unsafe impl Pod for seen_task {}
// SAFETY: as above.
unsafe impl Pod for seen_file {}

impl ResourceIterator {
    pub(crate) fn load(pins: &Pins, options: &Options) -> Result<Self, Error> {
        let unsupported = Error::unsupported("a scan of tasks and files");
        let mut storage = MaybeUninit::uninit();
        let mut open = object::ResourceIteratorSkelBuilder::default()
            .open(&mut storage)
            .map_err(unsupported)?;
        set_knobs!(open, "resource_iterator", options, {
            namespace_bytes: namespace_bytes(options.possible_cpus),
        });
        share_pinned!(open, pins, {
            state_map: "state",
            cpu_offsets: "cpu_offsets",
            payers: "payers",
            accounts: "accounts",
            members: "members",
            subordinates: "subordinates",
            exempt_cgroups: "exempt_cgroups",
        });
        let loaded = open.load().map_err(unsupported)?;
        Ok(Self {
            tasks: loaded.progs.see_tasks.attach().map_err(unsupported)?,
            files: loaded.progs.see_files.attach().map_err(unsupported)?,
        })
    }

    /// Looks, in our own time: about 2 µs a task and an open file; `see` is told what is met. Returns
    /// whether it was `until` before everything was met. One scan at a time.
    ///
    /// # Errors
    /// When an iterator cannot be read.
    pub fn iterate(&self, until: Instant, mut see: impl FnMut(Seen)) -> Result<bool, Error> {
        let task = |raw: &seen_task| see(Seen::Task(SeenTask::new(raw)));
        let tasks_whole = read_all(&self.tasks, "scan all tasks", until, task)?;
        let file = |raw: &seen_file| see(Seen::File(SeenFile::new(raw)));
        let files_whole = read_all(&self.files, "scan all open files", until, file)?;
        Ok(!tasks_whole || !files_whole)
    }
}

/// Returns whether it came to the end.
fn read_all<T: Pod>(
    link: &Link,
    what: &'static str,
    until: Instant,
    mut take: impl FnMut(&T),
) -> Result<bool, Error> {
    // What is left of a record whose rest the next read brings.
    let mut rest = Vec::new();
    let is_late = || Instant::now() >= until;
    call::read(link, what, is_late, |bytes| {
        rest.extend_from_slice(bytes);
        let mut records = rest.chunks_exact(size_of::<T>());
        for record in records.by_ref().filter_map(abi::read) {
            take(&record);
        }
        rest = records.remainder().to_vec();
    })
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn payer(uid: u32, entered: u64) -> AccountId {
    match entered {
        0 => AccountId::of(Uid::new(uid)),
        account => AccountId::new(account),
    }
}

impl SeenTask {
    fn new(raw: &seen_task) -> Self {
        let resident = [raw.file_pages, raw.anon_pages, raw.shmem_pages]
            .iter()
            .fold(0_i64, |sum, pages| sum.saturating_add(*pages));
        let space = SeenSpace {
            mark: raw.mm,
            resident: abi::count(resident),
            swapped: abi::count(raw.swap_pages),
            private: abi::count(raw.data_pages.saturating_add(raw.stack_pages)),
            locked: abi::count(raw.locked_pages.saturating_add(raw.pinned_pages)),
            tables: Bytes::new(count(raw.table_bytes)),
            areas: count(raw.areas),
        };
        Self {
            uid: Uid::new(raw.uid),
            payer: payer(raw.uid, raw.entered),
            process: Pid::new(raw.tgid),
            space: (raw.mm != 0).then_some(space),
            pending_signals: count(raw.pending_signals),
            namespaces: Bytes::new(count(raw.namespace_bytes)),
        }
    }
}

impl SeenFile {
    fn new(raw: &seen_file) -> Self {
        Self {
            mark: raw.file,
            inode: raw.inode,
            payer: payer(raw.uid, raw.entered),
            kind: match seen_kind(raw.kind.into()) {
                seen_kind::SEEN_TCP => SeenKind::Tcp,
                seen_kind::SEEN_DATAGRAM => SeenKind::Datagram,
                seen_kind::SEEN_SOCKET => SeenKind::Socket,
                seen_kind::SEEN_PTY => SeenKind::Terminal,
                seen_kind::SEEN_PIPE => SeenKind::Pipe,
                _ => SeenKind::Other,
            },
            locks: u64::from(raw.locks),
            is_cut: raw.is_cut != 0,
            sending: Bytes::new(count(raw.send_bytes)),
            received: Bytes::new(count(raw.receive_bytes)),
        }
    }
}
