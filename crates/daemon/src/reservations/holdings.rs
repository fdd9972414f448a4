// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What reservations need of the backend.

use anyhow::Result;
use bursar_model::{AccountId, Bytes, Pages};

/// What reservations need of the backend.
pub(crate) trait Holdings {
    /// What an account holds at this moment.
    fn held_now(&mut self, id: AccountId) -> Result<Bytes>;

    /// Most by which that may be short.
    fn slack(&self) -> Bytes;

    /// Told whenever the sum of an account's reservations has changed: a kernel half that reserves, too,
    /// leaves room for it.
    fn reserved_now(&mut self, _id: AccountId, _reserved: Pages) -> Result<()> {
        Ok(())
    }

    /// What the kernel half has reserved at this moment, by the gate's prctl (docs/explanation/gate.md).
    fn reserved_elsewhere(&mut self, _id: AccountId) -> Bytes {
        Bytes::ZERO
    }

    /// Told of refusals that were the last word. Whether they are kept with the account's failcnt; where
    /// nobody keeps that beyond bursard's end, the coordinator remembers them.
    fn keep_refusals(&mut self, _id: AccountId, _count: u64) -> Result<bool> {
        Ok(false)
    }
}
