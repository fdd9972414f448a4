// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel half's rules (`crates/kernel/src/bpf/include/rules.h`), compiled natively, and a model of the ledger around
//! them in which an adversary makes any sequence of moves. Not for any program: only tests use it.

mod adversary;
mod checks;
pub mod drafts;
mod former;
mod ledger;
mod moves;
pub mod rules;
mod scripts;
mod world;

pub use adversary::{Breach, Findings};
pub use former::Former;
pub use ledger::{Leavers, Ledger, Rules};
pub use moves::Move;
pub use rules::Current;
pub use scripts::Script;
pub use world::{LIMIT, World};
