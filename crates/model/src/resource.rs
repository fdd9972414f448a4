// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rows of an account's table (S5 section 2.2).

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A kind of kernel resource that an account can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// What would come back if the account's processes went away (docs/ACCOUNTING.md).
    Memory,
}

impl Resource {
    /// The name in the contract: `--json` keys, `limit set WHO RESOURCE=…`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
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
}
