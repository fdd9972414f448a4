// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control groups whose processes are nobody's, in the kernel half.

use std::collections::BTreeMap;

use bursar_model::{CgroupExtent, CgroupHierarchy, ExemptCgroup};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::Error;
use crate::pins::Pins;

const WHAT: &str = "say which control groups are exempt";

/// The table of them.
#[derive(Debug)]
pub(crate) struct ExemptCgroups(MapHandle);

impl ExemptCgroups {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self(pins.map("exempt_cgroups")?))
    }

    /// These and no others.
    pub(crate) fn put_in_force(&self, groups: &[ExemptCgroup]) -> Result<(), Error> {
        let mut wanted: BTreeMap<u64, u32> = BTreeMap::new();
        for group in groups {
            // Each hierarchy numbers its directories by itself.
            *wanted.entry(group.id).or_default() |= bits(group);
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

/// As lib/exempt.bpf.h has them.
const fn bits(group: &ExemptCgroup) -> u32 {
    let extent = match group.extent {
        CgroupExtent::SelfAndBelow => 1,
        CgroupExtent::Below => 2,
        CgroupExtent::Nothing => 4,
    };
    match group.hierarchy {
        CgroupHierarchy::Unified => extent,
        CgroupHierarchy::Memory => extent << 4,
    }
}
