// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user is to know at a login.

use bursar_model::{Bytes, Candidate};
use serde::{Deserialize, Serialize};

/// The asker's account in short.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brief {
    /// Its name, where it is not his alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// Held now.
    pub held: Bytes,
    /// Its limit; absent: none concerns him.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Processes killed in it that he has not been told of by such an answer before.
    pub kills: u64,
    /// The last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Candidate>,
}
