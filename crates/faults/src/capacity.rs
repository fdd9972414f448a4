// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory may be made resident and locked here.

use std::fs;

use bursar_host::Proc;
use bursar_model::Bytes;

use crate::Error;

/// How much memory may be made resident and locked here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// What the machine can give without hurting others: MemAvailable less a sixteenth.
    pub available: Bytes,
    /// RLIMIT_MEMLOCK; `None` where it does not bind (unlimited, or CAP_IPC_LOCK).
    pub memlock: Option<Bytes>,
}

impl Capacity {
    /// Of this process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn ours() -> Result<Self, Error> {
        let available = Proc::host()?.meminfo()?.available;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        Ok(Self {
            available: available.saturating_sub(available.scaled(1, 16)),
            memlock: limit.filter(|_| !has_ipc_lock()).map(Bytes::new),
        })
    }
}

/// Whether we have CAP_IPC_LOCK.
fn has_ipc_lock() -> bool {
    // Our own name is any bytes.
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set >> 14 & 1 == 1)
}
