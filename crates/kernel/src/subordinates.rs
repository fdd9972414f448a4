// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose subordinate uids are, in the kernel half.

use std::collections::BTreeSet;
use std::iter;
use std::os::fd::AsFd;

use bursar_model::Uid;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};

use crate::abi::{self, abi_constant, ledger_state, set_subordinates_args, subordinate};
use crate::pins::Pins;
use crate::{Error, KernelHalf, call};

/// A half of the map has so many ranges.
const ROOM: u32 = abi_constant::SUBORDINATES.0;

/// A range of uids, both ends included, and the user who pays for what they own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    /// The first.
    pub first: Uid,
    /// The last.
    pub last: Uid,
    /// Whose they are.
    pub subuid_owner: Uid,
}

impl KernelHalf {
    /// Ranges of subordinate uids that there is room for.
    pub const MOST_SUBORDINATES: usize = abi::abi_constant::SUBORDINATES.0 as usize;
    /// Subordinate uids that are remembered, of processes outside of user namespaces.
    pub const MOST_SUBUIDS_MET: usize = abi::abi_constant::SUBUIDS_MET.0 as usize;

    /// Says who pays for subordinate uids: for processes that have one outside of user namespaces, and for files that they
    /// own from the next count on.
    /// The ranges are sorted and disjoint; beyond [`KernelHalf::MOST_SUBORDINATES`] they are left out.
    ///
    /// # Errors
    /// When a map or a program cannot be used; then those before stand.
    pub fn set_subordinates(&self, ranges: &[UidRange]) -> Result<(), Error> {
        self.subordinates.put_in_force(ranges, &self.read_state()?)
    }

    /// Subordinate uids that processes had outside of user namespaces: of all with the same low eight bits the last.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn subuids_met(&self) -> Result<BTreeSet<Uid>, Error> {
        let met = self.read_state()?.subuids_met.into_iter();
        Ok(met.filter(|&uid| uid != 0).map(Uid::new).collect())
    }
}

/// The table of subordinate uids.
#[derive(Debug)]
pub(crate) struct Subordinates {
    ranges: MapHandle,
    exchange: ProgramHandle,
}

impl Subordinates {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            ranges: pins.map("subordinates")?,
            exchange: pins.program("set_subordinates")?,
        })
    }

    /// Puts these in force, which are sorted and disjoint, in place of those in `state`.
    pub(crate) fn put_in_force(
        &self,
        ranges: &[UidRange],
        state: &ledger_state,
    ) -> Result<(), Error> {
        const WHAT: &str = "say whose subordinate uids are";
        // The half that nobody reads.
        let begin = if state.subordinates == 0 { ROOM } else { 0 };
        let nobodys = subordinate {
            first: u32::MAX,
            ..subordinate::default()
        };
        let ranges = ranges.iter().map(|range| subordinate {
            first: range.first.get(),
            last: range.last.get(),
            owner: range.subuid_owner.get(),
            pad: 0,
        });
        let mut keys = Vec::new();
        let mut values = Vec::new();
        for (index, value) in (begin..begin + ROOM).zip(ranges.chain(iter::repeat(nobodys))) {
            keys.extend_from_slice(&index.to_ne_bytes());
            values.extend_from_slice(abi::bytes_of(&value));
        }
        self.ranges
            .update_batch(&keys, &values, ROOM, MapFlags::ANY, MapFlags::ANY)
            .map_err(Error::io(WHAT))?;
        let mut args = set_subordinates_args {
            subordinates: begin,
            pad: 0,
        };
        call::run(self.exchange.as_fd(), WHAT, abi::bytes_of_mut(&mut args))
    }
}
