// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts as the daemon has them: the limits, who pays into what, and the backend that enforces it.

mod arrivals;
mod over_limit;
mod preview;
mod subuid_users;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bursar_config::{Limits, Program};
use bursar_host::{ExemptCgroups, MemoryFiles, Pidfd, Proc, Status};
use bursar_model::{AccountId, Bytes, Uid};
use bursar_policy::Plan;
use bursar_watchdog::TimedQuery;

use crate::backend::{Backend, KernelFeatures, Reading};
use crate::background::Recipients;
use crate::control::Requester;
use crate::entered::Entered;
use crate::limit_table::LimitTable;
use crate::payers::{Coverage, Payers, present};
use crate::spared_programs::SparedFiles;

pub(crate) use arrivals::Arrival;
use arrivals::Arrivals;
pub(crate) use over_limit::OverLimit;
use subuid_users::SubuidUsers;

/// Files named when they are what is over a limit, and how long they are looked for meanwhile.
const FILES_NAMED: usize = 8;
const FILES_TIMEOUT: Duration = Duration::from_millis(100);

pub(crate) struct Accounts {
    pub(crate) table: LimitTable,
    pub(crate) backend: Box<dyn Backend>,
    coverage: Coverage,
    /// Who pays into what, as of the last change of limits.
    pub(crate) payers: Payers,
    proc: Proc,
    query: TimedQuery,
    arrivals: Arrivals,
    subuid_users: SubuidUsers,
    spared: SparedFiles,
    exempt: Arc<ExemptCgroups>,
    /// The plan is only observed yet.
    is_put_off: bool,
}

impl Accounts {
    pub(crate) fn new(
        table: LimitTable,
        backend: Box<dyn Backend>,
        coverage: Coverage,
        query: TimedQuery,
        exempt: Arc<ExemptCgroups>,
    ) -> Result<Self> {
        Ok(Self {
            payers: Payers::new(table.plan(), coverage.clone()).without(&exempt),
            exempt,
            table,
            backend,
            coverage,
            proc: Proc::host()?,
            query,
            arrivals: Arrivals::new()?,
            subuid_users: SubuidUsers::new()?,
            spared: SparedFiles::default(),
            is_put_off: false,
        })
    }

    /// Processes of these programs, and of no others, go after others from now on.
    pub(crate) fn spare(&mut self, programs: &[Program]) -> Result<()> {
        self.spared.replace(programs);
        self.backend.spare(programs)
    }

    /// Which processes of this account do.
    pub(crate) const fn spared(&self) -> &SparedFiles {
        &self.spared
    }

    /// The account that this user pays into.
    pub(crate) fn of(&self, uid: Uid) -> Option<AccountId> {
        self.payers.of(uid).map(|(id, _)| id)
    }

    /// Whether `default` applies to this user.
    pub(crate) fn covers(&self, uid: Uid) -> bool {
        self.coverage.covers(uid)
    }

    /// The users to which `default` applies.
    pub(crate) const fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Where ordinary users begin.
    pub(crate) const fn uid_min(&self) -> Uid {
        self.coverage.uid_min
    }

    /// Whether the bounds of an account on memory are only observed.
    pub(crate) fn is_observed(&self, id: AccountId) -> bool {
        let plan = self.table.plan();
        let own = plan.accounts.get(&id).map(|it| it.bounds);
        own.or(plan.default).is_some_and(|it| it.is_observed())
    }

    /// What an account is called in events and answers.
    pub(crate) fn name_of(&mut self, id: AccountId) -> String {
        self.table.name_of(id).0
    }

    /// How an account stands; `None` where there is no such account yet.
    pub(crate) fn reading_of(&self, id: AccountId) -> Option<Reading> {
        let readings = self.backend.readings();
        readings.into_iter().find(|it| it.id == id)
    }

    /// Which account a process has entered.
    pub(crate) fn entered(&self) -> Result<Entered> {
        Entered::of(&*self.backend)
    }

