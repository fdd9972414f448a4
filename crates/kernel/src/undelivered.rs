// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a kernel half that was replaced had told and nobody had read yet.

use std::cell::Cell;
use std::rc::Rc;

use crate::event_ring::{EventRing, KernelEvent, KernelEventKind, ring};
use crate::pins::Pins;
use crate::{Error, Slot, previous};

/// The events of kernel halves that are gone.
#[derive(Debug, Default)]
pub struct Undelivered {
    /// Oldest first. What they ask for is not among them: the kernel half that decides now asks itself.
    pub events: Vec<KernelEvent>,
    /// Events of another version, which this one cannot read.
    pub unreadable: u64,
    /// Events, at most, that are gone with a user half that was killed.
    pub unrecorded: u64,
    /// Events that did not fit the ring buffer, and that nobody has recorded as lost.
    pub lost: u64,
}

impl Undelivered {
    /// Sends a kernel half away and keeps what it had to tell. Nothing comes after its programs are
    /// detached, so that its ring is read then.
    pub(crate) fn of(&mut self, old: &Pins) -> Result<(), Error> {
        let (events, state) = (old.map("events"), old.map("state"));
        let is_ours = previous::has_our_abi(old);
        let left = previous::events_left(old);
        old.remove()?;
        // Of a version that had none, or never finished.
        let Ok(events) = events else { return Ok(()) };
        if !is_ours {
            let count = Rc::new(Cell::new(0_u64));
            let counted = Rc::clone(&count);
            ring(&events, move |_| {
                counted.set(counted.get().saturating_add(1))
            })?
            .consume()
            .map_err(Error::io("count the last events of the kernel half before"))?;
            self.unreadable = self.unreadable.saturating_add(count.get());
            return Ok(());
        }
        let lost = state.as_ref().map_or(0, previous::losses);
        self.lost = self.lost.saturating_add(lost);
        let mut in_hand = left.events;
        let mut events = EventRing::new(&events)?.drain()?;
        if !events.is_empty() && events.first() == in_hand.last() {
            in_hand.pop();
        }
        // Nobody can say here whether it is recorded.
        let doubtful = usize::from(left.has_begun).min(in_hand.len());
        in_hand.drain(..doubtful);
        let unrecorded = left.unrecorded.saturating_add(doubtful as u64);
        self.unrecorded = self.unrecorded.saturating_add(unrecorded);
        in_hand.append(&mut events);
        let events = in_hand.into_iter();
        // The kernel half that decides now asks for this kill itself.
        let told =
            events.filter(|it| it.kind.is_recorded() && it.kind != KernelEventKind::KillAsked);
        // Its accounts lay elsewhere.
        self.events.extend(told.map(|event| KernelEvent {
            slot: Slot::TEMPLATE,
            ..event
        }));
        Ok(())
    }
}
