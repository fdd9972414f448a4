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
}

impl Undelivered {
    /// Sends a kernel half away and keeps what it had to tell. Nothing comes after its programs are
    /// detached, so that its ring is read then.
    pub(crate) fn of(&mut self, old: &Pins) -> Result<(), Error> {
        let events = old.map("events");
        let is_ours = previous::has_our_abi(old);
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
        let events = EventRing::new(&events)?.drain()?.into_iter();
        let told = events.filter(|it| !asks(it.kind));
        // Its accounts lay elsewhere.
        self.events.extend(told.map(|event| KernelEvent {
            slot: Slot::TEMPLATE,
            ..event
        }));
        Ok(())
    }
}

/// Whether it asks the user half for something instead of telling what happened.
fn asks(kind: KernelEventKind) -> bool {
    match kind {
        KernelEventKind::KillAsked
        | KernelEventKind::OomScoreDue
        | KernelEventKind::Shortage
        | KernelEventKind::CountFiles
        | KernelEventKind::Unrecorded
        | KernelEventKind::RunKiller
        | KernelEventKind::Level
        | KernelEventKind::Dying
        | KernelEventKind::PssScan => true,
        KernelEventKind::Notice
        | KernelEventKind::Kill
        | KernelEventKind::WouldKill
        | KernelEventKind::NoVictim
        | KernelEventKind::Freed
        | KernelEventKind::Refused
        | KernelEventKind::Files
        | KernelEventKind::Bill => false,
    }
}
