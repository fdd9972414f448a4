// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts in the kernel half: opened, bounded, read, closed.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{offset_of, size_of};
use std::os::fd::AsFd;
use std::sync::Arc;

use bursar_model::{AccountId, Measure, Mode, Pages, Uid};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};

use crate::abi::{
    self, account, account_flag, account_history, ledger_state, measure, mm_record,
    open_account_args, pages_booked, promise_args, set_limit_args, trigger, watch_args,
};
use crate::account::{AccountReading, History, PageBounds, Slot};
use crate::mapped::{self, Mapped};
use crate::pins::Pins;
use crate::selftest_account::SELFTEST_ACCOUNT;
use crate::{Error, call};

/// Whose a part of what an account holds is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A user's who pays into it.
    Of(Uid),
    /// A user's, in processes that have entered it.
    Entered(Uid),
}

/// One that the ledger has a record of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    /// Who pays for it.
    pub slot: Slot,
    /// Of this one alone, for the life of the machine.
    pub context: u64,
    /// Its part of what the account holds.
    pub held: Pages,
}

/// The accounts of one kernel half.
#[derive(Debug)]
pub struct AccountTable {
    accounts: Arc<Mapped<account>>,
    map: MapHandle,
    high_water: Mapped<ledger_state>,
    payers: MapHandle,
    records: MapHandle,
    set_limit: ProgramHandle,
    open_account: ProgramHandle,
    close_account: ProgramHandle,
    promise: ProgramHandle,
    watch: ProgramHandle,
    killer: ProgramHandle,
}

