// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursard says of the caller's account.

use std::path::Path;
use std::time::Duration;

use bursar_model::{AccountStatus, GateMode, Resource};
use bursar_protocol::{Client, Operation, Reply};

use crate::caller::{Caller, heard};
use crate::failure::Failure;

/// A daemon that is silent for longer is away: meanwhile nobody forwards signals.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What the kernel half refuses by itself.
pub(super) fn gate_mode(caller: &Caller) -> Result<GateMode, Failure> {
    match ask(&caller.socket, Operation::Status { who: None })? {
        Reply::Status(status) => Ok(status.kernel_half.gate.mode),
        _ => Err(Failure::off_topic()),
    }
}

/// An account's standing, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Held and reserved.
    pub(super) taken: u64,
    /// Up to where is granted; the limit, where there is no barrier.
    pub(super) barrier: u64,
    /// From where on is killed.
    pub(super) limit: u64,
}

impl Standing {
    /// The caller's; `None` while nothing limits him.
    ///
    /// A connection for each look: one user may have sixteen at a time, and rlimit gates live long.
    pub(super) fn read(socket: &Path) -> Result<Option<Self>, Failure> {
        match ask(socket, Operation::Quota)? {
            Reply::Quota(quota) => Ok(quota.account.as_ref().and_then(Self::of)),
            _ => Err(Failure::off_topic()),
        }
    }

    fn of(account: &AccountStatus) -> Option<Self> {
        if account.mode.is_observed() {
            return None;
        }
        let row = account.resources.get(&Resource::Memory)?;
        let barrier = row.barrier.or(row.limit)?;
        Some(Self {
            taken: row.held.saturating_add(account.reserved).get(),
            barrier: barrier.get(),
            limit: row.limit.unwrap_or(barrier).get(),
        })
    }
}

fn ask(socket: &Path, ask: Operation) -> Result<Reply, Failure> {
    heard(Client::connect_within(socket, TIMEOUT)?.ask(ask)?)
}
