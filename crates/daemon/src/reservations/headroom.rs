// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room below the bound that a request is about.

use bursar_model::{Bounds, Bytes};
use bursar_protocol::ReserveBound;

/// Room below a bound.
pub(super) struct Headroom {
    pub(super) held: Bytes,
    /// By us and the kernel half.
    pub(super) reserved: Bytes,
    /// By the kernel half.
    pub(super) elsewhere: Bytes,
    /// `None`: no bound.
    pub(super) most: Option<Bytes>,
    pub(super) bound: &'static str,
}

impl Headroom {
    /// What is free when `own` of what is reserved does not count.
    pub(super) fn free_beside(&self, own: Bytes) -> Option<Bytes> {
        let taken = self.held.saturating_add(self.reserved.saturating_sub(own));
        self.most.map(|most| most.saturating_sub(taken))
    }
}

/// The bound that counts, and what it is called. One that is only observed counts for nothing: nobody is refused.
pub(super) fn bound_of(bounds: &Bounds, bound: ReserveBound) -> Option<(&'static str, Bytes)> {
    if bounds.is_observed() {
        return None;
    }
    let limit = bounds.limit().map(|it| ("limit", it));
    let barrier = bounds.barrier().map(|it| ("barrier", it));
    match bound {
        ReserveBound::Limit => limit.or(barrier),
        ReserveBound::Barrier => barrier.or(limit),
    }
}
