// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursard says about dirty page cache.

use bursar_model::{Bytes, Uid};
use serde::{Deserialize, Serialize};

/// Page cache that has to be written, by the account that dirtied it (S5 section 3.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyReport {
    /// How it is known.
    pub known: DirtyKnown,
    /// The accounts, those for which nobody pays under their users' names.
    pub accounts: Vec<DirtyRow>,
    /// What is dirty on the whole machine, by the kernel.
    pub machine_dirty_bytes: Bytes,
    /// Pages for which there was no room, in folios, and those cleaned unseen; since it is counted.
    pub folios_lost: u64,
    /// The same for who dirtied them.
    pub payers_lost: u64,
    /// Folios found clean of which no event had told.
    pub forgotten: u64,
}

/// How dirty pages are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyKnown {
    /// Each from the moment when it becomes dirty until it is clean.
    Exact,
    /// Only how many became dirty: this kernel lets nobody see when they are clean.
    Cumulative,
}

/// What one account has dirtied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirtyRow {
    /// Its name; `kernel` for the kernel's own threads.
    pub account: String,
    /// Its user; absent for a shared account and for the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Dirty now; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<Bytes>,
    /// Became dirty since somebody first asked.
    pub dirtied_bytes: Bytes,
    /// Of that, went to be written.
    pub written_bytes: Bytes,
    /// Of that, was truncated or removed before it was written.
    pub cancelled_bytes: Bytes,
}
