// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that processes were promised and do not have yet (S1 section 5.2): S1's "memory allocation
//! coordinator".
//!
//! A reservation belongs to one process and lasts no longer than it. Its connection's end tells of its
//! end, and so does a pidfd: a child that inherited the connection would otherwise keep its dead
//! parent's reservation alive.
//!
//! Decided here, atomically because one thread decides: held + Σ reserved + N ≤ bound. Where the kernel
//! half can hold reservations itself, [`Holdings`] is where it takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use bursar_host::Pidfd;
use bursar_model::{AccountId, Bounds, Bytes, PageSize, Pages, Pid};
use bursar_protocol::{Reserve, ReserveBound};

use crate::control::{ClientId, Requester};
use crate::payers::Payers;

/// Who gets less than he would like gets this share of what is free.
const SHARE: u64 = 16;
/// Accounts whose refusals are counted; more than a ledger has.
const MOST_ACCOUNTS: usize = 1 << 16;

/// What the coordinator needs of whoever keeps the holdings.
pub(crate) trait Holdings {
    /// What an account holds at this moment.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes>;

    /// Most by which that may be short.
    fn slack(&self) -> Bytes;

    /// Notified whenever the sum of an account's reservations has changed: a kernel half that reserves, too,
    /// leaves room for it.
    fn reserved_now(&mut self, _id: AccountId, _reserved: Pages) -> Result<()> {
        Ok(())
    }

    /// What the kernel half has reserved at this moment, by the gate's prctl (docs/GATE.md).
    fn reserved_elsewhere(&mut self, _id: AccountId) -> Bytes {
        Bytes::ZERO
    }

    /// Notified of each refusal that was somebody's last word. Whether it is kept with the account's failcnt;
    /// where nobody keeps that beyond bursard's end, the coordinator remembers it.
    fn keep_refusal(&mut self, _id: AccountId) -> Result<bool> {
        Ok(false)
    }
}

/// Why nothing was reserved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    /// The request makes no sense.
    #[error("{0}")]
    Senseless(String),
    /// There is no room.
    #[error(
        "no room for {wanted} more: the account holds {held}, {reserved} are reserved, its {bound} is {most}; free memory, or ask for less"
    )]
    Full {
        wanted: Bytes,
        held: Bytes,
        reserved: Bytes,
        bound: &'static str,
        most: Bytes,
    },
    /// The requester has ended already.
    #[error("process {0} has ended; a reservation lasts no longer than its process")]
    Gone(Pid),
    /// The machine could not.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

#[derive(Debug)]
struct Reservation {
    payer: AccountId,
    pages: u64,
    /// Readable when the process has ended.
    process: Pidfd,
}

/// All reservations.
#[derive(Debug)]
pub(crate) struct Reservations {
    page_size: PageSize,
    by_client: BTreeMap<ClientId, Reservation>,
    /// Σ of `by_client`, in pages.
    by_user: BTreeMap<AccountId, u64>,
    /// Those that are kept nowhere else.
    refused: BTreeMap<AccountId, u64>,
    /// Accounts whose sum [`Holdings::reserved_now`] was last told and is not 0.
    told: BTreeSet<AccountId>,
}

/// Room below a bound.
struct Room {
    held: Bytes,
    /// By us and the kernel half.
    reserved: Bytes,
    /// By the kernel half.
    elsewhere: Bytes,
    /// `None`: no bound.
    most: Option<Bytes>,
    bound: &'static str,
}

impl Room {
    fn free(&self) -> Option<Bytes> {
        let taken = self.held.saturating_add(self.reserved);
        self.most.map(|most| most.saturating_sub(taken))
    }
}

