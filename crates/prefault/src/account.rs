// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room in the account that pays: reserved at bursard before anything is touched, so that nobody of the
//! account is killed for what is locked here. Without bursard, or without a limit, there is nothing to ask.

use bursar_reserve::{Ask, Bound, Contact, Refused, socket_path};

use crate::machine;

/// A daemon that does not answer within this is gone on without.
const TIMEOUT_NS: u64 = 500_000_000;

/// Lasts until it is dropped: by then the memory is resident, and held speaks for it.
pub(crate) struct Reservation(Contact);

impl Reservation {
    /// So many bytes, up to the account's barrier; `None`: there is no room.
    pub(crate) fn of(bytes: u64) -> Option<Self> {
        let page = machine::page_bytes() as u64;
        let mut reservation = Self(Contact::NONE);
        let pages = bytes.div_ceil(page);
        if pages == 0 {
            return Some(reservation);
        }
        let ask = Ask::Reserve {
            pages,
            bound: Bound::Barrier,
        };
        match reservation.0.ask(socket_path(), ask, TIMEOUT_NS, true) {
            Err(Refused::Full { .. }) => None,
            // Nobody enforces a limit, or nobody says which.
            Ok(_) | Err(_) => Some(reservation),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.close();
    }
}
