// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursar's decisions, pure: values in, verdicts out. No I/O, no clock, no traits.

#![forbid(unsafe_code)]

mod account_counters;
mod agreement;
mod beancounters;
mod comparison;
mod coverage;
mod directory;
mod fractions;
mod plan;
mod reap;
#[cfg(test)]
mod sample;
mod subordinates;
mod system_accounts;
mod tightening;
mod victim;
pub mod watermarks;

pub use account_counters::{AccountCounters, Crossing};
pub use agreement::{Agreement, Span, agreement};
pub use beancounters::{Objects, Utilisation, dcachesize, kmemsize};
pub use comparison::{Bound, Compared};
pub use coverage::Coverage;
pub use directory::{Directory, NameError};
pub use fractions::{Fractions, Frame, Mapped, NoShare, PageOwner, WHOLE_PAGE};
pub use plan::{Entry, Plan, Planned, plan};
pub use reap::{
    Attempt, Doing, Freezer, MachineFacts, NextStep, Peculiarity, ReapPlan, Standing, VictimFacts,
    next_step, reap_plan,
};
pub use subordinates::{Disputed, Subordinate, Subordinates};
pub use tightening::Tightened;
pub use victim::{
    Choice, OOM_SCORE_ADJ_MIN, Weighed, choose, first, goes_last, is_protected, rank,
};
