// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A governor holds the accounts and pulls the trigger: the kernel half, or one of S1's two
//! user-space triggers where there is none. The rest of the daemon does not care which.

mod bpf;
mod poll;
mod scan;
mod trace;

use std::os::fd::BorrowedFd;

use anyhow::Result;
use bursar_model::{AccountId, Bounds, Bytes, KernelHalfStatus};
use bursar_policy::Plan;

pub(crate) use bpf::BpfGovernor;
pub(crate) use poll::PollGovernor;
pub(crate) use trace::TraceGovernor;

use crate::fact::Fact;

/// An account at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) id: AccountId,
    pub(crate) is_default: bool,
    pub(crate) held: Bytes,
    pub(crate) dying: Bytes,
    pub(crate) maxheld: Bytes,
    pub(crate) processes: u32,
    pub(crate) bounds: Bounds,
    pub(crate) failcnt: u64,
    pub(crate) kills: u64,
    pub(crate) notices: u64,
}

pub(crate) trait Governor {
    /// Makes the accounts what the plan says. Bounds hold when this returns.
    fn apply(&mut self, plan: &Plan) -> Result<()>;

    /// Readable when [`Self::drain`] has something to do.
    fn wake(&self) -> BorrowedFd<'_>;

    /// Does what is due and tells what happened.
    fn drain(&mut self) -> Result<Vec<Fact>>;

    /// All accounts.
    fn readings(&self) -> Vec<Reading>;

    /// What an account holds now, exactly, opened for the question if need be.
    fn measure(&mut self, id: AccountId) -> Result<Bytes>;

    /// What decides here, and its bad days.
    fn status(&self) -> KernelHalfStatus;

    /// Most by which `held` may be off for an account near its limit.
    fn error_bound(&self) -> Bytes;

    /// The daemon ends: what stays behind?
    fn leave(&mut self, release: bool) -> Result<()>;
}
