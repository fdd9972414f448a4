// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page faults (S3): what they cost, who takes them, and how to keep them out of a program.

mod begin_hooks;
mod booked;
mod capacity;
mod cause;
mod elf;
mod error;
mod held;
mod histogram;
mod lock;
mod mapped;
mod mapped_file;
mod maps;
pub mod measure;
mod memory;
pub mod overcommit;
mod perf;
pub mod program;
mod rates;
pub mod report;
mod residency;
pub mod signals;
mod skeleton;
mod snapshot;
mod switches;
mod task_iterator;
mod threads;
mod timing;
mod usage;
mod watcher;
mod window;

pub use capacity::Capacity;
pub use cause::Cause;
pub use error::Error;
pub use held::{Held, Output};
pub use histogram::{Bucket, Histogram, bucket_of};
pub use lock::LockRequest;
pub use maps::Symbols;
pub use rates::{Rates, check_target, faults_of, is_gone};
pub use residency::{Residency, Resident};
pub use snapshot::{FaultRecord, Losses, Mapping, MappingKind, Site, Snapshot, WatchedProcess};
pub use threads::{Threads, real_time_threads};
pub use timing::Timing;
pub use usage::Faults;
pub use watcher::{Target, WatchOptions, Watcher};
