// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the administrator wrote: `bursar.toml` ([`Config`]) and `limits.toml` ([`Limits`]), each with
//! its drop-ins, as types of the model.
//!
//! Everything that is wrong is said as `path:line: key: message; remedy` ([`Finding`]). Nothing here
//! asks the machine anything except for these files, those that they name and the time: names of users are not
//! resolved and percentages stay percentages.

#![forbid(unsafe_code)]

mod cgroup_pattern;
mod changes;
mod check;
mod config;
mod consistency;
mod contradiction;
mod drop_ins;
mod edit;
mod entry;
mod error;
mod finding;
mod kept;
mod limit_set;
mod limits;
mod load;
mod program;
pub mod reading;
mod reference;
mod removal;
mod schema;
mod source;
mod spelling;
mod store;
mod sysctl;
mod sysctl_rule;
mod trust;
mod value;
mod watermarks;

pub use cgroup_pattern::MAX_CGROUPS;
pub use check::{check, check_entry, ended, overrides};
pub use config::{
    Accounts, BackendChoice, Config, Count, Events, Exempt, Gate, GateChoice, LastDefenceWhen,
    Ledger, Log, LogLevel, MAX_EXEMPT, Messages, OnExit, OomScoreConfig, Paths, Reap, ReloadChoice,
    Tell, Triggers, UidRange, Usage,
};
pub use consistency::{Machine, consistency};
pub use edit::Temporary;
pub use entry::Limit;
pub use error::ConfigError;
pub use finding::{Finding, Severity};
pub use kept::LAST_GOOD;
pub use limit_set::{Before, Limits, Origin};
pub use load::{DEFAULT_CONFIG, Loaded};
pub use program::{MAX_SPARED, Program, programs};
pub use reference::{key_reference, shipped_file};
pub use source::{MAX_FILE, read_text};
pub use sysctl::{Counterpart, Sysctl};
pub use sysctl_rule::{Comparison, Condition, Quantity, SysctlRule};
pub use watermarks::{WatermarkMode, WatermarkModel, Watermarks};
