// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An enforcement backend keeps the accounts and acts at their limits: the kernel half, or one of S1's two
//! user-space triggers where there is none. The rest of the daemon does not care which.

mod bpf;
mod kernel_features;
mod ledger;
mod poll;
mod projection;
mod pss_scanner;
mod reading;
mod ring_reader;
mod scan;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use anyhow::Result;
use bursar_config::Program;
use bursar_model::{AccountId, Bytes, ExemptCgroup, KernelHalfStatus, Uid};
use bursar_policy::Plan;

pub(crate) use bpf::BpfBackend;
pub(crate) use kernel_features::{
    KernelFeatures, NO_KERNEL_HALF, OpenAccounts, enforcement, open_accounts,
};
pub(crate) use ledger::{Ledger, Sum};
pub(crate) use poll::PollBackend;
pub(crate) use reading::Reading;
pub(crate) use trace::TraceBackend;

use crate::fact::{Fact, Victim};
use crate::reservations::Holdings;

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

    /// Processes of these programs, and of no others, go after others from now on.
    fn spare(&mut self, programs: &[Program]) -> Result<()>;

    /// Processes in these control groups are nobody's from now on. A scan looks at each process's group itself.
    fn exempt(&mut self, _groups: &[ExemptCgroup]) -> Result<()> {
        Ok(())
    }

    /// Subordinate uids that processes have outside of user namespaces: all, or some of many.
    fn subuids_met(&self) -> Result<BTreeSet<Uid>>;

    /// Counts anew, now; what follows from it is for [`Self::drain`].
    fn recount(&mut self) -> Result<()>;

    /// A kill that was left to the daemon has failed: nothing was sent. A kernel half asks again by itself.
    fn kill_failed(&mut self, _victim: &Victim) {}

    /// What decides here, and its bad days.
    fn status(&self) -> KernelHalfStatus;

    /// Most by which `held` may be off for an account near its limit.
    fn error_bound(&self) -> Bytes;

    /// What only a kernel half can do; `None` where there is none.
    fn kernel(&self) -> Option<&KernelFeatures> {
        None
    }

    /// The kernel half, to be changed.
    fn kernel_mut(&mut self) -> Option<&mut KernelFeatures> {
        None
    }

    /// The daemon ends: what stays behind? Without a kernel half nothing. Returns what happened by then, and whether all of
    /// it went that should.
    fn leave(&mut self, _release: bool) -> (Vec<Fact>, Result<()>) {
        (Vec::new(), Ok(()))
    }
}
