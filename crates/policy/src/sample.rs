// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans for tests.

use std::collections::BTreeMap;

use bursar_model::{BoundsSpec, Bytes, Gid, Mode, Uid};

use crate::{Coverage, Directory, Entry, Plan, plan};

/// The group "film", whose members are 1001 and 1002.
pub(crate) const FILM: u32 = 500;

/// Of these limits (`50M`, or `50M observe`), on a machine of 1,000 MiB whose users begin at 1000.
pub(crate) fn plan_of(limits: &[(&str, &str)]) -> Plan {
    let members = [1001, 1002].map(Uid::new).to_vec();
    let directory = Directory {
        users: BTreeMap::new(),
        groups: BTreeMap::from([("film".into(), Ok((Gid::new(FILM), members)))]),
    };
    let entries: Vec<Entry> = limits
        .iter()
        .map(|(who, limit)| {
            let (limit, mode) = match limit.strip_suffix(" observe") {
                Some(limit) => (limit, Mode::Observe),
                None => (*limit, Mode::Enforce),
            };
            Entry {
                who: who.parse().unwrap(),
                memory: Some(BoundsSpec::of_limit(limit.parse().unwrap())),
                granted: None,
                rows: BTreeMap::new(),
                mode,
            }
        })
        .collect();
    let coverage = Coverage {
        uid_min: Uid::new(1000),
        exempt: Vec::new(),
    };
    plan(&entries, &directory, Bytes::from_mib(1000), &coverage)
}
