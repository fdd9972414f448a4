// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that processes were promised and do not have yet (S1 section 5.2): S1's "memory allocation
//! coordinator".
//!
//! A reservation lasts no longer than its process; a pidfd tells of its end. There are two kinds:
//! - of a connection (`reserve`, `commit`): it ends with the connection, too. What of it has become resident its process
//!   says;
//! - of a process (`renew`): no connection has to stay open. What of it has become resident is looked up ([`growth`])
//!   when somebody else would be refused because of it. An execve(2) ends it: bursard looks for one each second, and
//!   before it refuses somebody else (at most every 50 ms).
//!
//! Decided here, atomically because one thread decides: held + Σ reserved + N ≤ bound. A kernel half with reservations of
//! its own takes over at [`Holdings`].

mod denied;
mod growth;
mod headroom;
mod holdings;
mod processes;
mod residency;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use bursar_host::{Image, Pidfd, Proc};
use bursar_model::{AccountId, Bounds, Bytes, PageSize, Pages, Pid, Uid};
use bursar_protocol::{Granted, Renew, Reserve, ReserveBound};
use bursar_watchdog::TimedQuery;

pub(crate) use self::denied::Denied;
use self::denied::senseless;
use self::growth::{Promise, Snapshot};
use self::headroom::{Headroom, bound_of};
pub(crate) use self::holdings::Holdings;
use self::processes::Processes;
use crate::control::{ClientId, Requester};
use crate::payers::Payers;

/// A request that would like more than it needs gets this share of what is free.
const SHARE: u64 = 16;
/// Refusals that one request reports. A process that refuses more often than this between two requests
/// is counted short.
const MOST_REFUSED: u64 = 1 << 20;

/// Whose a reservation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Connection(ClientId),
    Process(Pid),
}

#[derive(Debug)]
struct Reservation {
    payer: AccountId,
    counts_as: Uid,
    pages: u64,
    /// Readable when the process has ended.
    process: Pidfd,
    /// When it was granted; `None`: what becomes of it is for the process to say.
    then: Option<Snapshot>,
    /// The program it was granted to.
    image: Option<Image>,
}

impl Reservation {
    /// By how much it is less than what was promised, because that was resident when it was looked at.
    fn missing(&self) -> u64 {
        let promised = self.then.as_ref().map_or(0, Snapshot::promised);
        promised.saturating_sub(self.pages)
    }
}

/// All reservations.
#[derive(Debug)]
pub(crate) struct Reservations {
    page_size: PageSize,
    proc: Proc,
    images: residency::Images,
    by_holder: BTreeMap<Holder, Reservation>,
    processes: Processes,
    /// Where the next round over them begins.
    next: Option<Holder>,
    /// Σ of `by_holder`, in pages.
    by_payer: BTreeMap<AccountId, u64>,
    /// Those that are kept nowhere else.
    refused: BTreeMap<AccountId, u64>,
    /// Accounts whose sum [`Holdings::reserved_now`] was last told and is not 0.
    told: BTreeSet<AccountId>,
}

impl Reservations {
    pub(crate) fn new(page_size: PageSize, query: TimedQuery) -> Result<Self> {
        Ok(Self {
            page_size,
            images: residency::Images::new(query),
            proc: Proc::host()?,
            by_holder: BTreeMap::new(),
            processes: Processes::new()?,
            next: None,
            by_payer: BTreeMap::new(),
            refused: BTreeMap::new(),
            told: BTreeSet::new(),
        })
    }