impl AccountTable {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        let accounts = pins.map("accounts")?;
        Ok(Self {
            accounts: Arc::new(Mapped::new(&accounts)?),
            map: accounts,
            high_water: Mapped::new(&pins.map("state")?)?,
            payers: pins.map("payers")?,
            records: pins.map("mms")?,
            set_limit: pins.program("set_limit")?,
            open_account: pins.program("open_account")?,
            close_account: pins.program("close_account")?,
            promise: pins.program("promise")?,
            watch: pins.program("watch")?,
            killer: pins.program("run_oom_killer")?,
        })
    }

    /// As others of ours see them.
    pub(crate) fn mapped(&self) -> Arc<Mapped<account>> {
        Arc::clone(&self.accounts)
    }

    /// How many accounts there is room for, the template included.
    pub fn capacity(&self) -> usize {
        self.accounts.len()
    }

    /// Slots up to here are or were some account's; that of the template is the first.
    pub(crate) fn slots(&self) -> u32 {
        let state = self.high_water.get(0);
        state.map_or(1, |state| state.account_high_water)
    }

    fn raw(&self) -> impl Iterator<Item = (u32, account)> + '_ {
        (1..self.slots()).map_while(|slot| Some((slot, self.accounts.get(slot as usize)?)))
    }

    /// All accounts that are open or still hold something.
    pub fn all(&self) -> impl Iterator<Item = AccountReading> + '_ {
        self.raw()
            .map(|(slot, raw)| AccountReading::new(slot, &raw))
            .filter(|account| account.is_open || account.held.get() + account.dying.get() > 0)
            .filter(|account| account.id != SELFTEST_ACCOUNT)
    }

    /// One account.
    pub fn account(&self, slot: Slot) -> Option<AccountReading> {
        self.accounts
            .get(slot.0 as usize)
            .map(|raw| AccountReading::new(slot.0, &raw))
    }

    /// The account of a uid, or a shared one, opened if there is none; its bounds are set apart. A
    /// new one begins with `history`. A `paused` one is counted and never killed in, until
    /// [`crate::KernelHalf::take_charge`].
    ///
    /// # Errors
    /// [`Error::AccountsFull`].
    pub fn open_account(
        &self,
        id: AccountId,
        is_default: bool,
        paused: bool,
        history: History,
    ) -> Result<Slot, Error> {
        let vacant = self.vacant().next();
        self.open_account_in(vacant, id, is_default, paused, history)
    }

    /// The same, where a new one may take the slot `vacant`: who opens many looks for such slots once.
    ///
    /// # Errors
    /// [`Error::AccountsFull`].
    pub fn open_account_in(
        &self,
        vacant: Option<Slot>,
        id: AccountId,
        is_default: bool,
        paused: bool,
        history: History,
    ) -> Result<Slot, Error> {
        let is_shared = id.uid().is_none();
        if is_shared && let Some(found) = self.all().find(|it| it.id == id && it.is_open) {
            return Ok(found.slot);
        }
        let flags = [
            (is_default, account_flag::ACCOUNT_DEFAULT),
            (paused, account_flag::ACCOUNT_PAUSED),
            (is_shared, account_flag::ACCOUNT_SHARED),
        ];
        let mut args = open_account_args {
            id: id.get(),
            pad: 0,
            flags: flags
                .iter()
                .filter(|(set, _)| *set)
                .map(|(_, flag)| flag.0)
                .sum(),
            slot: vacant.map_or(0, |it| it.0),
            opened: 0,
            history: history.to_raw(),
        };
        let what = "open an account";
        call::run(
            self.open_account.as_fd(),
            what,
            abi::bytes_of_mut(&mut args),
        )
        .map_err(|error| match error {
            Error::Io { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                Error::AccountsFull {
                    max_accounts: self.capacity(),
                }
            }
            error => error,
        })?;
        Ok(Slot(args.slot))
    }

    /// Slots given back whose processes are gone.
    pub fn vacant(&self) -> impl Iterator<Item = Slot> + '_ {
        let is_empty = |raw: &account| raw.held_pages == 0 && raw.dying_pages == 0;
        self.raw()
            .filter(move |(_, raw)| raw.flags == account_flag::ACCOUNT_CLOSED.0 && is_empty(raw))
            .map(|(slot, _)| Slot(slot))
    }

    /// Sets an account's bounds; they hold when this returns.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn set_bounds(&self, slot: Slot, bounds: PageBounds) -> Result<(), Error> {
        self.write_bounds(slot, 0, bounds)
    }

    /// Sets what accounts of `default` are made from, or that none are made. Those already made
    /// are the caller's to change.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn set_template(&self, bounds: Option<PageBounds>, paused: bool) -> Result<(), Error> {
        let flags = match (bounds, paused) {
            (None, _) => 0,
            (Some(_), false) => account_flag::ACCOUNT_USED.0,
            (Some(_), true) => account_flag::ACCOUNT_USED.0 | account_flag::ACCOUNT_PAUSED.0,
        };
        self.write_bounds(Slot::TEMPLATE, flags, bounds.unwrap_or_default())
    }

    fn write_bounds(&self, slot: Slot, flags: u32, bounds: PageBounds) -> Result<(), Error> {
        let mut args = set_limit_args {
            slot: slot.0,
            flags: match bounds.mode {
                Mode::Enforce => flags,
                Mode::Observe => flags | account_flag::ACCOUNT_OBSERVED.0,
            },
            limit_pages: abi::bound_to_pages(bounds.limit),
            barrier_pages: abi::bound_to_pages(bounds.barrier),
            notice_pages: abi::bound_to_pages(bounds.notice),
            private_barrier_pages: abi::bound_to_pages(bounds.private),
            measure: match bounds.measure {
                Measure::Resident => measure::MEASURE_RESIDENT.0,
                Measure::Committed => measure::MEASURE_COMMITTED.0,
            },
            private_observed: u32::from(bounds.private_mode == Mode::Observe),
        };
        self.change(slot, &self.set_limit, "set a limit", &mut args)
    }

    /// Counts requests that the user half has refused where those of the kernel half are counted, so that
    /// there is one failcnt, which outlives both.
    ///
    /// # Errors
    /// When the map cannot be mapped.
    pub fn count_refusals(&self, slot: Slot, count: u64) -> Result<(), Error> {
        const FAILCNT: usize = offset_of!(account, history) + offset_of!(account_history, failcnt);
        let at = slot.0 as usize * size_of::<account>() + FAILCNT;
        mapped::add(&self.map, at, count)
    }

    /// Says how much of an account is reserved over bursard's socket, in all: S1 section 5.2's `reserve` by the
    /// gate's prctl leaves room for it from now on. Ends with the bursard that has said it.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn promise(&self, slot: Slot, pages: Pages) -> Result<(), Error> {
        let mut args = promise_args {
            slot: slot.0,
            pad: 0,
            pages: i64::try_from(pages.get()).unwrap_or(i64::MAX),
        };
        self.change(slot, &self.promise, "say what is reserved", &mut args)
    }

    /// Has an event of kind [`crate::KernelEventKind::WatchReached`] told, once, when the account holds `above` or more,
    /// or less than `below`; at once where it holds `above` now. Replaces what was asked before.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn watch(&self, slot: Slot, above: Option<Pages>, below: Pages) -> Result<(), Error> {
        let mut args = watch_args {
            slot: slot.0,
            pad: 0,
            above_pages: abi::bound_to_pages(above),
            below_pages: i64::try_from(below.get()).unwrap_or(i64::MAX),
        };
        self.change(slot, &self.watch, "watch a level", &mut args)
    }

    fn change(
        &self,
        slot: Slot,
        program: &ProgramHandle,
        what: &'static str,
        args: &mut impl abi::Pod,
    ) -> Result<(), Error> {
        call::run_and_react(
            program.as_fd(),
            self.killer.as_fd(),
            (slot, trigger::TRIGGER_NOTIFIER),
            what,
            abi::bytes_of_mut(args),
        )
    }

    /// Who pays into what.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn payers(&self) -> Result<Vec<(AccountId, Slot)>, Error> {
        let id = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
        let slot = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
        let mut found = Vec::new();
        for key in self.payers.keys() {
            let value = self
                .payers
                .lookup(&key, MapFlags::ANY)
                .map_err(Error::io("read who pays"))?;
            if let (Some(id), Some(number)) = (id(&key), value.as_deref().and_then(slot)) {
                found.push((AccountId::new(id), Slot(number)));
            }
        }
        Ok(found)
    }

    /// Makes a user, or who has entered an account, pay into a shared one. Takes effect at its processes' next event or re-sum
    /// after [`Self::close_account`] or [`Self::open_account`] of anything.
    ///
    /// # Errors
    /// When the table of payers is full.
    pub fn let_pay(&self, payer: AccountId, slot: Slot) -> Result<(), Error> {
        self.payers
            .update(
                &payer.get().to_ne_bytes(),
                &slot.0.to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(Error::io("write who pays"))
    }

    /// Makes one of those pay nowhere.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn let_go(&self, payer: AccountId) -> Result<(), Error> {
        match self.payers.delete(&payer.get().to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::io("write who pays")(error))
            }
            _ => Ok(()),
        }
    }

    /// Takes accounts away: nobody pays into them any more.
    ///
    /// # Errors
    /// When a map cannot be written.
    pub fn close_accounts(&self, slots: &BTreeSet<Slot>) -> Result<(), Error> {
        if slots.is_empty() {
            return Ok(());
        }
        for (payer, paid) in self.payers()? {
            if slots.contains(&paid) {
                self.let_go(payer)?;
            }
        }
        for slot in slots {
            let mut args = open_account_args {
                slot: slot.0,
                ..Default::default()
            };
            call::run(
                self.close_account.as_fd(),
                "close an account",
                abi::bytes_of_mut(&mut args),
            )?;
        }
        Ok(())
    }

    /// Closes one account.
    ///
    /// # Errors
    /// As [`Self::close_accounts`].
    pub fn close_account(&self, slot: Slot) -> Result<(), Error> {
        self.close_accounts(&BTreeSet::from([slot]))
    }

    /// What each user's living processes hold of some accounts, as of their last event or re-sum.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn parts(&self, slots: &BTreeSet<Slot>) -> Result<BTreeMap<(Slot, Part), Pages>, Error> {
        let mut parts: BTreeMap<(Slot, Part), i64> = BTreeMap::new();
        if slots.is_empty() {
            return Ok(BTreeMap::new());
        }
        for record in self.records() {
            let record = record?;
            let slot = Slot(record.account);
            if !slots.contains(&slot) {
                continue;
            }
            // membership.bpf.h is_entered(): in place of a namespace's address, the id of the account entered.
            let has_entered = record.user_ns != 0 && record.user_ns >> 40 == 0;
            let user = Uid::new(record.uid);
            let whose = match has_entered {
                true => Part::Entered(user),
                false => Part::Of(user),
            };
            let part = parts.entry((slot, whose)).or_default();
            *part = part.saturating_add(pages_booked(&record));
        }
        Ok(parts
            .into_iter()
            .map(|(key, pages)| (key, abi::count(pages)))
            .collect())
    }

    /// All address spaces that the ledger has a record of, as of their last event or re-sum.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn address_spaces(&self) -> Result<Vec<AddressSpace>, Error> {
        let one = |it: mm_record| AddressSpace {
            slot: Slot(it.account),
            context: it.ctx_id,
            held: abi::count(pages_booked(&it)),
        };
        self.records().map(|it| it.map(one)).collect()
    }

    fn records(&self) -> impl Iterator<Item = Result<mm_record, Error>> + '_ {
        let high_water = self.high_water.get(0).map_or(0, |it| it.mm_high_water);
        (0..high_water).filter_map(|index| {
            let value = self.records.lookup(&index.to_ne_bytes(), MapFlags::ANY);
            let value = value.map_err(Error::io("read the ledger's records"));
            let read = |it: Option<Vec<u8>>| it.as_deref().and_then(abi::read::<mm_record>);
            let is_used = |it: &mm_record| it.mm != 0;
            value.map(|it| read(it).filter(is_used)).transpose()
        })
    }
}
