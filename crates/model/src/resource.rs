// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of an account's table (S5 section 2.2).

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A kind of kernel resource that an account can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// What would come back if the account's processes went away (docs/explanation/accounting.md).
    Memory,
    /// The kernel's own memory for the account's objects.
    Kmemsize,
    /// Pages that may not be swapped out (mlock).
    Lockedpages,
    /// Private writable memory, touched or not.
    Privvmpages,
    /// System V segments and shared anonymous mappings.
    Shmpages,
    /// Processes and threads.
    Numproc,
    /// Resident pages; of a page that others map as well, its part (S5 section 3.2).
    Physpages,
    /// Private writable memory that is guaranteed.
    Vmguarpages,
    /// Memory and swap up to which no process is killed for want of memory.
    Oomguarpages,
    /// TCP sockets.
    Numtcpsock,
    /// File locks.
    Numflock,
    /// Pseudo terminals.
    Numpty,
    /// Queued signals.
    Numsiginfo,
    /// Buffers of TCP sockets that wait to be sent.
    Tcpsndbuf,
    /// Buffers of TCP sockets that wait to be read.
    Tcprcvbuf,
    /// Send buffers of all other sockets.
    Othersockbuf,
    /// Receive buffers of datagram sockets.
    Dgramrcvbuf,
    /// All sockets that are not TCP's.
    Numothersock,
    /// Names and inodes that cannot be given back because somebody uses them.
    Dcachesize,
    /// Open files.
    Numfile,
    /// Rules of the packet filter.
    Numiptent,
    /// Page cache that waits to be written because of it (S5 section 3.2.1); no row of OpenVZ's.
    Dirtypages,
}

/// What a row's numbers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Pages of 4 KiB, as OpenVZ's.
    Pages,
    /// Pieces.
    Items,
}

/// What a barrier and a limit mean for a row (docs/explanation/beancounters.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Chosen by the administrator; the others follow from these.
    Primary,
    /// Follows from the primary ones.
    Secondary,
    /// For safety.
    Auxiliary,
}

impl Resource {
    /// OpenVZ's rows, in the order of /proc/user_beancounters, and ours.
    pub const BEANCOUNTERS: [Self; 21] = [
        Self::Kmemsize,
        Self::Lockedpages,
        Self::Privvmpages,
        Self::Shmpages,
        Self::Numproc,
        Self::Physpages,
        Self::Vmguarpages,
        Self::Oomguarpages,
        Self::Numtcpsock,
        Self::Numflock,
        Self::Numpty,
        Self::Numsiginfo,
        Self::Tcpsndbuf,
        Self::Tcprcvbuf,
        Self::Othersockbuf,
        Self::Dgramrcvbuf,
        Self::Numothersock,
        Self::Dcachesize,
        Self::Numfile,
        Self::Numiptent,
        Self::Dirtypages,
    ];

    /// Memory of the kernel itself in OpenVZ's sums (vzcalc's "kernel memory"): never swapped.
    pub const KERNEL_MEMORY: [Self; 5] = [
        Self::Kmemsize,
        Self::Tcpsndbuf,
        Self::Tcprcvbuf,
        Self::Othersockbuf,
        Self::Dgramrcvbuf,
    ];

    /// The name in the contract: `--json` keys, `limit set WHO RESOURCE=…`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Kmemsize => "kmemsize",
            Self::Lockedpages => "lockedpages",
            Self::Privvmpages => "privvmpages",
            Self::Shmpages => "shmpages",
            Self::Numproc => "numproc",
            Self::Physpages => "physpages",
            Self::Vmguarpages => "vmguarpages",
            Self::Oomguarpages => "oomguarpages",
            Self::Numtcpsock => "numtcpsock",
            Self::Numflock => "numflock",
            Self::Numpty => "numpty",
            Self::Numsiginfo => "numsiginfo",
            Self::Tcpsndbuf => "tcpsndbuf",
            Self::Tcprcvbuf => "tcprcvbuf",
            Self::Othersockbuf => "othersockbuf",
            Self::Dgramrcvbuf => "dgramrcvbuf",
            Self::Numothersock => "numothersock",
            Self::Dcachesize => "dcachesize",
            Self::Numfile => "numfile",
            Self::Numiptent => "numiptent",
            Self::Dirtypages => "dirtypages",
        }
    }

    /// The beancounter of this name.
    pub fn beancounter(name: &str) -> Option<Self> {
        Self::BEANCOUNTERS.into_iter().find(|it| it.name() == name)
    }

    /// What its numbers count.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Memory
            | Self::Kmemsize
            | Self::Tcpsndbuf
            | Self::Tcprcvbuf
            | Self::Othersockbuf
            | Self::Dgramrcvbuf
            | Self::Dcachesize => Unit::Bytes,
            Self::Lockedpages
            | Self::Privvmpages
            | Self::Shmpages
            | Self::Physpages
            | Self::Vmguarpages
            | Self::Oomguarpages
            | Self::Dirtypages => Unit::Pages,
            Self::Numproc
            | Self::Numtcpsock
            | Self::Numflock
            | Self::Numpty
            | Self::Numsiginfo
            | Self::Numothersock
            | Self::Numfile
            | Self::Numiptent => Unit::Items,
        }
    }

    /// What its barrier and limit mean.
    pub const fn class(self) -> Class {
        match self {
            Self::Memory
            | Self::Numproc
            | Self::Numtcpsock
            | Self::Numothersock
            | Self::Vmguarpages => Class::Primary,
            Self::Kmemsize
            | Self::Tcpsndbuf
            | Self::Tcprcvbuf
            | Self::Othersockbuf
            | Self::Dgramrcvbuf
            | Self::Oomguarpages
            | Self::Privvmpages => Class::Secondary,
            Self::Lockedpages
            | Self::Shmpages
            | Self::Physpages
            | Self::Numfile
            | Self::Numflock
            | Self::Numpty
            | Self::Numsiginfo
            | Self::Dcachesize
            | Self::Numiptent
            | Self::Dirtypages => Class::Auxiliary,
        }
    }

    /// Whether its barrier is a promise to the account and not a bound of it.
    pub const fn is_guarantee(self) -> bool {
        matches!(self, Self::Vmguarpages | Self::Oomguarpages)
    }
}

impl Unit {
    /// OpenVZ's page.
    pub const PAGE_BYTES: u64 = 4096;

    /// For people, one or many.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Pages => "pages",
            Self::Items => "items",
        }
    }
}

/// One row: what is held, the most ever held, the bounds, and how often the bounds were met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Held now by living processes.
    pub held: Bytes,
    /// The most ever held.
    pub maxheld: Bytes,
    /// Above this the user is told.
    pub notice: Option<Bytes>,
    /// Above this new requests are refused.
    pub barrier: Option<Bytes>,
    /// Above this a process is killed.
    pub limit: Option<Bytes>,
    /// Charges that were refused: requests denied and breaches answered by a kill.
    pub failcnt: u64,
    /// Promised to its processes and not held yet (S1 section 5.2).
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub reserved: Bytes,
}

fn is_nothing(amount: &Bytes) -> bool {
    *amount == Bytes::ZERO
}
