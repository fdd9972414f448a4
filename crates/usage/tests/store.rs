// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Samples written, lost, damaged and read again.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bursar_model::{AccountId, Bytes, Subject, Uid, UsageSample};
use bursar_usage::{Entry, Store, Tier, Wanted};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

/// Midnight, UTC.
const DAY: u64 = 1_795_219_200;
const MINUTE: u64 = 60;
const LARGE: Bytes = Bytes::from_mib(1024);

fn entry(uid: u32, start: u64, held: u64) -> Entry {
    Entry {
        id: AccountId::of(Uid::new(uid)),
        name: format!("user{uid}"),
        sample: UsageSample {
            start,
            observed_ms: 60_000,
            mean: Bytes::new(held),
            max: Bytes::new(held + 1),
            limit: Some(Bytes::new(1000)),
            ..UsageSample::default()
        },
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(folder: &TempDir, now: u64) -> Store {
    Store::open(folder.path(), LARGE, now).unwrap()
}

fn wanted(uid: Option<u32>, from: u64, tier: Tier) -> Wanted {
    let named = |uid: u32| {
        let uid = Uid::new(uid);
        Subject::named(&bursar_model::Who::Uid(uid)).user(uid, &format!("user{uid}"))
    };
    Wanted {
        subject: uid.map(named),
        from,
        tier,
    }
}

fn starts(store: &mut Store, tier: Tier, now: u64) -> Vec<u64> {
    let series = store.series(&wanted(Some(1), 0, tier), &[], now);
    series.samples.iter().map(|it| it.start).collect()
}

fn file_of(folder: &TempDir, tier: &str) -> PathBuf {
    let entries = fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|it| it.file_name().unwrap().to_str().unwrap().starts_with(tier))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_day_of_minutes_becomes_quarters_and_a_day() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    for minute in 0..1440 {
        let at = DAY + minute * MINUTE;
        store.add(&[entry(1, at, minute << 20), entry(2, at, 5)], at + MINUTE);
    }
    let now = DAY + 86_400 + 5;
    let quarters = store
        .series(&wanted(Some(1), DAY, Tier::Quarter), &[], now)
        .samples;
    assert_eq!(quarters.len(), 96);
    // 15, 16 … 29
    let mib = |it: Bytes| (it.get() + (1 << 19)) >> 20;
    assert_eq!((mib(quarters[1].mean), mib(quarters[1].max)), (22, 29));
    assert_eq!(quarters[1].observed_ms, 900_000);
    let days = store
        .series(&wanted(Some(1), DAY, Tier::Day), &[], now)
        .samples;
    assert_eq!(days.len(), 1);
    assert_eq!((days[0].mean.get() + (1 << 10)) >> 19, 1439);
    assert_eq!(mib(days[0].max), 1439);
    assert_eq!(days[0].observed_ms, 86_400_000);
}

#[test]
fn the_present_is_in_every_tier_and_what_is_in_no_file_yet_too() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    for minute in 0..20 {
        let at = DAY + minute * MINUTE;
        store.add(&[entry(1, at, 10)], at + MINUTE);
    }
    let now = DAY + 20 * MINUTE + 30;
    let mut current = entry(1, DAY + 20 * MINUTE, 100);
    current.sample.observed_ms = 30_000;
    for (tier, count) in [(Tier::Minute, 21), (Tier::Quarter, 2), (Tier::Day, 1)] {
        let series = store.series(
            &wanted(Some(1), 0, tier),
            std::slice::from_ref(&current),
            now,
        );
        assert_eq!(series.samples.len(), count, "{tier:?}");
        assert_eq!(
            series.samples.last().unwrap().max,
            Bytes::new(101),
            "{tier:?}"
        );
        let observed: u32 = series.samples.iter().map(|it| it.observed_ms).sum();
        assert_eq!(observed, 20 * 60_000 + 30_000, "{tier:?}");
    }
}

#[test]
fn what_ended_while_nobody_ran_is_made_at_the_next_start() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    for minute in 0..10 {
        let at = DAY + minute * MINUTE;
        store.add(&[entry(1, at, 10)], at + 1);
    }
    drop(store);
    let later = DAY + 3 * 86_400;
    let mut store = open(&folder, later);
    // The minutes themselves may go now.
    fs::remove_file(file_of(&folder, "minutes")).unwrap();
    assert_eq!(starts(&mut store, Tier::Quarter, later), [DAY]);
    assert_eq!(starts(&mut store, Tier::Day, later), [DAY]);
    drop(store);
    let length = fs::metadata(file_of(&folder, "quarters")).unwrap().len();
    open(&folder, later);
    assert_eq!(
        fs::metadata(file_of(&folder, "quarters")).unwrap().len(),
        length,
        "made once"
    );
}

