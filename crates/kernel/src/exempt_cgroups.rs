// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups whose processes are nobody's, in the kernel half.

use std::collections::BTreeMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::Error;
use crate::pins::Pins;

const WHAT: &str = "say which control groups are exempt";
/// lib/exempt.bpf.h
const SELF: u32 = 1;
const BELOW: u32 = 2;

/// A control group by the kernel's number, and whether only what is below it is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupNumber {
    /// The inode of its directory.
    pub id: u64,
    /// Not itself.
    pub is_below: bool,
}

/// The table of them.
#[derive(Debug)]
pub(crate) struct ExemptCgroups(MapHandle);

impl ExemptCgroups {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self(pins.map("exempt_cgroups")?))
    }

    /// These and no others.
    pub(crate) fn put_in_force(&self, groups: &[CgroupNumber]) -> Result<(), Error> {
        let mut wanted: BTreeMap<u64, u32> = BTreeMap::new();
        for group in groups {
            let value = if group.is_below { BELOW } else { SELF };
            // Itself and what is below it is more.
            let known = wanted.entry(group.id).or_insert(value);
            *known = (*known).min(value);
        }
        let keys: Vec<Vec<u8>> = self.0.keys().collect();
        for key in keys {
            let id = <[u8; 8]>::try_from(key.as_slice()).map(u64::from_ne_bytes);
            if id.is_ok_and(|id| !wanted.contains_key(&id)) {
                self.0.delete(&key).map_err(Error::io(WHAT))?;
            }
        }
        for (id, value) in wanted {
            self.0
                .update(&id.to_ne_bytes(), &value.to_ne_bytes(), MapFlags::ANY)
                .map_err(Error::io(WHAT))?;
        }
        Ok(())
    }
}
