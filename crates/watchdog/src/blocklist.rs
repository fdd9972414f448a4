// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes at which threads of ours hang: nobody else calls them until those threads are back.
//!
//! One rule bounds what that costs: an owner may hold up four threads at once, all together 64. Beyond, no
//! process of that owner, or of anybody, is called. A thread that others wait for counts until ten seconds after it has come
//! back, or its owner would hold up the next one at once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bursar_host::Proc;
use bursar_model::Pid;

use crate::heartbeat::Heartbeat;
use crate::owner::Owner;

/// Threads that one owner may hold up.
const PER_OWNER: usize = 4;
/// Threads that all owners together may.
const TOTAL: usize = 64;
/// So long a thread counts that has come back.
const REST: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Entry {
    heartbeat: Arc<Heartbeat>,
    pid: Pid,
    owner: Owner,
    /// Since when the thread has been back.
    back: Option<Instant>,
}

impl Entry {
    const fn hangs(&self) -> bool {
        self.back.is_none()
    }
}

/// Shared by all threads that call processes.
#[derive(Debug)]
pub struct Blocklist {
    rest: Duration,
    entries: Mutex<Vec<Entry>>,
    /// How many: nothing is locked while there are none.
    known: AtomicUsize,
    abandoned: AtomicU64,
    refused: AtomicU64,
}

impl Default for Blocklist {
    fn default() -> Self {
        Self::resting(REST)
    }
}

impl Blocklist {
    /// A thread that has come back counts for so long.
    pub fn resting(rest: Duration) -> Self {
        Self {
            rest,
            entries: Mutex::default(),
            known: AtomicUsize::new(0),
            abandoned: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether this process may be called; counted where not.
    pub fn allows(&self, proc: &Proc, pid: Pid, owner: Option<Owner>) -> bool {
        if self.known.load(Ordering::Acquire) == 0 {
            return true;
        }
        let allows = self.has_room_for(proc, pid, owner);
        if !allows {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        allows
    }

    /// Who pays for a process, if anything hangs at all: else it need not be known.
    pub(crate) fn owner_of(&self, proc: &Proc, pid: Pid) -> Option<Owner> {
        (self.known.load(Ordering::Acquire) > 0).then(|| owner_of(proc, pid))
    }

    fn has_room_for(&self, proc: &Proc, pid: Pid, owner: Option<Owner>) -> bool {
        let (owners, hanging): (Vec<Owner>, usize) = {
            let mut entries = self.lock();
            entries.retain(|it| it.back.is_none_or(|back| back.elapsed() < self.rest));
            self.known.store(entries.len(), Ordering::Release);
            if entries.iter().any(|it| it.hangs() && it.pid == pid) {
                return false;
            }
            let hanging = entries.iter().filter(|it| it.hangs()).count();
            (entries.iter().map(|it| it.owner).collect(), hanging)
        };
        let is_full = |owner| owners.iter().filter(|&&it| it == owner).count() >= PER_OWNER;
        // No owner is looked up while none is full.
        hanging < TOTAL
            && (!owners.iter().any(|&it| is_full(it))
                || !is_full(owner.unwrap_or_else(|| owner_of(proc, pid))))
    }

    /// Whether a thread hangs at this very process.
    pub fn has(&self, pid: Pid) -> bool {
        self.known.load(Ordering::Acquire) > 0
            && self.lock().iter().any(|it| it.hangs() && it.pid == pid)
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
            back: None,
        });
        self.known.store(entries.len(), Ordering::Release);
    }

    /// The thread of `heartbeat` is back.
    pub(crate) fn remove(&self, heartbeat: &Arc<Heartbeat>) {
        let mut entries = self.lock();
        let is_its = |it: &Entry| Arc::ptr_eq(&it.heartbeat, heartbeat);
        if !heartbeat.is_awaited() {
            entries.retain(|it| !is_its(it));
        } else if let Some(entry) = entries.iter_mut().find(|it| is_its(it)) {
            entry.back = Some(Instant::now());
        }
        self.known.store(entries.len(), Ordering::Release);
    }

    /// Threads that hang.
    pub fn hanging(&self) -> u64 {
        self.lock().iter().filter(|it| it.hangs()).count() as u64
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
