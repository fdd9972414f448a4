// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether bounds are enforced or only observed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What becomes of who passes a bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The user is told, requests are refused, a process is killed.
    #[default]
    Enforce,
    /// An event says that it would be so.
    Observe,
}

impl Mode {
    /// Its name in files and commands.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }

    /// Whether events are all that follows.
    pub const fn is_observed(self) -> bool {
        matches!(self, Self::Observe)
    }

    /// Whether it is what holds where nothing is said.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
