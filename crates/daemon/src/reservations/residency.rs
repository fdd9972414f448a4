// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has become of a reservation: resident by now, or its process runs another program.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;
use bursar_host::{HostError, Image, Proc, ProcessQuery, Statm};
use bursar_model::{AccountId, Bytes, Pages, Pid};
use bursar_watchdog::TimedQuery;

use super::denied::Denied;
use super::growth::Snapshot;
use super::headroom::Headroom;
use super::holdings::Holdings;
use super::{Holder, Reservations};
use crate::payers::Payers;

/// Processes looked at in one round; the others in the next.
const LOOKED_AT: usize = 256;
/// What a process may keep without using it is less. With so much reserved it is looked at each second whether it
/// has unmapped some of it, so that the gate, which asks nobody, refuses no others because of it.
const WORTH_A_LOOK: Bytes = Bytes::from_mib(128);
/// Between two looks at what processes run that a refusal is the reason for.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// What a process was when it was granted something, and what it is.
fn then_and_now<'a>(
    then: &'a mut Option<Snapshot>,
    holder: Holder,
    proc: &Proc,
) -> Option<(&'a mut Snapshot, Statm)> {
    let (Some(then), Holder::Process(pid)) = (then, holder) else {
        return None;
    };
    // Its end is told elsewhere.
    Some((then, proc.statm(pid).ok()??))
}

/// What processes run, as they say: each answer waits until another thread has had a processor.
#[derive(Debug)]
pub(super) struct Images {
    query: TimedQuery,
    /// When all were last asked because of a refusal.
    asked: Option<Instant>,
}

impl Images {
    pub(super) const fn new(query: TimedQuery) -> Self {
        Self { query, asked: None }
    }

    /// Whether all can be asked because of a refusal. In a full account there are thousands of them a second.
    fn may_ask(&mut self) -> bool {
        let may_ask = self.asked.is_none_or(|it| it.elapsed() >= ASK_EVERY);
        if may_ask {
            self.asked = Some(Instant::now());
        }
        may_ask
    }
}

impl Reservations {
    pub(super) fn reserved_beside(
        &self,
        id: AccountId,
        payers: &Payers,
        elsewhere: Bytes,
    ) -> Bytes {
        self.reserved_in(id, payers).saturating_add(elsewhere)
    }

