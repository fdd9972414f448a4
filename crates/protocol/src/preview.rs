// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other limits would change, for whom, before they hold.

use bursar_model::{Bytes, Candidate, Mode, Uid, Who};
use serde::{Deserialize, Serialize};

/// A file of limits that is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsText {
    /// Its path, absolute.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// What would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// Who would have another limit, those over most of it first.
    pub accounts: Vec<AccountPreview>,
    /// So many more that are over nothing.
    #[serde(default)]
    pub left_out: u64,
    /// What is to be known of the limits: names that nobody has, bounds that make no sense.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Whether a reload, or the command without --force, would be refused.
    #[serde(default)]
    pub refused: bool,
    /// Why the files of limits, as they were last read, are not in force. Only where no file was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_force: Option<String>,
}

/// One account in it. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountPreview {
    /// Its name.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// What holds now; absent: no limit concerns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<PreviewBound>,
    /// What would hold; absent: no limit would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<PreviewBound>,
    /// What is held now by all who would pay into it.
    pub held: Bytes,
    /// The highest bound that this is more than.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
    /// Who would be killed at once, as it looks now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub victim: Option<Candidate>,
}

impl AccountPreview {
    /// Whether what would hold is only observed.
    pub fn is_observed(&self) -> bool {
        self.new.as_ref().is_some_and(|it| it.mode.is_observed())
    }

    /// Whether somebody of it would be killed at once.
    pub fn kills(&self) -> bool {
        self.over == Some(Over::Limit) && !self.is_observed()
    }
}

/// Bounds on memory and where they come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewBound {
    /// Whose entry.
    pub who: Who,
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Bytes>,
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier: Option<Bytes>,
    /// Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// Whether they are enforced.
    #[serde(default, skip_serializing_if = "Mode::is_usual")]
    pub mode: Mode,
}

/// What would be exceeded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The user would be told.
    Notice,
    /// Requests would be refused.
    Barrier,
    /// A process would be killed; where it is only observed, that is told.
    Limit,
}
