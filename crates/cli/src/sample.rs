// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests show: accounts, events and a daemon as they may come over the socket.

use bursar_model::{
    AccountKind, AccountStatus, BackendKind, Bytes, Candidate, DaemonCounts, DaemonStatus, Event,
    EventKind, GateMode, GateStatus, KernelHalfStatus, Nanos, Pid, ReapStatus, Resource, Row,
    Trigger, Uid,
};
use jiff::tz::{Offset, TimeZone};

use crate::clock::Clock;
use crate::style::{Charset, Paint, Style};

/// A hostile name as it arrives: made printable by the daemon, but long and full of backslashes.
pub(crate) const HOSTILE: &str = r"\x1b[2Jbursar: killed\nroot";

/// 06:15:03 somewhere one hour east of Greenwich.
pub(crate) fn clock() -> Clock {
    let zone = TimeZone::fixed(Offset::constant(1));
    Clock::stopped("2026-11-21T05:15:03Z".parse().unwrap(), zone)
}

/// A UTF-8 terminal without colours.
pub(crate) const fn style(width: usize) -> Style {
    Style {
        width: Some(width),
        charset: Charset::Unicode,
        paint: Paint::Plain,
    }
}

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
    AccountStatus {
        account: name.into(),
        uid: (!name.starts_with('=')).then(|| Uid::new(uid)),
        kind: if name.starts_with('=') {
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

/// `account` with a history.
pub(crate) fn with_history(mut account: AccountStatus, failcnt: u64, kills: u64) -> AccountStatus {
    if let Some(row) = account.resources.get_mut(&Resource::Memory) {
        row.failcnt = failcnt;
    }
    account.kills = kills;
    account.notices = kills.saturating_add(1);
    account
}

/// A healthy daemon with `accounts`.
pub(crate) fn daemon(accounts: Vec<AccountStatus>) -> DaemonStatus {
    DaemonStatus {
        dry_run: false,
        version: "0.1.0".into(),
        pid: 812,
        kernel_half: KernelHalfStatus {
            attached: true,
            trigger: Some(BackendKind::Bpf),
            event_trigger: true,
            timer: true,
            signals_others: true,
            gate: GateStatus {
                mode: GateMode::Strict,
                reason: None,
                files: None,
            },
            ..KernelHalfStatus::default()
        },
        error_bound_bytes: Bytes::new(512 << 10),
        ram_bytes: Bytes::from_mib(24 << 10),
        reaps: ReapStatus::default(),
        accounts,
        remarks: Vec::new(),
        counts: DaemonCounts::default(),
    }
}

/// Accounts of every sort.
pub(crate) fn accounts() -> Vec<AccountStatus> {
    vec![
        with_history(account("alice", 1000, 410, Some(512)), 2, 1),
        account("bob", 1001, 90, None),
        account("carol", 1002, 0, Some(8 << 10)),
        with_history(account("=render", 0, 7900, Some(8 << 10)), 1_234_567, 41),
        account("dave", 1003, 470, Some(512)),
        with_history(
            account("bernadette.vanderbilt@corp.example", 1004, 1500, Some(1024)),
            3,
            3,
        ),
    ]
}

fn at(seconds: u32, kind: EventKind) -> Event {
    let mut event = Event::new(kind);
    event.time = format!("2026-11-21T05:12:{seconds:02}.000004Z");
    event
}

/// A kill of the account `account` as the kernel half tells it.
pub(crate) fn kill(account: &str) -> Event {
    let candidate =
        |pid, comm: &str, mib| Candidate::new(Pid::new(pid), comm.into(), Bytes::from_mib(mib));
    Event {
        account: Some(account.into()),
        uid: Some(Uid::new(1000)),
        pid: Some(Pid::new(4242)),
        comm: Some("python3".into()),
        trigger: Some(Trigger::Event),
        held: Some(Bytes::new(512 * 1024 * 1024 + 200 * 1024)),
        limit: Some(Bytes::from_mib(512)),
        overcommit: Some(Bytes::new(200 * 1024)),
        victim_bytes: Some(Bytes::from_mib(301)),
        candidates: vec![
            candidate(4242, "python3", 301),
            candidate(4243, HOSTILE, 96),
            candidate(900, "bash", 4),
        ],
        candidates_met: Some(11),
        latency_ns: Some(Nanos::new(38_400)),
        ..at(3, EventKind::Kill)
    }
}

/// Its memory is back.
pub(crate) fn reaped() -> Event {
    Event {
        account: Some("alice".into()),
        uid: Some(Uid::new(1000)),
        pid: Some(Pid::new(4242)),
        comm: Some("python3".into()),
        freed_bytes: Some(Bytes::from_mib(301)),
        duration_ns: Some(Nanos::new(6_200_000)),
        bytes_per_second: Some(Bytes::from_mib(48_548)),
        method: Some("process_mrelease".into()),
        ..at(3, EventKind::Reaped)
    }
}

/// It is not.
pub(crate) fn unreaped() -> Event {
    Event {
        freed_bytes: Some(Bytes::ZERO),
        duration_ns: Some(Nanos::new(2_000_000_000)),
        bytes_per_second: None,
        method: None,
        reason: Some("somebody holds its memory's lock".into()),
        ..reaped()
    }
}

/// One event of every kind.
pub(crate) fn events() -> Vec<Event> {
    let alice = |seconds, kind| Event {
        account: Some("alice".into()),
        ..at(seconds, kind)
    };
    let hostile = Some(HOSTILE.to_owned());
    vec![
        Event {
            reason: Some("loaded 7 programs".into()),
            ..at(0, EventKind::Attached)
        },
        Event {
            limit: Some(Bytes::from_mib(512)),
            reason: Some("root set alice to 512M".into()),
            ..alice(0, EventKind::LimitChanged)
        },
        Event {
            held: Some(Bytes::from_mib(461)),
            limit: Some(Bytes::from_mib(512)),
            ..alice(1, EventKind::Notice)
        },
        Event {
            pid: Some(Pid::new(4243)),
            comm: hostile,
            held: Some(Bytes::from_mib(490)),
            limit: Some(Bytes::from_mib(512)),
            reason: Some("mmap of 64 MiB".into()),
            ..alice(2, EventKind::Refused)
        },
        kill("alice"),
        reaped(),
        Event {
            held: Some(Bytes::from_mib(530)),
            limit: Some(Bytes::from_mib(512)),
            trigger: Some(Trigger::Timer),
            ..alice(4, EventKind::NoVictim)
        },
        Event {
            pid: Some(Pid::new(4243)),
            trigger: Some(Trigger::Notifier),
            reason: Some("the process was gone".into()),
            ..alice(5, EventKind::KillFailed)
        },
        at(6, EventKind::Reloaded),
        Event {
            reason: Some("3 events did not fit".into()),
            ..at(7, EventKind::Lost)
        },
        at(8, EventKind::Released),
    ]
}