    /// Reserves for the requester's connection. Returns the pages granted and those reserved over it now.
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
            return Err(senseless(ask.pages, least));
        }
        let holder = Holder::Connection(requester.client);
        self.follow(holder, requester, payers, holdings)?;
        if ask.commit > 0 {
            self.commit(requester, ask.commit, payers, holdings)?;
        }
        let id = payers.of(requester.payer).map(|(id, _)| id);
        let mut room = self
            .room(requester.payer, ask.bound, payers, ram, holdings)
            .map_err(Denied::Failed)?;
        let mut free = self.free_pages(&room, 0);
        if let Some(id) = id {
            free = self.make_free(id, holder, least, &mut room, payers, holdings)?;
        }
        if free < least {
            // It stays a client that reserves, whatever it got this time.
            self.add(holder, requester, 0)?;
            return Err(self.refuse(least, ask.tentative, &room, id, holdings));
        }
        let granted = ask.pages.min((free / SHARE).max(least));
        self.add(holder, requester, granted)?;
        self.tell(id, payers, holdings)?;
        // Whoever reserves of the kernel half in this moment sees what we promise, or we see it.
        if id.is_some_and(|id| holdings.reserved_elsewhere(id) > room.elsewhere) {
            self.commit(requester, granted, payers, holdings)?;
            return Err(self.refuse(least, ask.tentative, &room, id, holdings));
        }
        Ok((granted, self.reserved_by(holder)))
    }

    /// Replaces what the requester's process has reserved.
    pub(crate) fn renew(
        &mut self,
        requester: Requester,
        ask: &Renew,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<Granted, Denied> {
        let least = ask.at_least.unwrap_or(ask.pages);
        if least > ask.pages || (least == 0) != (ask.pages == 0) {
            return Err(senseless(ask.pages, least));
        }
        let holder = Holder::Process(requester.pid);
        self.forget_ended(holder, payers, holdings)?;
        if !self.is_of(holder, requester) {
            return Err(Denied::Gone(requester.pid));
        }
        self.follow(holder, requester, payers, holdings)?;
        let account = payers.of(requester.payer);
        let Some((id, _)) = account.filter(|(_, it)| bound_of(it, ReserveBound::Barrier).is_some())
        else {
            self.release_holder(holder, payers, holdings)
                .map_err(Denied::Failed)?;
            return Ok(Granted {
                pages: 0,
                reserved: 0,
                unlimited: true,
            });
        };
        self.count_refusals(id, ask.refused.min(MOST_REFUSED), holdings);
        if self
            .by_holder
            .get(&holder)
            .is_some_and(|it| it.missing() > 0)
        {
            let error = self.error(holdings);
            self.recount(holder, error);
        }
        let own = self.reserved_by(holder);
        let bound = ReserveBound::Barrier;
        let mut room = self
            .room(requester.payer, bound, payers, Bytes::MAX, holdings)
            .map_err(Denied::Failed)?;
        let needed = ask.keep.saturating_add(least);
        let free = self.make_free(id, holder, needed, &mut room, payers, holdings)?;
        // Promised before; by a bursard before this one, as far as there is room.
        let kept = ask.keep.min(own.max(free));
        let untouched = ask.untouched.min(kept);
        let kept_only = Promise {
            kept,
            granted: 0,
            untouched,
        };
        if ask.pages > 0 && free < needed {
            self.set(holder, requester, kept_only, payers, holdings)?;
            let denied = self.refuse(least, ask.tentative, &room, Some(id), holdings);
            return Err(denied.keeping(ask.keep, kept));
        }
        let share = free.saturating_sub(kept) / SHARE;
        let granted = ask.pages.min(share.max(least));
        let pages = Promise {
            kept,
            granted,
            untouched,
        };
        self.set(holder, requester, pages, payers, holdings)?;
        if ask.pages > 0 && holdings.reserved_elsewhere(id) > room.elsewhere {
            self.set(holder, requester, kept_only, payers, holdings)?;
            let denied = self.refuse(least, ask.tentative, &room, Some(id), holdings);
            return Err(denied.keeping(ask.keep, kept));
        }
        Ok(Granted {
            pages: granted,
            reserved: self.reserved_by(holder),
            unlimited: false,
        })
    }

    /// Whether what this process has reserved is the requester's to change. Who connected may have ended, and somebody
    /// else's process have got its number since.
    fn is_of(&self, holder: Holder, requester: Requester) -> bool {
        let counts_as = self.by_holder.get(&holder).map(|it| it.counts_as);
        if counts_as.is_none_or(|it| it == requester.counts_as) {
            return true;
        }
        let status = self.proc.status(requester.pid).ok().flatten();
        status.is_some_and(|it| it.uid == requester.uid)
    }

    fn refuse(
        &mut self,
        least: u64,
        is_tentative: bool,
        room: &Headroom,
        id: Option<AccountId>,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Denied {
        if let (false, Some(id)) = (is_tentative, id) {
            self.count_refusals(id, 1, holdings);
        }
        Denied::Full {
            wanted: Pages::new(least).to_bytes(self.page_size),
            held: room.held,
            reserved: room.reserved,
            bound: room.bound,
            most: room.most.unwrap_or(Bytes::MAX),
            kept: None,
        }
    }

    fn room(
        &self,
        payer: AccountId,
        bound: ReserveBound,
        payers: &Payers,
        ram: Bytes,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<Headroom> {
        let limits = payers.of(payer).and_then(|(id, bounds): (_, Bounds)| {
            bound_of(&bounds, bound).map(|chosen| (id, chosen, bounds.limit()))
        });
        let Some((id, (bound, most), limit)) = limits else {
            // No limit applies; no machine has more than its memory to give.
            let reserved = self.by_payer.get(&payer).copied().unwrap_or(0);
            let reserved = Pages::new(reserved).to_bytes(self.page_size);
            return Ok(Headroom {
                held: Bytes::ZERO,
                reserved,
                elsewhere: Bytes::ZERO,
                most: Some(ram),
                bound: "bound (this machine's memory)",
            });
        };
        let elsewhere = holdings.reserved_elsewhere(id);
        Ok(Headroom {
            held: holdings.held_now(id)?,
            reserved: self.reserved_beside(id, payers, elsewhere),
            elsewhere,
            // The limit is enforced to the page, held known to the error bound.
            most: Some(limit.map_or(most, |limit| {
                let slack = holdings.slack().min(limit.scaled(1, 64));
                most.min(limit.saturating_sub(slack))
            })),
            bound,
        })
    }

    fn add(&mut self, holder: Holder, requester: Requester, pages: u64) -> Result<(), Denied> {
        if let Some(reservation) = self.by_holder.get_mut(&holder) {
            reservation.pages = reservation.pages.saturating_add(pages);
        } else {
            if let Holder::Process(_) = holder {
                self.admit(requester)?;
            }
            let process = Pidfd::open(requester.pid)
                .map_err(|error| Denied::Failed(error.into()))?
                .ok_or(Denied::Gone(requester.pid))?;
            if let Holder::Process(pid) = holder {
                let is_first = !self.has_processes();
                let watched = self.processes.watch(pid, &process);
                let looked = watched.and_then(|()| match is_first {
                    true => self.processes.look(true),
                    false => Ok(()),
                });
                looked.map_err(Denied::Failed)?;
            }
            let reservation = Reservation {
                payer: requester.payer,
                counts_as: requester.counts_as,
                pages,
                process,
                then: None,
                image: None,
            };
            self.by_holder.insert(holder, reservation);
        }
        self.sum_up(requester.payer, pages);
        Ok(())
    }

    /// A process has this reserved from now on.
    fn set(
        &mut self,
        holder: Holder,
        requester: Requester,
        promise: Promise,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let before = self.reserved_by(holder);
        let pages = promise.kept.saturating_add(promise.granted);
        if pages == 0 {
            return self
                .release_holder(holder, payers, holdings)
                .map_err(Denied::Failed);
        }
        // Before: what it has at this moment is not what it grows by.
        let Holder::Process(pid) = holder else {
            return Ok(());
        };
        let now = self.proc.statm(pid);
        let now = now.map_err(|error| Denied::Failed(error.into()))?;
        let now = now.ok_or(Denied::Gone(pid))?;
        let image = self.image_of(pid, promise.kept);
        self.add(holder, requester, pages.saturating_sub(before))?;
        if let Some(reservation) = self.by_holder.get_mut(&holder) {
            reservation.pages = pages;
            reservation.then = Some(Snapshot::new(
                &now,
                promise.granted,
                pages.saturating_sub(promise.untouched),
                pages,
            ));
            reservation.image = image;
        }
        self.subtract(requester.payer, before.saturating_sub(pages));
        self.tell(
            payers.of(requester.payer).map(|(id, _)| id),
            payers,
            holdings,
        )
    }

    /// Gives back. Returns the pages still reserved over this connection.
    pub(crate) fn commit(
        &mut self,
        requester: Requester,
        pages: u64,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<u64, Denied> {
        let holder = Holder::Connection(requester.client);
        self.follow(holder, requester, payers, holdings)?;
        let reserved = self.reserved_by(holder);
        if pages == 0 || pages > reserved {
            let text = format!(
                "cannot commit {pages} pages: this process has {reserved} reserved; commit what was reserved, once"
            );
            return Err(Denied::Senseless(text));
        }
        if let Some(reservation) = self.by_holder.get_mut(&holder) {
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
        self.release_holder(Holder::Connection(client), payers, holdings)
    }

    /// Releases what processes had reserved that have ended, or run another program by now.
    pub(crate) fn release_ended(
        &mut self,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let happened = self.processes.take();
        let ended = happened.ended.into_iter();
        let released = ended.map(|pid| self.forget_ended(Holder::Process(pid), payers, holdings));
        let released: Vec<_> = released.collect();
        if happened.is_due {
            self.release_replaced(payers, holdings)?;
        }
        released
            .into_iter()
            .collect::<Result<(), _>>()
            .map_err(Into::into)
    }

    /// The number may be another process's by now.
    fn forget_ended(
        &mut self,
        holder: Holder,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let has_ended = self.by_holder.get(&holder).is_some_and(|it| {
            let at_once = Some(std::time::Duration::ZERO);
            it.process.wait_readable(at_once).unwrap_or(false)
        });
        if has_ended {
            self.release_holder(holder, payers, holdings)
                .map_err(Denied::Failed)?;
        }
        Ok(())
    }

    fn release_holder(
        &mut self,
        holder: Holder,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let Some(gone) = self.by_holder.remove(&holder) else {
            return Ok(());
        };
        let mut stopped = Ok(());
        if let Holder::Process(_) = holder {
            self.processes.forget(&gone.process);
            if !self.has_processes() {
                stopped = self.processes.look(false);
            }
        }
        self.subtract(gone.payer, gone.pages);
        match payers.of(gone.payer) {
            Some((id, _)) => self.tell_of(id, payers, holdings).and(stopped),
            None => stopped,
        }
    }

    fn reserved_by(&self, holder: Holder) -> u64 {
        self.by_holder.get(&holder).map_or(0, |it| it.pages)
    }

    /// Whether any process has.
    fn has_processes(&self) -> bool {
        let last = self.by_holder.keys().next_back();
        matches!(last, Some(Holder::Process(_)))
    }

    /// Whether a process has a reservation of its own.
    pub(crate) fn has_of_process(&self, pid: Pid) -> bool {
        self.by_holder.contains_key(&Holder::Process(pid))
    }

    /// What tells of the end of a client's process, if it has ever reserved over its connection.
    pub(crate) fn process_of(&self, client: ClientId) -> Option<BorrowedFd<'_>> {
        let holder = Holder::Connection(client);
        self.by_holder.get(&holder).map(|it| it.process.as_fd())
    }
}

/// Readable when [`Reservations::release_ended`] is to be called.
impl AsFd for Reservations {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.processes.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bursar_host::machine;
    use bursar_model::{AccountKind, BoundsSpec, SizeSpec};
    use bursar_policy::{Plan, Planned};

    use super::*;
    use crate::control::Socket;
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

        fn keep_refusals(&mut self, _id: AccountId, count: u64) -> Result<bool> {
            self.0 += count;
            Ok(true)
        }
    }

    fn coverage() -> Coverage {
        Coverage {
            uid_min: Uid::new(1000),
            exempt: Vec::new(),
        }
    }

    fn reservations() -> Reservations {
        let query = TimedQuery::new("query", Arc::default()).unwrap();
        Reservations::new(machine::page_size(), query).unwrap()
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
            socket: Socket::Requests,
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
        let mut reservations = reservations();
        let (payers, ram) = (payers(), Bytes::new(1 << 40));
        let reserve = |reservations: &mut Reservations, uid, pages| {
            reservations
                .reserve(requester(uid), &ask(pages), &payers, ram, &mut Nothing)
                .unwrap()
        };
        assert_eq!(reserve(&mut reservations, 60001, 10), (10, 10));
        assert_eq!(reserve(&mut reservations, 60002, 5), (5, 15));
        assert_eq!(
            reservations.by_payer,
            BTreeMap::from([(Uid::new(60002).into(), 15)])
        );
        let left = reservations.commit(requester(60003), 6, &payers, &mut Nothing);
        assert_eq!(left.unwrap(), 9);
        assert_eq!(
            reservations.by_payer,
            BTreeMap::from([(Uid::new(60003).into(), 9)])
        );
        let released = reservations.release(ClientId::first(), &payers, &mut Nothing);
        released.unwrap();
        assert!(reservations.by_payer.is_empty());
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
        let mut reservations = reservations();
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

    /// A bursard that was started anew has nothing reserved, and others may have come before.
    #[test]
    fn a_process_that_is_refused_hears_how_much_it_keeps_where_it_has_said_more() {
        let mut reservations = reservations();
        let (_, payers) = in_an_account_of(&[60001]);
        let mut kept_of = |keep| {
            let ask = Renew {
                keep,
                untouched: 0,
                pages: 1 << 20,
                at_least: None,
                tentative: true,
                refused: 0,
            };
            match reservations.renew(requester(60001), &ask, &payers, &mut Nothing) {
                Err(Denied::Full { kept, .. }) => kept,
                other => panic!("{other:?}"),
            }
        };
        let most = kept_of(1 << 20).unwrap();
        assert!((1..=256).contains(&most), "{most}");
        assert_eq!(kept_of(most), None);
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
        let mut reservations = reservations();
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
        let mut reservations = reservations();
        let (id, payers) = in_an_account_of(&[60001]);
        let (ram, mut holdings) = (Bytes::new(1 << 40), Keeping(0));
        let denied =
            reservations.reserve(requester(60001), &ask(1 << 20), &payers, ram, &mut holdings);
        assert!(denied.is_err());
        assert_eq!((holdings.0, reservations.refused_in(id)), (1, 0));
    }
}