#[test]
fn half_a_record_costs_itself_and_zeros_cost_themselves() {
    let folder = folder();
    open(&folder, DAY).add(&[entry(1, DAY, 10)], DAY + 1);
    let path = file_of(&folder, "minutes");
    for torn in [vec![7; 30], vec![0; 64]] {
        OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(&torn)
            .unwrap();
    }
    let mut store = open(&folder, DAY);
    store.add(&[entry(1, DAY + MINUTE, 10)], DAY + 61);
    assert_eq!(
        starts(&mut store, Tier::Minute, DAY + 70),
        [DAY, DAY + MINUTE]
    );
    let facts = store.take_facts();
    assert!(facts.damaged >= 1, "{facts:?}");
    assert_eq!(fs::metadata(&path).unwrap().len() % 64, 0);
}

#[test]
fn a_file_that_is_none_of_ours_is_set_aside_and_a_new_one_begun() {
    let folder = folder();
    let path = folder.path().join(format!("minutes-{DAY}.usage"));
    for wrong in [&b"x"[..], &[0; 640], &[b'x'; 100]] {
        fs::write(&path, wrong).unwrap();
        let mut store = open(&folder, DAY);
        store.add(&[entry(1, DAY, 10)], DAY + 1);
        assert_eq!(starts(&mut store, Tier::Minute, DAY + 1), [DAY]);
        let facts = store.take_facts();
        assert_eq!(facts.set_aside, 1, "{wrong:?}");
        assert!(facts.remarks[0].contains("a new one is begun"), "{facts:?}");
        let aside = folder.path().join(format!("minutes-{DAY}.usage.damaged"));
        assert_eq!(fs::read(aside).unwrap(), wrong);
    }
}

#[test]
fn a_clock_that_jumps_loses_nothing_and_stops_nothing() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    let year = 365 * 86_400;
    let moments = [
        DAY,
        DAY + 10 * year,
        DAY + MINUTE,
        DAY - 86_400,
        DAY + 2 * MINUTE,
    ];
    for at in moments {
        store.add(&[entry(1, at, 10)], at + 1);
    }
    let now = DAY + 3 * MINUTE;
    let recent = starts(&mut store, Tier::Minute, now);
    assert_eq!(recent, [DAY - 86_400, DAY, DAY + MINUTE, DAY + 2 * MINUTE]);
    // An interval that was made and comes again is made anew out of all.
    let quarter = 900;
    store.add(&[entry(1, DAY + quarter, 10)], DAY + quarter);
    store.add(&[entry(1, DAY + 3 * MINUTE, 10)], DAY + 3 * MINUTE);
    store.add(&[entry(1, DAY + 2 * quarter, 10)], DAY + 2 * quarter);
    let series = store.series(
        &wanted(Some(1), DAY, Tier::Quarter),
        &[],
        DAY + 2 * quarter + 1,
    );
    let observed: Vec<u32> = series.samples.iter().map(|it| it.observed_ms).collect();
    assert_eq!(observed, [240_000, 60_000, 60_000]);
}

#[test]
fn a_part_of_a_minute_is_added_to_the_other() {
    let folder = folder();
    for _ in 0..2 {
        let mut part = entry(1, DAY, 10);
        part.sample.observed_ms = 20_000;
        part.sample.kills = 1;
        open(&folder, DAY).add(&[part], DAY + 30);
    }
    let samples = open(&folder, DAY)
        .series(&wanted(Some(1), 0, Tier::Minute), &[], DAY + 59)
        .samples;
    assert_eq!(
        (samples.len(), samples[0].kills, samples[0].observed_ms),
        (1, 2, 40_000)
    );
}

#[test]
fn who_gets_another_ones_number_does_not_get_his_past() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    let mut old = entry(1, DAY, 10);
    old.name = "old".into();
    store.add(&[old], DAY + 1);
    store.add(&[entry(1, DAY + MINUTE, 20)], DAY + 61);
    let mut unnamed = entry(1, DAY + 2 * MINUTE, 30);
    unnamed.name = "1".into();
    store.add(&[unnamed], DAY + 121);
    let now = DAY + 200;
    assert_eq!(
        starts(&mut store, Tier::Minute, now),
        [DAY + MINUTE, DAY + 2 * MINUTE]
    );
    let former = Wanted {
        subject: Some(Subject::named(&"old".parse().unwrap())),
        from: 0,
        tier: Tier::Minute,
    };
    let series = store.series(&former, &[], now);
    assert_eq!((series.account.as_str(), series.samples.len()), ("old", 1));
}

