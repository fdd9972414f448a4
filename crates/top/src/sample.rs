// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests show.

use std::time::Duration;

use bursar_model::{AccountKind, AccountStatus, Bytes, Resource, Row, Uid};

use crate::{Machine, Sample};

/// An account holding `held` of `limit` MiB, with the default notice and barrier.
pub(crate) fn account(name: &str, uid: u32, held: u64, limit: Option<u64>) -> AccountStatus {
    let limit = limit.map(Bytes::from_mib);
    let row = Row {
        held: Bytes::from_mib(held),
        maxheld: Bytes::from_mib(held + 17),
        notice: limit.map(|limit| limit.scaled(9, 10)),
        barrier: limit.map(|limit| limit.scaled(95, 100)),
        limit,
        failcnt: 0,
        reserved: Bytes::ZERO,
    };
    let is_shared = name.starts_with('=');
    AccountStatus {
        account: name.into(),
        uid: (!is_shared).then(|| Uid::new(uid)),
        kind: if is_shared {
            AccountKind::Shared
        } else {
            AccountKind::User
        },
        mode: bursar_model::Mode::Enforce,
        processes: 3,
        resources: [(Resource::Memory, row)].into(),
        dying: Bytes::ZERO,
        unkillable: Bytes::ZERO,
        committed: None,
        unmapped: Bytes::ZERO,
        stuck: Bytes::ZERO,
        reserved: Bytes::ZERO,
        correction: None,
        kills: 0,
        notices: 0,
    }
}

pub(crate) fn with_kills(mut account: AccountStatus, kills: u64) -> AccountStatus {
    account.kills = kills;
    account.notices = kills.saturating_mul(3);
    if let Some(row) = account.resources.get_mut(&Resource::Memory) {
        row.failcnt = kills.saturating_mul(2);
    }
    account
}

/// An answer so many seconds after the start.
pub(crate) fn sample(seconds: u64, accounts: Vec<AccountStatus>) -> Sample {
    Sample {
        at: Duration::from_secs(seconds),
        time: format!("06:12:{seconds:02}"),
        machine: Machine {
            ram: Bytes::from_mib(24 << 10),
            available: Some(Bytes::from_mib(20_100)),
            state: "kernel half attached, limits hold by event and timer; held is exact to 512 KiB; gate: strict".into(),
            tone: None,
            notes: Vec::new(),
        },
        accounts,
    }
}
