// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An enforcement backend keeps the accounts and acts at their limits: the kernel half, or one of S1's two
//! user-space triggers where there is none. The rest of the daemon does not care which.

mod bpf;
mod ledger;
mod poll;
mod projection;
mod pss_scanner;
mod ring_reader;
mod scan;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Result, bail};
use bursar_kernel::{DirtyPages, Enforcement, Membership, ResourceIterator, RowReading};
use bursar_model::{AccountId, Bounds, Bytes, Correction, KernelHalfStatus, Resource, Uid};
use bursar_policy::Plan;

pub(crate) use bpf::BpfBackend;
pub(crate) use ledger::{Ledger, Sum};
pub(crate) use poll::PollBackend;
pub(crate) use ring_reader::Powers;
pub(crate) use trace::TraceBackend;

use crate::fact::Fact;
use crate::reservations::Holdings;

const NO_KERNEL_HALF: &str = "there is no kernel half";

/// An account at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) id: AccountId,
    pub(crate) is_default: bool,
    /// Pages that several of its processes map once, where that is known.
    pub(crate) held: Bytes,
    /// What was taken off for that.
    pub(crate) correction: Option<Correction>,
    pub(crate) dying: Bytes,
    /// Of held: of processes already killed that give nothing back.
    pub(crate) unkillable: Bytes,
    /// Where the gate measures it.
    pub(crate) committed: Option<Bytes>,
    /// Of held: in files beyond what processes map; and of those, what no kill would free.
    pub(crate) unmapped: Bytes,
    pub(crate) stuck: Bytes,
    pub(crate) reserved: Bytes,
    pub(crate) maxheld: Bytes,
    pub(crate) processes: u32,
    pub(crate) bounds: Bounds,
    pub(crate) failcnt: u64,
    pub(crate) kills: u64,
    pub(crate) notices: u64,
}

impl Reading {
    /// As the kernel half has it, which tells of the page that reaches it and of none after that.
    pub(crate) fn has_reached_notice(&self) -> bool {
        let notice = self.bounds.notice();
        notice.is_some_and(|notice| self.held >= notice)
    }

    pub(crate) fn is_over_notice(&self) -> bool {
        let notice = self.bounds.notice();
        notice.is_some_and(|notice| self.held > notice)
    }

    /// Over its limit, and not for its processes.
    pub(crate) fn is_stuck(&self) -> bool {
        self.bounds
            .limit()
            .is_some_and(|limit| self.held > limit && self.held.saturating_sub(self.stuck) <= limit)
    }
}

pub(crate) trait Backend: Holdings {
    /// Makes the accounts what the plan says. Bounds hold when this returns.
    fn apply(&mut self, plan: &Plan) -> Result<()>;

    /// Readable when [`Self::drain`] has something to do.
    fn wake(&self) -> BorrowedFd<'_>;

    /// Does what is due and tells what happened.
    fn drain(&mut self) -> Result<Vec<Fact>>;

    /// All accounts.
    fn readings(&self) -> Vec<Reading>;

    /// What accounts would hold now, exactly, if these users paid into them and nobody else, with what
    /// theirs hold who have entered an account that is `closing`. Whatever has to be opened for the question
    /// is closed again.
    fn measure(
        &mut self,
        projections: &BTreeMap<AccountId, BTreeSet<Uid>>,
        closing: &BTreeSet<AccountId>,
    ) -> Result<BTreeMap<AccountId, Bytes>>;

    /// The users whose processes have entered these accounts.
    fn entrants(&mut self, _accounts: &BTreeSet<AccountId>) -> Result<BTreeSet<Uid>> {
        Ok(BTreeSet::new())
    }

    /// Which of these accounts processes of this user have entered, as of their last event.
    fn entered_by(
        &self,
        _uid: Uid,
        _accounts: &BTreeSet<AccountId>,
    ) -> Result<BTreeSet<AccountId>> {
        Ok(BTreeSet::new())
    }

    /// Counts anew, now; what follows from it is for [`Self::drain`].
    fn recount(&mut self) -> Result<()> {
        Ok(())
    }

    /// Who has entered which account; `None` where nobody can.
    fn membership(&self) -> Option<&Membership> {
        None
    }

    /// The same; `None` too while nobody has entered anything.
    fn membership_if_any(&self) -> Option<&Membership> {
        None
    }

    /// Dirty page cache by payer; counted from the first time somebody asks.
    fn dirty_pages(&mut self) -> Result<&DirtyPages> {
        anyhow::bail!("dirty pages are counted by the kernel half, and there is none here")
    }

    /// The same, where somebody has asked before.
    fn dirty_pages_begun(&mut self) -> Result<Option<&DirtyPages>> {
        Ok(None)
    }

    /// A second way to the kernel half's ledger; `None` where there is none.
    fn ledger(&self) -> Result<Option<Ledger>> {
        Ok(None)
    }

    /// What decides here, and its bad days.
    fn status(&self) -> KernelHalfStatus;

    /// Most by which `held` may be off for an account near its limit.
    fn error_bound(&self) -> Bytes;

    /// What iterates over all tasks and open files, for the thread that does.
    fn resource_iterator(&mut self) -> Result<Arc<ResourceIterator>> {
        bail!("{NO_KERNEL_HALF}")
    }

    /// The rows of an account that are charged as they are used.
    fn charged(&self, _id: AccountId) -> BTreeMap<Resource, RowReading> {
        BTreeMap::new()
    }

    /// What becomes of a limit on a row.
    fn enforcement(&self, _resource: Resource) -> Enforcement {
        Enforcement::None(NO_KERNEL_HALF.to_owned())
    }

    /// Charges what slipped through, where anything can.
    fn catch_up(&self) -> Result<()> {
        Ok(())
    }

    /// Charges that found no room in the kernel half.
    fn unrecorded(&self) -> u64 {
        0
    }

    /// The daemon ends: what stays behind?
    fn leave(&mut self, release: bool) -> Result<()>;
}