#[test]
fn the_bound_holds_and_what_does_not_fit_is_counted() {
    let folder = folder();
    let bound = Bytes::new(64 * 2000);
    let mut store = Store::open(folder.path(), bound, DAY).unwrap();
    for minute in 0..3000 {
        let at = DAY + minute * MINUTE;
        store.add(&[entry(1, at, 1), entry(2, at, 2)], at + 1);
        assert!(store.bytes() <= bound, "{}", store.bytes());
    }
    let facts = store.take_facts();
    assert_eq!((facts.unwritten, facts.damaged), (0, 0), "{facts:?}");
    let on_disk: u64 = fs::read_dir(folder.path())
        .unwrap()
        .map(|it| it.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(Bytes::new(on_disk), store.bytes());
    let now = DAY + 3000 * MINUTE;
    assert_eq!(
        store
            .series(&wanted(Some(1), 0, Tier::Day), &[], now)
            .samples
            .len(),
        3
    );
    // What can never fit.
    let many: Vec<Entry> = (0..3000).map(|uid| entry(uid, now, 1)).collect();
    store.add(&many, now + 1);
    let facts = store.take_facts();
    assert_eq!(facts.unwritten, 3000);
    assert!(facts.remarks[0].contains("usage.keep_bytes"), "{facts:?}");
    store.add(&[entry(1, now + MINUTE, 1)], now + 61);
    assert!(
        store.take_facts().remarks[0].contains("written to"),
        "and then it fits again"
    );
}

#[test]
fn a_directory_that_cannot_be_written_costs_samples_and_is_said_once() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    drop(folder);
    store.add(&[entry(1, DAY, 1)], DAY + 1);
    store.add(&[entry(1, DAY + MINUTE, 1)], DAY + 61);
    let facts = store.take_facts();
    assert_eq!((facts.unwritten, facts.remarks.len()), (2, 1), "{facts:?}");
}

/// A month of a thousand accounts; figures are counted beside it while it is written.
#[test]
fn a_month_of_a_thousand_accounts_is_summed_up_in_less_than_a_second() {
    let folder = folder();
    let mut store = open(&folder, DAY);
    let (accounts, quarters) = (1000_u32, 30 * 96_u64);
    let mut kills = vec![0_u64; accounts as usize];
    let mut most = vec![0_u64; accounts as usize];
    let mut state = 12_345_u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for day in 0..30 {
        let mut entries = Vec::new();
        let mut complete = Vec::new();
        for quarter in 0..96 {
            let at = DAY + day * 86_400 + quarter * 900;
            complete.push(at);
            for uid in 0..accounts {
                let mut entry = entry(uid, at, random(1 << 30));
                entry.sample.observed_ms = 900_000;
                entry.sample.kills = u32::from(random(500) == 0);
                let place = uid as usize;
                kills[place] += u64::from(entry.sample.kills);
                most[place] = most[place].max(entry.sample.max.get());
                entries.push(entry);
            }
        }
        store.append(Tier::Quarter, &entries, &complete, DAY + day * 86_400);
    }
    let now = DAY + 30 * 86_400;
    store.consolidate(now);
    let began = Instant::now();
    let summary = store.summary(&wanted(None, DAY, Tier::Quarter), &[], now);
    let took = began.elapsed();
    println!("{took:?} for {} samples", quarters * u64::from(accounts));
    assert_eq!(summary.accounts.len(), accounts as usize);
    for account in &summary.accounts {
        let place = account.uid.unwrap().get() as usize;
        assert_eq!(
            (account.kills, account.max.get()),
            (kills[place], most[place])
        );
        assert_eq!(account.held_seconds, 30 * 86_400);
    }
    assert_eq!(summary.parts.len(), 30 * 24);
    let killed: u64 = summary.parts.iter().map(|it| it.kills).sum();
    assert_eq!(killed, kills.iter().sum::<u64>());
    // Twice: the machine may be busy.
    let again = Instant::now();
    store.summary(&wanted(None, DAY, Tier::Quarter), &[], now);
    let best = took.min(again.elapsed());
    assert!(best < Duration::from_secs(1), "{best:?}");
}

/// Where the test below is to work: a process of its own, for only that may be held so short.
const FULL_DISK: &str = "BURSAR_TEST_FULL_DISK";

#[test]
fn a_full_disk_takes_no_half_records_and_what_comes_after_is_written() {
    let Some(path) = std::env::var_os(FULL_DISK).map(PathBuf::from) else {
        let folder = folder();
        // The signal that comes with the error would end it.
        let said = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_full_disk_takes_no_half_records_and_what_comes_after_is_written",
            ])
            .env(FULL_DISK, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains("1 passed"), "{text}");
        return;
    };
    let allow = |length: Option<u64>| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(
            Resource::Fsize,
            Rlimit {
                current: length,
                maximum,
            },
        )
        .unwrap();
    };
    let mut store = Store::open(&path, LARGE, DAY).unwrap();
    store.add(&[entry(1, DAY, 1)], DAY + 1);
    let before = store.bytes();
    allow(Some(before.get() + 20));
    store.add(&[entry(1, DAY + MINUTE, 1)], DAY + 61);
    assert_eq!(store.bytes(), before);
    let facts = store.take_facts();
    assert_eq!((facts.unwritten, facts.remarks.len()), (1, 1), "{facts:?}");
    allow(None);
    store.add(&[entry(1, DAY + 2 * MINUTE, 1)], DAY + 121);
    assert_eq!(
        starts(&mut store, Tier::Minute, DAY + 130),
        [DAY, DAY + 2 * MINUTE]
    );
    let facts = store.take_facts();
    assert_eq!((facts.unwritten, facts.damaged), (1, 0), "{facts:?}");
    assert!(
        facts.remarks[0].contains("again; 1 samples were lost"),
        "{facts:?}"
    );
}
