// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way to the kernel half's events for the thread that is to read them: what it takes is kept until it is recorded.

use libbpf_rs::MapHandle;

use crate::Error;
use crate::event_ring::{EventRing, KernelEvent};
use crate::events_in_hand::TakenEvents;

/// The way to a [`EventRing`] that can be given to the thread that is to read it.
#[derive(Debug)]
pub struct EventSource {
    events: MapHandle,
    taken: TakenEvents,
    left: Vec<KernelEvent>,
}

impl EventSource {
    pub(crate) fn new(
        events: &MapHandle,
        taken: TakenEvents,
        left: Vec<KernelEvent>,
    ) -> Result<Self, Error> {
        let events =
            MapHandle::try_from(events).map_err(Error::io("share the kernel half's events"))?;
        Ok(Self {
            events,
            taken,
            left,
        })
    }

    /// What the user half before us had taken and not recorded, oldest first. Given once.
    pub fn take_left(&mut self) -> Vec<KernelEvent> {
        std::mem::take(&mut self.left)
    }

    /// The events, those that nobody has read yet included.
    ///
    /// # Errors
    /// When the ring buffer cannot be mapped.
    pub fn open(self) -> Result<EventRing, Error> {
        let mut taken = self.taken;
        EventRing::start(&self.events, move |bytes, event| {
            !event.kind.is_recorded()
                || taken.keep(bytes).unwrap_or_else(|error| {
                    tracing::error!(%error, "an event would be lost if bursard were killed now");
                    true
                })
        })
    }
}