    /// Makes the accounts what the plan says; of groups with more members than there is room for those members' who have
    /// processes.
    pub(crate) fn apply(&mut self, plan: &Plan) -> Result<()> {
        let kernel = self.backend.kernel();
        let room = kernel.map_or(usize::MAX, |it| it.room_for_accounts());
        let (part, opened) = self.arrivals.opened_of(plan, room, &self.proc)?;
        self.backend.apply(&part)?;
        self.subuid_users.look_among(&part.subordinates)?;
        self.arrivals.note_opened(opened)
    }

    /// Makes them what the plan of the limits says, but that it is only observed until [`Self::enforce`] or other limits.
    pub(crate) fn observe(&mut self) -> Result<()> {
        self.is_put_off = true;
        let plan = self.in_force();
        self.apply(&plan)
    }

    pub(crate) fn enforce(&mut self) -> Result<()> {
        let plan = self.table.plan().clone();
        self.apply(&plan)?;
        self.is_put_off = false;
        Ok(())
    }

    /// The plan of the limits, as far as it is in force.
    fn in_force(&self) -> Plan {
        let plan = self.table.plan().clone();
        match self.is_put_off {
            true => plan.observed(),
            false => plan,
        }
    }

    /// Readable when [`Self::look_for_arrivals`] has something to do.
    pub(crate) fn arrivals(&self) -> BorrowedFd<'_> {
        self.arrivals.as_fd()
    }

    /// Opens accounts for members of large groups who have processes now, if there are such.
    pub(crate) fn look_for_arrivals(&mut self) -> Result<Arrival> {
        let arrival = self.arrivals.look(self.table.plan(), &self.proc)?;
        if arrival == Arrival::Somebody {
            let plan = self.in_force();
            if let Err(error) = self.apply(&plan) {
                self.arrivals.put_off()?;
                return Err(error);
            }
        }
        Ok(arrival)
    }

    /// The accounts as they would be with other limits. Where these leave less to everybody, users who are here are known
    /// before: a uid that was given to another one counts for that one until then.
    pub(crate) fn plan_with(&mut self, limits: &Limits) -> Result<Plan> {
        let plan = self.table.plan_with(limits);
        self.with_users_known(limits, plan)
    }

    /// The same of the limits that are about to be put in force for the first time.
    pub(crate) fn plan_first(&mut self) -> Result<()> {
        let subordinates = &self.table.plan().subordinates;
        if subordinates.is_empty() || self.table.plan().default.is_none() {
            return Ok(());
        }
        self.ask_for_users()?;
        if !self.table.users_among_subordinates().is_empty() {
            let limits = self.table.limits().clone();
            let plan = self.table.plan_with(&limits);
            self.take(limits, plan);
        }
        Ok(())
    }

    /// The same of the limits as they are written.
    pub(crate) fn read_again(&mut self) -> Result<(Limits, Plan)> {
        let (limits, plan) = self.table.read_again()?;
        let plan = self.with_users_known(&limits, plan)?;
        Ok((limits, plan))
    }

    fn with_users_known(&mut self, limits: &Limits, plan: Plan) -> Result<Plan> {
        if plan.subordinates.is_empty() || !plan.lowers_default(&self.in_force()) {
            return Ok(plan);
        }
        self.ask_for_users()?;
        Ok(match self.table.users_among_subordinates().is_empty() {
            true => plan,
            false => self.table.plan_with(limits),
        })
    }

    fn ask_for_users(&mut self) -> Result<()> {
        for uid in present(&self.proc, &mut self.query)? {
            if self.table.is_in_doubt(uid) {
                self.table.ask_for_user(uid);
            }
        }
        Ok(())
    }

    /// Readable when [`Self::have_subuids_users`] has something to do.
    pub(crate) fn subuid_users(&self) -> BorrowedFd<'_> {
        self.subuid_users.as_fd()
    }

    /// Whether somebody who is here turns out to be a user, though another one was given the uid as a subordinate one.
    pub(crate) fn have_subuids_users(&mut self) -> Result<bool> {
        let met = self.backend.subuids_met()?;
        self.subuid_users.look(&met, &mut self.table)
    }

    /// Accounts that could not be opened for them are tried again at the next look.
    pub(crate) fn retry_arrivals(&mut self) {
        self.arrivals.retry();
    }

    /// Puts other limits in force; those before hold again when that fails half-way.
    pub(crate) fn adopt(&mut self, limits: Limits, plan: Plan) -> Result<()> {
        if let Err(error) = self.apply(&plan) {
            let before = self.in_force();
            return Err(match self.apply(&before) {
                Ok(()) => error,
                Err(other) => error.context(format!(
                    "the limits before could not be put back in force either, restart bursard: {other:#}"
                )),
            });
        }
        self.is_put_off = false;
        self.take(limits, plan);
        Ok(())
    }

    fn take(&mut self, limits: Limits, plan: Plan) {
        self.table.adopt(limits, plan);
        let payers = Payers::new(self.table.plan(), self.coverage.clone());
        self.payers = payers.without(&self.exempt);
    }

    /// Forgets numbers that nobody has had for long and that have no process and no file: users who are gone for good are
    /// not kept for ever.
    pub(crate) fn forget_absent(&mut self) {
        let mut absent = self.table.long_absent();
        if absent.is_empty() {
            return;
        }
        let present = match present(&self.proc, &mut self.query) {
            Ok(present) => present,
            Err(error) => {
                tracing::debug!(%error, "users who are gone are kept for now");
                return;
            }
        };
        let readings = self.backend.readings();
        let holds = |uid: Uid| {
            let own = readings.iter().find(|it| it.id == AccountId::of(uid));
            own.is_some_and(|it| it.held != Bytes::ZERO)
        };
        absent.retain(|uid| !present.contains(uid) && !holds(*uid));
        self.table.forget_absent(&absent);
    }

    /// The files in memory of an account's users.
    pub(crate) fn files_of(&mut self, account: AccountId) -> MemoryFiles {
        let users: BTreeSet<Uid> = self.payers.payers_of(account).into_iter().collect();
        let subordinates = &self.table.plan().subordinates;
        let are_theirs = |uid: Uid| {
            let subuid_payer = subordinates.payer_of(uid);
            users.contains(&uid) || subuid_payer.is_some_and(|it| users.contains(&it))
        };
        let (proc, query) = (&self.proc, &mut self.query);
        MemoryFiles::of(proc, &are_theirs, FILES_NAMED, FILES_TIMEOUT, query)
            .inspect_err(|error| tracing::warn!(%error, "files in memory could not be looked for"))
            .unwrap_or_default()
    }

    /// Who may be notified of what happens in an account.
    pub(crate) fn recipients_of(&self, account: AccountId) -> Recipients {
        let payers = self.payers.payers_of(account).into_iter().collect();
        if account.uid().is_some() {
            return Recipients {
                payers,
                ..Recipients::default()
            };
        }
        let planned = self.table.plan().accounts.get(&account);
        let granted = planned.and_then(|it| self.table.granted(&it.who));
        let entered = Entered::if_any(&*self.backend)
            .inspect_err(|error| {
                tracing::warn!(
                    "users whose processes have entered an account are not notified: {error:#}"
                );
            })
            .ok();
        Recipients {
            payers,
            granted: granted.unwrap_or_default(),
            entered,
        }
    }

    /// Who pays for a requester: its user, the owner of the user namespace it is in, or the account that its process
    /// has entered.
    pub(crate) fn payer_of(&self, requester: Requester) -> AccountId {
        let kernel = self.backend.kernel();
        let membership = kernel.and_then(KernelFeatures::membership_if_any);
        let entered = membership.and_then(|membership| {
            let pidfd = Pidfd::open(requester.pid).ok().flatten()?;
            membership.of(pidfd.as_fd()).ok().flatten()
        });
        let is_open = |id: &AccountId| self.table.plan().accounts.contains_key(id);
        // Who connected may have ended and left the connection to a child; then its number may be another's.
        entered
            .filter(is_open)
            .filter(|_| {
                self.status_of(requester)
                    .is_some_and(|it| it.uid == requester.uid)
            })
            .unwrap_or(requester.payer)
    }

    /// Of whatever process has the requester's number by now.
    pub(crate) fn status_of(&self, requester: Requester) -> Option<Status> {
        self.proc.status(requester.pid).ok().flatten()
    }

    pub(crate) const fn proc(&self) -> &Proc {
        &self.proc
    }
}
