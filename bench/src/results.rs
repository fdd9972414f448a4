// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All that a run found, as it is kept in JSON: whatever is shown is made from this alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::table::gate::Gate;
use crate::table::instructions::Instructions;
use crate::table::malloc::Mallocs;
use crate::table::observe::Observe;
use crate::table::overcommit::Overcommit;
use crate::table::peers::Peers;
use crate::table::scale::Scale;
use crate::table::speed::Speed;
use crate::table::system::System;

/// A run: the machine, and the tables that were asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) version: String,
    pub(crate) is_quick: bool,
    /// Further runs, at other times and maybe of other builds, that tables were taken from.
    #[serde(default)]
    pub(crate) further_runs: usize,
    /// How long the whole run took, seconds.
    pub(crate) seconds: f64,
    /// Of which others on the machine made it wait (--lock).
    pub(crate) waited_seconds: f64,
    pub(crate) machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overcommit: Option<Overcommit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) speed: Option<Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<Scale>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) observe: Option<Observe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<System>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate: Option<Gate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<Instructions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) malloc: Option<Mallocs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peers: Option<Peers>,
}

impl Results {
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("read {path:?} (a run leaves it: bursar-bench all)"))?;
        serde_json::from_str(&text).with_context(|| format!("understand {path:?}"))
    }

    /// Takes the tables that this one lacks. Machines are the reader's to compare.
    pub(crate) fn complete_from(&mut self, other: Self) {
        let lacks = self.tables();
        self.overcommit = self.overcommit.take().or(other.overcommit);
        self.speed = self.speed.take().or(other.speed);
        self.scale = self.scale.take().or(other.scale);
        self.observe = self.observe.take().or(other.observe);
        self.system = self.system.take().or(other.system);
        self.gate = self.gate.take().or(other.gate);
        self.instructions = self.instructions.take().or(other.instructions);
        self.malloc = self.malloc.take().or(other.malloc);
        self.peers = self.peers.take().or(other.peers);
        if self.tables() > lacks {
            self.is_quick |= other.is_quick;
            self.further_runs += 1 + other.further_runs;
            self.seconds += other.seconds;
            self.waited_seconds += other.waited_seconds;
        }
    }

    fn tables(&self) -> usize {
        usize::from(self.overcommit.is_some())
            + usize::from(self.speed.is_some())
            + usize::from(self.scale.is_some())
            + usize::from(self.observe.is_some())
            + usize::from(self.system.is_some())
            + usize::from(self.gate.is_some())
            + usize::from(self.instructions.is_some())
            + usize::from(self.malloc.is_some())
            + usize::from(self.peers.is_some())
    }

    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(|| format!("make {directory:?}"))?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("write {path:?}"))
    }
}
