// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What all ways of telling have in common.

use std::collections::BTreeMap;

use bursar_model::Event;
use serde::Serialize;

use crate::delivery::{Delivery, Outcome, Recipient};

/// A delivery to be made now.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Unique everywhere, and the same however often it is tried.
    pub(crate) id: String,
    pub(crate) delivery: Delivery,
}

/// A way of telling.
pub(crate) trait Tell: Send {
    /// Tries once; may take its time.
    fn tell(&mut self, job: &Job) -> Outcome;
}

/// A delivery for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Envelope<'a> {
    delivery: &'a str,
    attempt: u32,
    /// An attempt before may have come through.
    may_repeat: bool,
    rule: &'a str,
    host: &'a str,
    to: Recipient,
    count: u64,
    kinds: &'a BTreeMap<String, u64>,
    events: &'a [Event],
}

impl<'a> Envelope<'a> {
    pub(crate) fn new(job: &'a Job, host: &'a str) -> Self {
        let delivery = &job.delivery;
        Self {
            delivery: &job.id,
            attempt: delivery.attempts,
            may_repeat: delivery.may_repeat,
            rule: &delivery.rule,
            host,
            to: delivery.to,
            count: delivery.count(),
            kinds: &delivery.kinds,
            events: &delivery.events,
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // No map in it has keys that are no text: it cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}
