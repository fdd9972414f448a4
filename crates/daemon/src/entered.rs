// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which account a process has entered, to be read by any thread.

use std::os::fd::AsFd;

use bursar_host::Pidfd;
use bursar_kernel::{Membership, MembershipReader};
use bursar_model::{AccountId, Pid};

use crate::backend::{Backend, KernelFeatures};
use crate::payers::Payers;

/// As of always; no process has entered anything where none can.
#[derive(Debug)]
pub(crate) struct Entered(Option<MembershipReader>);

impl Entered {
    pub(crate) fn of(backend: &dyn Backend) -> anyhow::Result<Self> {
        let membership = backend.kernel().and_then(KernelFeatures::membership);
        let membership = membership.map(Membership::for_reading);
        Ok(Self(membership.transpose()?))
    }

    /// The same; no process is looked up while none has entered anything.
    pub(crate) fn if_any(backend: &dyn Backend) -> anyhow::Result<Self> {
        let membership = backend.kernel().and_then(KernelFeatures::membership_if_any);
        let membership = membership.map(Membership::for_reading);
        Ok(Self(membership.transpose()?))
    }

    /// Whether this process has entered that account.
    pub(crate) fn is_in(&self, pid: Pid, account: AccountId) -> bool {
        self.entered_by(pid) == Some(account)
    }

    /// The account that this process has entered, if there still is one.
    pub(crate) fn account_of(&self, pid: Pid, payers: &Payers) -> Option<AccountId> {
        self.entered_by(pid).filter(|&it| payers.has(it))
    }

    fn entered_by(&self, pid: Pid) -> Option<AccountId> {
        let membership = self.0.as_ref()?;
        let pidfd = Pidfd::open(pid).ok().flatten()?;
        membership.of(pidfd.as_fd()).ok().flatten()
    }
}
