// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole-system stories: a real bursard, real programs of throw-away users, the running kernel.
//!
//! [`World`] is the stage: a daemon with paths of its own, and programs that are gone when the stage
//! is, whatever happened on it.

mod cgroup;
mod daemon;
mod freezer;
mod hog;
mod huge_page_pool;
mod length;
mod mount_namespace;
mod proc;
mod replica;
mod runner;
mod signal;
pub mod stories;
pub mod swap;
mod table;
mod terminal;
mod threads;
mod unit;
mod users;
mod wait;
mod world;

pub use daemon::Daemon;
pub use hog::Hog;
pub use length::tell_whole;
pub use runner::{Place, Share, Story, run};
pub use wait::{until, within};
pub use world::{Binaries, World, sweep};
