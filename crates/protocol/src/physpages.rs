// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursard says about mapped pages and what part of each counts for whom.

use bursar_model::{Bytes, Uid};
use serde::{Deserialize, Serialize};

/// A page, in the parts that shares are counted in.
pub const PARTS_OF_A_PAGE: u64 = 1 << 24;

/// What came of asking for a count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhyspagesReply {
    /// It is under way: ask again with this ticket.
    Counting {
        /// Names the count.
        ticket: u64,
    },
    /// Here it is.
    Counted(Physpages),
}

/// A count of all pages that processes map (S5 section 3.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physpages {
    /// How long ago it was finished, nanoseconds.
    pub age_ns: u64,
    /// From its beginning to its end, nanoseconds.
    pub took_ns: u64,
    /// Of that, work; the rest were pauses.
    pub work_ns: u64,
    /// A page of this machine.
    pub page_bytes: Bytes,
    /// The accounts; who may not see all gets his own.
    pub accounts: Vec<PhyspagesRow>,
    /// All processes for which no account pays, together; root only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaccounted: Option<PhyspagesRow>,
    /// Of all accounts and without account; root only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<PhyspagesMachine>,
}

/// What one account has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhyspagesRow {
    /// Its name.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Its processes that map anything.
    pub processes: u32,
    /// The sum of their resident sets: pages that several map count several times.
    pub resident_pages: u64,
    /// Pages that one of its processes maps and nobody else.
    pub own_pages: u64,
    /// Its part where a page of n accounts counts 1/n in each; in 1/2^24 of a page.
    pub exact_parts: u64,
    /// Its part by S5's rule of halves; in 1/2^24 of a page.
    pub shift_parts: u64,
}

/// The machine as a count found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhyspagesMachine {
    /// Pages that are mapped, each once.
    pub mapped_pages: u64,
    /// Of these, mapped more than once.
    pub shared_pages: u64,
    /// Whether everybody's parts are exactly these pages, by both rules.
    pub is_whole: bool,
    /// Processes looked at.
    pub processes: u32,
    /// Processes that ended, or began another program, while they were looked at.
    pub vanished: u32,
    /// Processes whose pages may not be looked at, or that keep us waiting for them.
    pub refused: u32,
    /// Pages that count whole for more than one: there was no room to split them.
    pub crowded_pages: u64,
    /// Pages not looked at one by one: in address spaces too empty to be read to the end.
    pub unseen_pages: u64,
    /// Pages that changed hands meanwhile; each counts where it was met first.
    pub moved_pages: u64,
    /// Entries of the zero page and of devices, which are nobody's.
    pub nobodys_entries: u64,
    /// Whether those count although they should not: the kernel does not tell them apart.
    pub nobodys_unknown: bool,
}
