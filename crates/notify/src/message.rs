// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the threads say to each other.

use bursar_model::Event;

use crate::delivery::{DeliveryId, Outcome};

/// What the stream told.
#[derive(Debug)]
pub(crate) enum StreamItem {
    /// Events are read from here on; what was before is nobody's business.
    Begins(u64),
    /// An event, and how many right before it are not to be had.
    Event(Box<Event>, u64),
    /// Events up to this number are not to be had.
    Missed { number: u64, count: u64 },
}

/// What the engine hears.
#[derive(Debug)]
pub(crate) enum Message {
    /// The stream has told something.
    Fresh,
    /// An attempt has ended.
    Settled(usize, DeliveryId, Outcome),
    End,
}
