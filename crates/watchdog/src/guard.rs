// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a thread makes calls that the process called can hold up.

use std::sync::Arc;

use bursar_host::Proc;
use bursar_model::Pid;

use crate::blocklist::Blocklist;
use crate::heartbeat::Heartbeat;
use crate::owner::Owner;

/// The thread was abandoned in a call: another one has its place and its work. The thread is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned;

/// One thread's.
#[derive(Debug, Default)]
pub struct Guard {
    heartbeat: Arc<Heartbeat>,
    blocklist: Arc<Blocklist>,
}

impl Guard {
    /// For a thread that nobody monitors yet.
    pub fn new(blocklist: Arc<Blocklist>) -> Self {
        Self {
            heartbeat: Arc::default(),
            blocklist,
        }
    }

    pub(crate) const fn heartbeat(&self) -> &Arc<Heartbeat> {
        &self.heartbeat
    }

    /// Which processes are not called.
    pub const fn blocklist(&self) -> &Arc<Blocklist> {
        &self.blocklist
    }

    /// Makes a call that waits for locks of `pid`; `None` where that process is blocked. `owner` pays for it, where
    /// the caller knows.
    ///
    /// # Errors
    /// [`Abandoned`].
    pub fn call<T>(
        &self,
        proc: &Proc,
        pid: Pid,
        owner: Option<Owner>,
        call: impl FnOnce() -> T,
    ) -> Result<Option<T>, Abandoned> {
        // Told before: meanwhile it may go into a user namespace, and its user would not be found any more.
        let is_known = owner.is_some();
        let owner = owner.or_else(|| self.blocklist.owner_of(proc, pid));
        if !self.blocklist.allows(proc, pid, owner) {
            return Ok(None);
        }
        self.heartbeat.begin(pid, owner, !is_known);
        let answer = call();
        if self.heartbeat.end() {
            self.blocklist.remove(&self.heartbeat);
            return Err(Abandoned);
        }
        Ok(Some(answer))
    }
}
