// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The moment at which the next temporary limit ends, waited for on the wall clock.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::SystemTime;

use anyhow::{Context, Result};
use bursar_host::Alarm;
use bursar_model::Until;

#[derive(Debug)]
pub(crate) struct Expiry(Alarm);

impl Expiry {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Alarm::new().context("make a timer on the clock")?))
    }

    /// From now on it is readable when this moment has come, or when the clock was set.
    pub(crate) fn await_end(&self, nearest: Option<Until>) {
        let moment = nearest.map(|it| SystemTime::from(it.moment()));
        if let Err(error) = self.0.set(moment) {
            tracing::error!(
                "a temporary limit will not end by itself: {error}; reload bursard then"
            );
        }
    }

    /// It has come, or the clock was set.
    pub(crate) fn take(&self) {
        self.0.take();
    }
}

impl AsFd for Expiry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
