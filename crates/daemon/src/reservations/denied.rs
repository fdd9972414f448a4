// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why nothing was reserved.

use bursar_model::{Bytes, Pid};

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
        /// Pages that the process keeps, where it has said more.
        kept: Option<u64>,
    },
    /// The requester has ended already.
    #[error("process {0} has ended; a reservation lasts no longer than its process")]
    Gone(Pid),
    /// Too many reserve.
    #[error("{0}")]
    TooMany(String),
    /// The machine could not.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl Denied {
    /// Of a process that has said that it keeps `said` pages: so many it does.
    pub(super) fn keeping(mut self, said: u64, pages: u64) -> Self {
        if let Self::Full { kept, .. } = &mut self {
            *kept = (pages < said).then_some(pages);
        }
        self
    }
}

pub(super) fn senseless(pages: u64, least: u64) -> Denied {
    Denied::Senseless(format!(
        "cannot reserve {pages} pages (at least {least}): ask for 1 page or more, and for no more than is wanted"
    ))
}
