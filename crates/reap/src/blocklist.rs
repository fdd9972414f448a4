// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes at which threads of ours were lost: nobody else asks for their memory until those are back.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bursar_host::Proc;
use bursar_model::{Pid, Uid};

use crate::heartbeat::{Heartbeat, Lost};

/// Threads that one owner may keep away: two reapers and two others. Beyond, nobody asks for the memory of any process
/// of its.
const PER_OWNER: usize = 4;
/// That all together may who are known beforehand, and as many those who are not. Beyond, nobody asks for the memory
/// of any of these.
const OF_ALL: usize = 64;

/// Who pays for a process, where whoever asks knows: a thread that is lost counts against nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payer {
    /// This user.
    User(Uid),
    /// This account, by its number in the kernel half.
    Account(u32),
}

/// Whom a thread that is away counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Known(Payer),
    /// By a look at the process, when the thread was lost already.
    User(Uid),
    /// All in user namespaces: whoever has subordinate users there has thousands.
    Namespaces,
    /// Its process is gone.
    Nobody,
}

#[derive(Debug)]
struct Entry {
    heartbeat: Arc<Heartbeat>,
    pid: Pid,
    owner: Owner,
}

/// Shared by all who ask for processes' memory.
#[derive(Debug, Default)]
pub struct Blocklist {
    entries: Mutex<Vec<Entry>>,
    /// How many: nothing is locked while there are none.
    away: AtomicUsize,
    ever: AtomicU64,
    left_alone: AtomicU64,
}

/// A thread that asks for processes' memory.
#[derive(Debug, Default)]
pub struct Guard {
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) blocklist: Arc<Blocklist>,
}

impl Blocklist {
    /// Whether somebody may ask for the memory of this process, or thread of one. Counted where not.
    pub fn may_ask(&self, proc: &Proc, pid: Pid, payer: Option<Payer>) -> bool {
        if self.away.load(Ordering::Acquire) == 0 {
            return true;
        }
        let may = self.lets(proc, pid, payer);
        if !may {
            self.left_alone.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    fn lets(&self, proc: &Proc, pid: Pid, payer: Option<Payer>) -> bool {
        // Of whom nobody knows whose he is, many count as one, or as nobody: that costs no one who is known.
        let alike: Vec<Owner> = {
            let entries = self.lock();
            if entries.iter().any(|it| it.pid == pid) {
                return false;
            }
            let owners = entries.iter().map(|it| it.owner);
            owners
                .filter(|it| it.is_known() == payer.is_some())
                .collect()
        };
        let is_full = |owner| alike.iter().filter(|&&it| it == owner).count() >= PER_OWNER;
        // Nobody is looked up while no owner has as many as it may.
        alike.len() < OF_ALL
            && (!alike.iter().any(|&it| is_full(it))
                || !is_full(payer.map_or_else(|| owner_of(proc, pid), Owner::Known)))
    }

    /// Whether a thread of ours waits at this very process.
    pub(crate) fn has_one_at(&self, pid: Pid) -> bool {
        self.away() > 0 && self.lock().iter().any(|it| it.pid == pid)
    }

    /// The thread at `heartbeat` was lost at this process.
    pub fn block(&self, proc: &Proc, heartbeat: &Arc<Heartbeat>, pid: Pid) {
        let known = heartbeat.payer().map(Owner::Known);
        let owner = known.unwrap_or_else(|| owner_of(proc, pid));
        tracing::warn!(%pid, ?owner, "a thread of ours waits for this process's memory; another one has taken over");
        self.ever.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.lock();
        // Back before this was written down: then it does not come here again.
        if !heartbeat.is_lost() {
            return;
        }
        entries.push(Entry {
            heartbeat: Arc::clone(heartbeat),
            pid,
            owner,
        });
        self.away.store(entries.len(), Ordering::Release);
    }

    /// It is back.
    pub fn back(&self, heartbeat: &Arc<Heartbeat>) {
        let mut entries = self.lock();
        entries.retain(|it| !Arc::ptr_eq(&it.heartbeat, heartbeat));
        self.away.store(entries.len(), Ordering::Release);
    }

    /// Threads that are away.
    pub fn away(&self) -> u64 {
        self.away.load(Ordering::Relaxed) as u64
    }

    /// Threads that were lost, back or not.
    pub fn ever(&self) -> u64 {
        self.ever.load(Ordering::Relaxed)
    }

    /// How often nobody asked because of this.
    pub fn left_alone(&self) -> u64 {
        self.left_alone.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    const fn is_known(self) -> bool {
        matches!(self, Self::Known(_))
    }
}

impl Payer {
    const ACCOUNT: u64 = 2 << 32;
    const USER: u64 = 1 << 32;

    /// As a number that is not 0.
    pub(crate) fn to_number(self) -> u64 {
        match self {
            Self::User(uid) => Self::USER | u64::from(uid.get()),
            Self::Account(slot) => Self::ACCOUNT | u64::from(slot),
        }
    }

    /// `None` for 0.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        let low = u32::try_from(number & u64::from(u32::MAX)).ok()?;
        match number & !u64::from(u32::MAX) {
            Self::USER => Some(Self::User(Uid::new(low))),
            Self::ACCOUNT => Some(Self::Account(low)),
            _ => None,
        }
    }
}

impl Guard {
    /// One that nobody has met yet.
    pub fn new(blocklist: Arc<Blocklist>) -> Self {
        Self {
            heartbeat: Arc::default(),
            blocklist,
        }
    }

    /// Where a [`crate::Monitor`] sees it.
    pub const fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// Does something that asks for the memory of `pid`; `None` where nobody is to.
    ///
    /// # Errors
    /// As [`Heartbeat::ask`].
    pub fn ask<T>(
        &self,
        proc: &Proc,
        pid: Pid,
        call: impl FnOnce() -> T,
    ) -> Result<Option<T>, Lost> {
        self.ask_of(proc, pid, None, call)
    }

    /// The same where it is known who pays for the process.
    ///
    /// # Errors
    /// As [`Heartbeat::ask`].
    pub fn ask_of<T>(
        &self,
        proc: &Proc,
        pid: Pid,
        payer: Option<Payer>,
        call: impl FnOnce() -> T,
    ) -> Result<Option<T>, Lost> {
        if !self.blocklist.may_ask(proc, pid, payer) {
            return Ok(None);
        }
        self.heartbeat.say(payer);
        self.heartbeat.ask(pid, call).map(Some)
    }

    /// It was lost, and is back: the last thing its thread does.
    pub fn report_back(&self) {
        self.blocklist.back(&self.heartbeat);
    }
}

/// By its status and its map of users alone: its stat and its namespaces wait for one in the middle of an execve
/// (exec_update_lock), so they are not asked when it began, nor who owns the user namespace that it is in.
fn owner_of(proc: &Proc, pid: Pid) -> Owner {
    match proc.has_our_users(pid) {
        Ok(Some(true)) => {}
        Ok(Some(false)) => return Owner::Namespaces,
        Ok(None) | Err(_) => return Owner::Nobody,
    }
    let status = proc.status(pid).ok().flatten();
    status.map_or(Owner::Nobody, |it| Owner::User(it.uid))
}
