// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Supervision of threads that a process can hold up for ever.
//!
//! Reading another process's memory (process_mrelease, smaps_rollup, maps, kcmp) waits for a lock of that process,
//! and a process can keep that lock: one of its threads holds it and waits for a file server of its owner's. Only
//! SIGKILL ends such a wait of ours, and that would end the whole daemon. So the thread is abandoned: another one
//! takes its place, and it ends when it comes back.
//!
//! - A [`Guard`] makes such calls and says which one the thread is in.
//! - A [`Monitor`] decides whether the thread hangs in it.
//! - The [`Blocklist`] refuses further calls to that process, and to owners at whose processes many threads hang.
//! - An [`AbandonableWorker`] carries out orders and can be abandoned in one; a [`Supervisor`] queues them and replaces
//!   it; a [`TimedQuery`] asks many processes and goes on with the next when one does not answer in time.
//!
//! docs/explanation/reap.md, "Processes that keep their memory's lock", has the attack and what it costs.

#![forbid(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing))]

mod abandonable_worker;
mod blocklist;
mod guard;
mod heartbeat;
mod monitor;
mod owner;
mod supervisor;
mod timed_query;

pub use abandonable_worker::{AbandonableWorker, Outcome};
pub use blocklist::Blocklist;
pub use guard::{Abandoned, Guard};
pub use monitor::{Monitor, ThreadState};
pub use owner::Owner;
pub use supervisor::{Finished, Supervisor, Work};
pub use timed_query::{TimedQuery, time_waited};
