// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose subordinate uids are, in the kernel half.

use std::collections::BTreeSet;
use std::iter;
use std::os::fd::AsFd;

use bursar_model::Uid;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};

use crate::abi::{self, abi_constant, ledger_state, set_subordinates_args, subordinate};
use crate::mapped::Mapped;
use crate::pins::Pins;
use crate::{Error, call};

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

/// Who pays for subordinate uids.
#[derive(Debug)]
pub struct SubordinateTable {
    ranges: MapHandle,
    exchange: ProgramHandle,
    state: Mapped<ledger_state>,
}

impl SubordinateTable {
    /// Ranges that there is room for.
    pub const MOST: usize = abi_constant::SUBORDINATES.0 as usize;
    /// Subordinate uids that are remembered, of processes outside of user namespaces.
    pub const MOST_MET: usize = abi_constant::SUBUIDS_MET.0 as usize;

    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            ranges: pins.map("subordinates")?,
            exchange: pins.program("set_subordinates")?,
            state: Mapped::new(&pins.map("state")?)?,
        })
    }

    /// Subordinate uids that processes had outside of user namespaces: of all with the same low eight bits the last.
    pub fn met(&self) -> BTreeSet<Uid> {
        let state = self.state.get(0);
        let met = state.into_iter().flat_map(|it| it.subuids_met);
        met.filter(|&uid| uid != 0).map(Uid::new).collect()
    }

    /// Puts these in force in place of those before: for processes that have one of these uids outside of user namespaces,
    /// and for files that it owns from the next count on. They are sorted and disjoint; beyond [`Self::MOST`] they are
    /// left out.
    ///
    /// # Errors
    /// When a map or a program cannot be used; then those before stand.
    pub fn put_in_force(&self, ranges: &[UidRange]) -> Result<(), Error> {
        const WHAT: &str = "say whose subordinate uids are";
        // The half that nobody reads.
        let in_force = self.state.get(0).map_or(0, |it| it.subordinates);
        let begin = if in_force == 0 { ROOM } else { 0 };
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
