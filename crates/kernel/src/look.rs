// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A look at the machine: every task and every open file with what is on somebody's bill
//! (`bpf/look.bpf.c`). Nothing runs between two looks.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bursar_model::{Bytes, Pages, Pid, Uid};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link};

use crate::abi::{self, Plain};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::look;
use crate::skeleton::look::types::{seen_file, seen_kind, seen_task};
use crate::{Error, Options};

/// What one look may bring into memory, bytes: five million open files. What lies beyond is not seen, and
/// the answer says so.
const MOST: u64 = 256 << 20;

/// A task. What is said of its address space is said by each of the tasks that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenTask {
    /// Its user, whose queued signals are told.
    pub uid: Uid,
    /// Who pays for it: its user, or the number of the account that it has entered.
    pub payer: Uid,
    /// Its process.
    pub process: Pid,
    /// Its address space; `None` once it has none.
    pub space: Option<SeenSpace>,
    /// Signals queued for its user, over all of his processes.
    pub pending_signals: u64,
}

/// An address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenSpace {
    /// Names it during this look.
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
    /// Names it during this look.
    pub mark: u64,
    /// Names its inode during this look; 0: it has none.
    pub inode: u64,
    /// Who pays for it: who opened it, or the number of the account that who has it open has entered.
    pub payer: Uid,
    /// What it is.
    pub kind: SeenKind,
    /// File locks taken through it.
    pub locks: u64,
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

/// What a look saw.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sight {
    /// All tasks but the kernel's own.
    pub tasks: Vec<SeenTask>,
    /// All open files.
    pub files: Vec<SeenFile>,
    /// There was more than could be taken in.
    pub is_cut: bool,
}

/// Looks.
#[derive(Debug)]
pub struct Look {
    tasks: Link,
    files: Link,
}

// SAFETY: integers only (bills.h).
unsafe impl Plain for seen_task {}
// SAFETY: as above.
unsafe impl Plain for seen_file {}

impl Look {
    pub(crate) fn load(pins: &Pins, options: &Options) -> Result<Self, Error> {
        let unsupported = Error::unsupported("a look at tasks and files");
        let mut storage = MaybeUninit::uninit();
        let mut open = look::LookSkelBuilder::default()
            .open(&mut storage)
            .map_err(unsupported)?;
        set_knobs!(open, "look", options, {});
        share_pinned!(open, pins, {
            state_map: "state",
            payers: "payers",
            accounts: "accounts",
            members: "members",
        });
        let loaded = open.load().map_err(unsupported)?;
        Ok(Self {
            tasks: loaded.progs.see_tasks.attach().map_err(unsupported)?,
            files: loaded.progs.see_files.attach().map_err(unsupported)?,
        })
    }

    /// Looks, in our own time: about 2 µs a task and an open file.
    ///
    /// # Errors
    /// When an iterator cannot be read.
    pub fn look(&self) -> Result<Sight, Error> {
        let (tasks, tasks_cut) = read_all::<seen_task>(&self.tasks, "look at all tasks")?;
        let (files, files_cut) = read_all::<seen_file>(&self.files, "look at all open files")?;
        Ok(Sight {
            tasks: tasks.iter().map(SeenTask::new).collect(),
            files: files.iter().map(SeenFile::new).collect(),
            is_cut: tasks_cut || files_cut,
        })
    }
}

fn read_all<T: Plain>(link: &Link, what: &'static str) -> Result<(Vec<T>, bool), Error> {
    let mut bytes = Vec::new();
    Iter::new(link)
        .map_err(Error::io(what))?
        .take(MOST)
        .read_to_end(&mut bytes)
        .map_err(|source| Error::Io { what, source })?;
    let is_cut = u64::try_from(bytes.len()).unwrap_or(u64::MAX) >= MOST;
    let all = bytes.chunks_exact(size_of::<T>()).filter_map(abi::read);
    Ok((all.collect(), is_cut))
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn payer(uid: u32, entered: u32) -> Uid {
    Uid::new(if entered == 0 { uid } else { entered })
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
        }
    }
}

impl SeenFile {
    fn new(raw: &seen_file) -> Self {
        Self {
            mark: raw.file,
            inode: raw.inode,
            payer: payer(raw.uid, raw.entered),
            kind: match seen_kind(raw.kind) {
                seen_kind::SEEN_TCP => SeenKind::Tcp,
                seen_kind::SEEN_DATAGRAM => SeenKind::Datagram,
                seen_kind::SEEN_SOCKET => SeenKind::Socket,
                seen_kind::SEEN_PTY => SeenKind::Terminal,
                seen_kind::SEEN_PIPE => SeenKind::Pipe,
                _ => SeenKind::Other,
            },
            locks: u64::from(raw.locks),
            sending: Bytes::new(count(raw.send_bytes)),
            received: Bytes::new(count(raw.receive_bytes)),
        }
    }
}
