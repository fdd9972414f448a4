// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes at which threads of ours hang: nobody else calls them until those threads are back.
//!
//! One rule bounds what that costs: an owner may hold up four threads, all together 64. Beyond, no process of that
//! owner, or of anybody, is called.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bursar_host::Proc;
use bursar_model::Pid;

use crate::heartbeat::Heartbeat;
use crate::owner::Owner;

/// Threads that one owner may hold up.
const PER_OWNER: usize = 4;
/// Threads that all owners together may.
const TOTAL: usize = 64;

#[derive(Debug)]
struct Entry {
    heartbeat: Arc<Heartbeat>,
    pid: Pid,
    owner: Owner,
}

/// Shared by all threads that call processes.
#[derive(Debug, Default)]
pub struct Blocklist {
    entries: Mutex<Vec<Entry>>,
    /// How many: nothing is locked while there are none.
    hanging: AtomicUsize,
    abandoned: AtomicU64,
    refused: AtomicU64,
}

impl Blocklist {
    /// Whether this process may be called; counted where not.
    pub fn allows(&self, proc: &Proc, pid: Pid, owner: Option<Owner>) -> bool {
        if self.hanging.load(Ordering::Acquire) == 0 {
            return true;
        }
        let allows = self.has_room_for(proc, pid, owner);
        if !allows {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        allows
    }

    fn has_room_for(&self, proc: &Proc, pid: Pid, owner: Option<Owner>) -> bool {
        let owners: Vec<Owner> = {
            let entries = self.lock();
            if entries.iter().any(|it| it.pid == pid) {
                return false;
            }
            entries.iter().map(|it| it.owner).collect()
        };
        let is_full = |owner| owners.iter().filter(|&&it| it == owner).count() >= PER_OWNER;
        // No owner is looked up while none is full.
        owners.len() < TOTAL
            && (!owners.iter().any(|&it| is_full(it))
                || !is_full(owner.unwrap_or_else(|| owner_of(proc, pid))))
    }

    /// Whether a thread hangs at this very process.
    pub fn has(&self, pid: Pid) -> bool {
        self.hanging.load(Ordering::Acquire) > 0 && self.lock().iter().any(|it| it.pid == pid)
    }

    /// The thread of `heartbeat` hangs at this process.
    pub(crate) fn add(
        &self,
        proc: &Proc,
        heartbeat: &Arc<Heartbeat>,
        pid: Pid,
        owner: Option<Owner>,
    ) {
        let owner = owner.unwrap_or_else(|| owner_of(proc, pid));
        tracing::warn!(
            %pid,
            ?owner,
            "a thread waits for this process's memory and is abandoned; another one has taken over"
        );
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.lock();
        // It may have come back before this was written down, and does not come here again.
        if !heartbeat.is_abandoned() {
            return;
        }
        entries.push(Entry {
            heartbeat: Arc::clone(heartbeat),
            pid,
            owner,
        });
        self.hanging.store(entries.len(), Ordering::Release);
    }

    /// The thread of `heartbeat` is back.
    pub(crate) fn remove(&self, heartbeat: &Arc<Heartbeat>) {
        let mut entries = self.lock();
        entries.retain(|it| !Arc::ptr_eq(&it.heartbeat, heartbeat));
        self.hanging.store(entries.len(), Ordering::Release);
    }

    /// Threads that hang.
    pub fn hanging(&self) -> u64 {
        self.hanging.load(Ordering::Relaxed) as u64
    }

    /// Threads that were ever abandoned.
    pub fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Calls that were not made because of this.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By its status and its map of users alone: its stat and its namespaces wait for a thread in the middle of an execve
/// (exec_update_lock), so the start time and the owner of its user namespace are not asked for.
fn owner_of(proc: &Proc, pid: Pid) -> Owner {
    match proc.has_our_users(pid) {
        Ok(Some(true)) => {}
        Ok(Some(false)) => return Owner::Namespaces,
        Ok(None) | Err(_) => return Owner::Unknown,
    }
    let status = proc.status(pid).ok().flatten();
    status.map_or(Owner::Unknown, |it| Owner::User(it.uid))
}
