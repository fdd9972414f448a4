// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same for programs: `bursar top --json`, one a line. Sizes are bytes.

use bursar_model::{Bytes, Uid};
use serde::Serialize;

use crate::{Account, Machine, Top};

/// One look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Record {
    /// When the look was taken, RFC 3339.
    pub time: String,
    /// Memory of the machine.
    pub ram_bytes: Bytes,
    /// What can be had of it.
    pub available_bytes: Option<Bytes>,
    /// Whether limits hold, in words.
    pub state: String,
    /// What else to know, in words.
    pub notes: Vec<String>,
    /// The accounts, by name.
    pub accounts: Vec<AccountRecord>,
}

/// One account in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountRecord {
    /// Its name.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Address spaces charged to it.
    pub processes: u32,
    /// Held.
    pub held: Bytes,
    /// The most ever held.
    pub maxheld: Bytes,
    /// The notice level.
    pub notice: Option<Bytes>,
    /// The barrier.
    pub barrier: Option<Bytes>,
    /// The limit.
    pub limit: Option<Bytes>,
    /// Growth of the last seconds, negative where it shrinks; null at the first look.
    pub growth_bytes_per_second: Option<i64>,
    /// Until the limit at this rate; null where it does not grow towards one.
    pub seconds_to_limit: Option<u64>,
    /// Refusals and breaches answered.
    pub failcnt: u64,
    /// Kills.
    pub kills: u64,
    /// Notices.
    pub notices: u64,
    /// Refusals since the start of `bursar top`.
    pub failcnt_since: u64,
    /// Kills since.
    pub kills_since: u64,
    /// Notices since.
    pub notices_since: u64,
}

impl Top {
    /// What is known now; `None` before bursard first answered.
    pub fn record(&self, time: String) -> Option<Record> {
        let Machine {
            ram,
            available,
            state,
            notes,
            ..
        } = self.machine()?.clone();
        Some(Record {
            time,
            ram_bytes: ram,
            available_bytes: available,
            state,
            notes,
            accounts: self.accounts().map(AccountRecord::of).collect(),
        })
    }
}

impl AccountRecord {
    fn of(account: &Account) -> Self {
        let row = account.memory();
        let status = &account.status;
        Self {
            account: status.account.clone(),
            uid: status.uid,
            processes: status.processes,
            held: row.held,
            maxheld: row.maxheld,
            notice: row.notice,
            barrier: row.barrier,
            limit: row.limit,
            growth_bytes_per_second: account.pace.rate(),
            seconds_to_limit: account.pace.time_to(row.limit).map(|it| it.as_secs()),
            failcnt: row.failcnt,
            kills: status.kills,
            notices: status.notices,
            failcnt_since: account.new_refusals(),
            kills_since: account.new_kills(),
            notices_since: account.new_notices(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sample::{account, sample};
    use crate::{Input, Top};

    #[test]
    fn programs_get_rates_and_bounds() {
        let mut top = Top::default();
        assert_eq!(top.record(String::new()), None);
        for (seconds, held) in [(0, 100), (1, 110)] {
            let accounts = vec![account("alice", 1000, held, Some(200))];
            top.on(Input::Sample(Box::new(sample(seconds, accounts))));
        }
        let record = top.record("2026-11-21T05:12:03Z".into()).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&record).unwrap());
    }
}