impl Reservations {
    pub(crate) fn new(page_size: PageSize) -> Self {
        Self {
            page_size,
            by_client: BTreeMap::new(),
            by_user: BTreeMap::new(),
            refused: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// Reserves for the requester. Returns the pages granted and those reserved over this connection now.
    pub(crate) fn reserve(
        &mut self,
        requester: Requester,
        ask: &Reserve,
        payers: &Payers,
        ram: Bytes,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(u64, u64), Denied> {
        let least = ask.at_least.unwrap_or(ask.pages);
        if ask.pages == 0 || least == 0 || least > ask.pages {
            let text = format!(
                "cannot reserve {} pages (at least {least}): ask for 1 page or more, and for no more than is wanted",
                ask.pages
            );
            return Err(Denied::Senseless(text));
        }
        self.follow(requester, payers, holdings)?;
        if ask.commit > 0 {
            self.commit(requester, ask.commit, payers, holdings)?;
        }
        let account = payers.of(requester.payer);
        let room = self
            .room(requester.payer, ask.bound, payers, ram, holdings)
            .map_err(Denied::Failed)?;
        let id = account.map(|(id, _)| id);
        let free = room
            .free()
            .map_or(u64::MAX, |free| self.page_size.pages_within(free).get());
        if free < least {
            // It stays a client that reserves, whatever it got this time.
            self.add(requester, 0)?;
            return Err(self.refuse(ask, least, &room, id, holdings));
        }
        let granted = ask.pages.min((free / SHARE).max(least));
        self.add(requester, granted)?;
        self.tell(id, payers, holdings)?;
        // Whoever reserves of the kernel half in this moment sees what we promise, or we see him.
        if id.is_some_and(|id| holdings.reserved_elsewhere(id) > room.elsewhere) {
            self.commit(requester, granted, payers, holdings)?;
            return Err(self.refuse(ask, least, &room, id, holdings));
        }
        Ok((granted, self.reserved_by(requester.client)))
    }

    fn refuse(
        &mut self,
        ask: &Reserve,
        least: u64,
        room: &Room,
        id: Option<AccountId>,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Denied {
        if let (false, Some(id)) = (ask.tentative, id) {
            self.count_refusal(id, holdings);
        }
        Denied::Full {
            wanted: Pages::new(least).to_bytes(self.page_size),
            held: room.held,
            reserved: room.reserved,
            bound: room.bound,
            most: room.most.unwrap_or(Bytes::MAX),
        }
    }

    fn room(
        &self,
        payer: AccountId,
        bound: ReserveBound,
        payers: &Payers,
        ram: Bytes,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<Room> {
        let limits = payers.of(payer).and_then(|(id, bounds): (_, Bounds)| {
            let limit = bounds.limit().map(|it| ("limit", it));
            let barrier = bounds.barrier().map(|it| ("barrier", it));
            let chosen = match bound {
                ReserveBound::Limit => limit.or(barrier),
                ReserveBound::Barrier => barrier.or(limit),
            };
            chosen.map(|chosen| (id, chosen, bounds.limit()))
        });
        let Some((id, (bound, most), limit)) = limits else {
            // Nobody limits him; no machine has more than its memory to give.
            let reserved = self.by_user.get(&payer).copied().unwrap_or(0);
            let reserved = Pages::new(reserved).to_bytes(self.page_size);
            return Ok(Room {
                held: Bytes::ZERO,
                reserved,
                elsewhere: Bytes::ZERO,
                most: Some(ram),
                bound: "bound (this machine's memory)",
            });
        };
        let elsewhere = holdings.reserved_elsewhere(id);
        Ok(Room {
            held: holdings.held_now(id)?,
            reserved: self.reserved_in(id, payers).saturating_add(elsewhere),
            elsewhere,
            // The limit is enforced to the page, held known to the error bound.
            most: Some(limit.map_or(most, |limit| {
                let slack = holdings.slack().min(limit.scaled(1, 64));
                most.min(limit.saturating_sub(slack))
            })),
            bound,
        })
    }

    fn add(&mut self, requester: Requester, pages: u64) -> Result<(), Denied> {
        if let Some(reservation) = self.by_client.get_mut(&requester.client) {
            reservation.pages = reservation.pages.saturating_add(pages);
        } else {
            let process = Pidfd::open(requester.pid)
                .map_err(|error| Denied::Failed(error.into()))?
                .ok_or(Denied::Gone(requester.pid))?;
            let reservation = Reservation {
                payer: requester.payer,
                pages,
                process,
            };
            self.by_client.insert(requester.client, reservation);
        }
        if pages > 0 {
            let sum = self.by_user.entry(requester.payer).or_default();
            *sum = sum.saturating_add(pages);
        }
        Ok(())
    }

    /// Gives back. Returns the pages still reserved over this connection.
    pub(crate) fn commit(
        &mut self,
        requester: Requester,
        pages: u64,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<u64, Denied> {
        self.follow(requester, payers, holdings)?;
        let reserved = self.reserved_by(requester.client);
        if pages == 0 || pages > reserved {
            let text = format!(
                "cannot commit {pages} pages: this process has {reserved} reserved; commit what was reserved, once"
            );
            return Err(Denied::Senseless(text));
        }
        if let Some(reservation) = self.by_client.get_mut(&requester.client) {
            reservation.pages = reservation.pages.saturating_sub(pages);
        }
        self.subtract(requester.payer, pages);
        self.tell(
            payers.of(requester.payer).map(|(id, _)| id),
            payers,
            holdings,
        )?;
        Ok(reserved.saturating_sub(pages))
    }

    /// A connection or its process has ended: nothing of it stays.
    pub(crate) fn release(
        &mut self,
        client: ClientId,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let Some(gone) = self.by_client.remove(&client) else {
            return Ok(());
        };
        self.subtract(gone.payer, gone.pages);
        match payers.of(gone.payer) {
            Some((id, _)) => self.tell_of(id, payers, holdings),
            None => Ok(()),
        }
    }

    /// Limits have changed: accounts may be new, or others', or not their users' any more.
    pub(crate) fn tell_all(
        &mut self,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let users = self.by_user.keys();
        let accounts = users.filter_map(|&payer| payers.of(payer).map(|(id, _)| id));
        let concerned: BTreeSet<_> = accounts.chain(self.told.iter().copied()).collect();
        // One that cannot be told keeps nobody else's back.
        let told = concerned
            .into_iter()
            .map(|id| self.tell_of(id, payers, holdings));
        let told: Vec<_> = told.collect();
        told.into_iter().collect()
    }

    /// Who pays for a process may change while it has something reserved: it enters an account, or the
    /// limits change. Then that goes along.
    fn follow(
        &mut self,
        requester: Requester,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let Some(reservation) = self.by_client.get_mut(&requester.client) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut reservation.payer, requester.payer);
        let pages = reservation.pages;
        if before == requester.payer || pages == 0 {
            return Ok(());
        }
        self.subtract(before, pages);
        let sum = self.by_user.entry(requester.payer).or_default();
        *sum = sum.saturating_add(pages);
        for payer in [before, requester.payer] {
            self.tell(payers.of(payer).map(|(id, _)| id), payers, holdings)?;
        }
        Ok(())
    }

    fn subtract(&mut self, payer: AccountId, pages: u64) {
        if let Some(sum) = self.by_user.get_mut(&payer) {
            *sum = sum.saturating_sub(pages);
            if *sum == 0 {
                self.by_user.remove(&payer);
            }
        }
    }

    fn tell(
        &mut self,
        id: Option<AccountId>,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let told = id.map_or(Ok(()), |id| self.tell_of(id, payers, holdings));
        told.map_err(Denied::Failed)
    }

    fn tell_of(
        &mut self,
        id: AccountId,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let reserved = self.page_size.pages_within(self.reserved_in(id, payers));
        // Before: what was told in part is told again.
        self.told.insert(id);
        holdings.reserved_now(id, reserved)?;
        if reserved.get() == 0 {
            self.told.remove(&id);
        }
        Ok(())
    }

    fn count_refusal(&mut self, id: AccountId, holdings: &mut (impl Holdings + ?Sized)) {
        let is_kept = holdings.keep_refusal(id).unwrap_or_else(|error| {
            tracing::warn!("a refusal is counted until bursard's end only: {error:#}");
            false
        });
        if !is_kept && (self.refused.len() < MOST_ACCOUNTS || self.refused.contains_key(&id)) {
            let count = self.refused.entry(id).or_default();
            *count = count.saturating_add(1);
        }
    }

    fn sum_of(&self, table: &BTreeMap<AccountId, u64>, id: AccountId, payers: &Payers) -> u64 {
        let users = payers.charged_to(id);
        let amounts = users.iter().filter_map(|payer| table.get(payer));
        amounts.fold(0, |sum: u64, amount| sum.saturating_add(*amount))
    }

    /// Reserved in an account.
    pub(crate) fn reserved_in(&self, id: AccountId, payers: &Payers) -> Bytes {
        Pages::new(self.sum_of(&self.by_user, id, payers)).to_bytes(self.page_size)
    }

    /// Refusals that were somebody's last word, as far as nobody else keeps them.
    pub(crate) fn refused_in(&self, id: AccountId) -> u64 {
        self.refused.get(&id).copied().unwrap_or(0)
    }

    fn reserved_by(&self, client: ClientId) -> u64 {
        self.by_client.get(&client).map_or(0, |it| it.pages)
    }

    /// What tells of the end of a client's process, if it has ever reserved.
    pub(crate) fn process_of(&self, client: ClientId) -> Option<BorrowedFd<'_>> {
        self.by_client.get(&client).map(|it| it.process.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use bursar_host::machine;
    use bursar_model::{AccountKind, BoundsSpec, SizeSpec, Uid};
    use bursar_policy::{Plan, Planned};

    use super::*;
    use crate::payers::Coverage;

    struct Nothing;

    impl Holdings for Nothing {
        fn held_now(&mut self, _id: AccountId) -> Result<Bytes> {
            Ok(Bytes::ZERO)
        }

        fn slack(&self) -> Bytes {
            Bytes::ZERO
        }
    }

    /// As the kernel half does.
    struct Keeping(u64);

    impl Holdings for Keeping {
        fn held_now(&mut self, _id: AccountId) -> Result<Bytes> {
            Ok(Bytes::ZERO)
        }

        fn slack(&self) -> Bytes {
            Bytes::ZERO
        }

        fn keep_refusal(&mut self, _id: AccountId) -> Result<bool> {
            self.0 += 1;
            Ok(true)
        }
    }

    fn coverage() -> Coverage {
        Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        }
    }

    fn payers() -> Payers {
        Payers::new(&Plan::default(), coverage())
    }

    fn requester(uid: u32) -> Requester {
        Requester {
            client: ClientId::first(),
            uid: Uid::new(uid),
            pid: Pid::new(std::process::id()),
            payer: AccountId::of(Uid::new(uid)),
            counts_as: Uid::new(uid),
        }
    }

    fn ask(pages: u64) -> Reserve {
        Reserve {
            pages,
            at_least: None,
            commit: 0,
            bound: ReserveBound::Limit,
            tentative: false,
        }
    }

    /// It enters an account, say.
    #[test]
    fn what_is_reserved_follows_who_pays() {
        let mut reservations = Reservations::new(machine::page_size());
        let (payers, ram) = (payers(), Bytes::new(1 << 40));
        let reserve = |reservations: &mut Reservations, uid, pages| {
            reservations
                .reserve(requester(uid), &ask(pages), &payers, ram, &mut Nothing)
                .unwrap()
        };
        assert_eq!(reserve(&mut reservations, 60001, 10), (10, 10));
        assert_eq!(reserve(&mut reservations, 60002, 5), (5, 15));
        assert_eq!(
            reservations.by_user,
            BTreeMap::from([(Uid::new(60002).into(), 15)])
        );
        let left = reservations.commit(requester(60003), 6, &payers, &mut Nothing);
        assert_eq!(left.unwrap(), 9);
        assert_eq!(
            reservations.by_user,
            BTreeMap::from([(Uid::new(60003).into(), 9)])
        );
        let released = reservations.release(ClientId::first(), &payers, &mut Nothing);
        released.unwrap();
        assert!(reservations.by_user.is_empty());
    }

    fn in_an_account_of(users: &[u32]) -> (AccountId, Payers) {
        let id = AccountId::of_name(7);
        let limit = SizeSpec::Bytes(Bytes::from_mib(1));
        let planned = Planned {
            who: "=film".parse().unwrap(),
            memory_of: "=film".parse().unwrap(),
            kind: AccountKind::Shared,
            bounds: BoundsSpec::of_limit(limit).resolve(Bytes::MAX).unwrap(),
            rows: BTreeMap::new(),
            payers: users.iter().copied().map(Uid::new).collect(),
        };
        let plan = Plan {
            accounts: BTreeMap::from([(id, planned)]),
            ..Plan::default()
        };
        (id, Payers::new(&plan, coverage()))
    }

    /// Prometheus takes a counter that sinks for one that began anew.
    #[test]
    fn refusals_stay_with_the_account_whoever_leaves_it() {
        let mut reservations = Reservations::new(machine::page_size());
        let ram = Bytes::new(1 << 40);
        let (id, both) = in_an_account_of(&[60001, 60002]);
        for uid in [60001, 60002] {
            let denied =
                reservations.reserve(requester(uid), &ask(1 << 20), &both, ram, &mut Nothing);
            assert!(matches!(denied, Err(Denied::Full { .. })), "{denied:?}");
        }
        assert_eq!(reservations.refused_in(id), 2);
        let (_, one) = in_an_account_of(&[60002]);
        let denied = reservations.reserve(requester(60002), &ask(1 << 20), &one, ram, &mut Nothing);
        assert!(denied.is_err());
        assert_eq!(reservations.refused_in(id), 3);
    }

    /// As the kernel half does, by account.
    #[derive(Default)]
    struct Notified(BTreeMap<AccountId, u64>);

    impl Holdings for Notified {
        fn held_now(&mut self, _id: AccountId) -> Result<Bytes> {
            Ok(Bytes::ZERO)
        }

        fn slack(&self) -> Bytes {
            Bytes::ZERO
        }

        fn reserved_now(&mut self, id: AccountId, reserved: Pages) -> Result<()> {
            self.0.insert(id, reserved.get());
            Ok(())
        }
    }

    #[test]
    fn an_account_that_its_users_have_left_is_told_that_nothing_is_reserved_in_it() {
        let mut reservations = Reservations::new(machine::page_size());
        let (id, with_him) = in_an_account_of(&[60001, 60002]);
        let (ram, mut holdings) = (Bytes::new(1 << 40), Notified::default());
        reservations
            .reserve(requester(60001), &ask(10), &with_him, ram, &mut holdings)
            .unwrap();
        assert_eq!(holdings.0, BTreeMap::from([(id, 10)]));

        let (_, without) = in_an_account_of(&[60002]);
        reservations.tell_all(&without, &mut holdings).unwrap();
        assert_eq!(holdings.0, BTreeMap::from([(id, 0)]));
        assert!(reservations.told.is_empty());
    }

    #[test]
    fn a_refusal_is_counted_in_one_place() {
        let mut reservations = Reservations::new(machine::page_size());
        let (id, payers) = in_an_account_of(&[60001]);
        let (ram, mut holdings) = (Bytes::new(1 << 40), Keeping(0));
        let denied =
            reservations.reserve(requester(60001), &ask(1 << 20), &payers, ram, &mut holdings);
        assert!(denied.is_err());
        assert_eq!((holdings.0, reservations.refused_in(id)), (1, 0));
    }
}