    /// Pages that are free beside what others need by what is there now, and beside what a process has reserved itself:
    /// looked up where fewer than `needed` seem so, or were made so by an earlier look.
    pub(super) fn make_free(
        &mut self,
        id: AccountId,
        holder: Holder,
        needed: u64,
        room: &mut Headroom,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<u64, Denied> {
        let own = match holder {
            Holder::Connection(_) => 0,
            Holder::Process(_) => self.reserved_by(holder),
        };
        let spare = self.free_pages(room, own).saturating_sub(needed);
        self.reserve_again(id, holder, spare, payers, holdings)?;
        room.reserved = self.reserved_beside(id, payers, room.elsewhere);
        let free = self.free_pages(room, own);
        if free >= needed {
            return Ok(free);
        }
        self.commit_growth(id, holder, needed - free, payers, holdings)?;
        room.reserved = self.reserved_beside(id, payers, room.elsewhere);
        Ok(self.free_pages(room, own))
    }

    pub(super) fn free_pages(&self, room: &Headroom, own: u64) -> u64 {
        let own = Pages::new(own).to_bytes(self.page_size);
        room.free_beside(own)
            .map_or(u64::MAX, |free| self.page_size.pages_within(free).get())
    }

    /// What others have made resident needs no reservation (`commit_growth`); what they have given back since they need
    /// again. So before what was free by that is granted they are looked at again, those first that have given up most of
    /// what they were promised, until there are `spare` pages for all that the others may need. So many as a request may
    /// cost: nearly all of a full account come here.
    pub(super) fn reserve_again(
        &mut self,
        id: AccountId,
        beside: Holder,
        mut spare: u64,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let paying = payers.charged_to(id);
        let mut reduced: Vec<(u64, Holder)> = self
            .by_holder
            .iter()
            .filter(|(holder, it)| **holder != beside && paying.contains(&it.payer))
            .map(|(holder, it)| (it.missing(), *holder))
            .filter(|&(missing, _)| missing > 0)
            .collect();
        let missing = reduced.iter().map(|&(missing, _)| missing);
        let mut missing = missing.fold(0, u64::saturating_add);
        if missing <= spare {
            return Ok(());
        }
        reduced.sort_unstable_by(|one, other| other.cmp(one));
        let error = self.error(holdings);
        let mut has_changed = false;
        for (its, holder) in reduced.into_iter().take(LOOKED_AT) {
            if missing <= spare {
                break;
            }
            let (less, more) = self.recount(holder, error);
            has_changed |= (less, more) != (0, 0);
            missing = missing.saturating_sub(its);
            spare = spare.saturating_add(less).saturating_sub(more);
        }
        match has_changed {
            true => self.tell(Some(id), payers, holdings),
            false => Ok(()),
        }
    }

    /// What other processes of an account have made resident of what they reserved needs no reservation
    /// any more: held has it. Looked up, largest first, until `wanted` pages are free. Those that were looked at before
    /// [`Self::reserve_again`] has looked at.
    pub(super) fn commit_growth(
        &mut self,
        id: AccountId,
        beside: Holder,
        wanted: u64,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<(), Denied> {
        let paying = payers.charged_to(id);
        let error = self.error(holdings);
        let mut known: Vec<(u64, Holder)> = self
            .by_holder
            .iter()
            .filter(|(holder, it)| **holder != beside && it.then.is_some() && it.pages > error)
            .filter(|(_, it)| paying.contains(&it.payer))
            .map(|(holder, it)| (it.pages, *holder))
            .collect();
        known.sort_unstable_by(|one, other| other.cmp(one));
        let mut freed = 0_u64;
        for &(_, holder) in &known {
            if freed >= wanted {
                break;
            }
            if self
                .by_holder
                .get(&holder)
                .is_some_and(|it| it.missing() == 0)
            {
                freed = freed.saturating_add(self.recount(holder, error).0);
            }
        }
        if freed < wanted && self.images.may_ask() {
            let known: Vec<Holder> = known.into_iter().map(|(_, holder)| holder).collect();
            for holder in self.replaced(&known) {
                freed = freed.saturating_add(self.reserved_by(holder));
                self.release_holder(holder, payers, holdings)
                    .map_err(Denied::Failed)?;
            }
        }
        if freed > 0 {
            self.tell(Some(id), payers, holdings)?;
        }
        Ok(())
    }

    /// What it runs, which keeps so much of what it was granted before. Who keeps something runs what it ran then: a
    /// program that has just begun has nothing to keep. Where it does not say in time an execve ends nothing.
    pub(super) fn image_of(&mut self, pid: Pid, kept: u64) -> Option<Image> {
        let known = self.by_holder.get(&Holder::Process(pid));
        let known = known.and_then(|it| it.image).filter(|_| kept > 0);
        known.or_else(|| self.images.query.ask(pid, Proc::image)?.ok().flatten())
    }

    /// Those whose processes run another program than the one that asked, as far as they say so in time.
    fn replaced(&mut self, holders: &[Holder]) -> BTreeSet<Holder> {
        let before = |holder: &Holder| {
            let image = self.by_holder.get(holder)?.image?;
            match holder {
                Holder::Process(pid) => Some((*pid, image)),
                Holder::Connection(_) => None,
            }
        };
        let before: BTreeMap<Pid, Image> = holders.iter().filter_map(before).collect();
        let found = self
            .images
            .query
            .ask_each(before.keys().copied().collect(), Proc::image);
        let is_replaced = |(pid, now): (Pid, Result<Option<Image>, HostError>)| {
            // Its end is told elsewhere.
            let now = now.ok().flatten()?;
            (before.get(&pid) != Some(&now)).then_some(Holder::Process(pid))
        };
        found.into_iter().filter_map(is_replaced).collect()
    }

    /// By how much two readings of a counter may differ, in pages.
    pub(super) fn error(&self, holdings: &(impl Holdings + ?Sized)) -> u64 {
        let slack = self.page_size.pages_within(holdings.slack());
        slack.get().saturating_mul(2)
    }

    /// Releases what was granted to programs that processes do not run any more, and what these have
    /// unmapped: of some of them, of the others next time.
    pub(super) fn release_replaced(
        &mut self,
        payers: &Payers,
        holdings: &mut (impl Holdings + ?Sized),
    ) -> Result<()> {
        let error = self.error(holdings);
        let from = self.next.unwrap_or(Holder::Process(Pid::new(0)));
        let some: Vec<Holder> = self
            .by_holder
            .range(from..)
            .filter_map(|(holder, it)| it.image.map(|_| *holder))
            .take(LOOKED_AT)
            .collect();
        self.next = some.last().copied().filter(|_| some.len() == LOOKED_AT);
        let worth_a_look = self.page_size.pages_within(WORTH_A_LOOK).get();
        let replaced = self.replaced(&some);
        for holder in some {
            if replaced.contains(&holder) {
                self.release_holder(holder, payers, holdings)?;
            } else if self.reserved_by(holder) >= worth_a_look
                && self.give_up_unmapped(holder, error) > 0
                && let Some(payer) = self.by_holder.get(&holder).map(|it| it.payer)
            {
                self.tell(payers.of(payer).map(|(id, _)| id), payers, holdings)?;
            }
        }
        Ok(())
    }

    /// What the process had mapped and has mapped no more. Returns how much less is reserved.
    fn give_up_unmapped(&mut self, holder: Holder, error: u64) -> u64 {
        let Some(reservation) = self.by_holder.get_mut(&holder) else {
            return 0;
        };
        let Some((then, now)) = then_and_now(&mut reservation.then, holder, &self.proc) else {
            return 0;
        };
        let gone = then.unmapped(&now, reservation.pages, error, self.page_size);
        then.forget_unmapped(gone);
        reservation.pages = reservation.pages.saturating_sub(gone);
        let payer = reservation.payer;
        self.subtract(payer, gone);
        gone
    }

    /// Reserves what has to be by what is there now. Returns how much less that is, and how much more.
    pub(super) fn recount(&mut self, holder: Holder, error: u64) -> (u64, u64) {
        let Some(reservation) = self.by_holder.get_mut(&holder) else {
            return (0, 0);
        };
        let Some((then, now)) = then_and_now(&mut reservation.then, holder, &self.proc) else {
            return (0, 0);
        };
        let before = reservation.pages;
        reservation.pages = then.still_reserved(&now, error, self.page_size);
        let (payer, after) = (reservation.payer, reservation.pages);
        let (less, more) = (before.saturating_sub(after), after.saturating_sub(before));
        self.subtract(payer, less);
        self.sum_up(payer, more);
        (less, more)
    }
}
