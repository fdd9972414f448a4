// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of what accounts held: right, quick, and harmless.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bursar_model::{AccountId, Bytes, EventKind, Uid, UsageSample};
use bursar_usage::{Entry, Store, Tier};

use super::{ACCOUNTS, OTHER, USER, said};
use crate::proc::status_of;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const COUNTED: Story = Story {
    name: "report_of_usage_counts_what_the_events_say_and_takes_nobody_s_markup",
    place: Place::Anywhere,
    tell: report,
};

pub(super) const MONTH: Story = Story {
    name: "report_of_a_month_of_a_thousand_accounts_takes_less_than_a_second",
    place: Place::Host,
    tell: month,
};

/// A comm that would be markup.
const MARKUP: &str = "<script>\"&";

fn report(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "report", "")?;
    world.let_users_in()?;
    world.daemon.start()?;
    let (user, other) = (USER.to_string(), OTHER.to_string());
    world.daemon.limit(&user, "64M")?;
    world.daemon.limit(&other, "512M")?;
    let _calm = world.there(&format!("uid={OTHER} hold=10M say=there pause"))?;
    for name in ["first", MARKUP, MARKUP] {
        let mut hog = world.hog(&format!("uid={USER} name={name} hold=80M pause"))?;
        hog.expect_killed()?;
    }
    until("three kills being known", || {
        Ok((world.daemon.events_of(EventKind::Kill)?.len() == 3).then_some(()))
    })?;
    let (code, text) = said(&world, 0, &["report", "--json"], None)?;
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let accounts = json["accounts"].as_array().context("accounts")?;
    ensure!(code == 0 && accounts.len() == 2, "{code} {text}");
    let worst = &accounts[0];
    ensure!(
        worst["account"] == user && worst["kills"] == 3 && worst["kills_kept"] == 3,
        "{text}"
    );
    let notices = world.daemon.events_of(EventKind::Notice)?.len();
    ensure!(worst["notices"] == notices, "{notices} notices: {text}");
    ensure!(
        worst["programs"][0]["comm"] == MARKUP && worst["programs"][0]["kills"] == 2,
        "{text}"
    );
    ensure!(
        json["never_near"][0] == other && json["suggestions"][0]["users"] == 2,
        "{text}"
    );

    let page = world.directory().join("week.html");
    let at = page.display().to_string();
    let (code, text) = said(&world, 0, &["report", "--html", &at], None)?;
    ensure!(code == 0, "{code} {text}");
    let mode = fs::metadata(&page)?.permissions().mode() & 0o777;
    let page = fs::read_to_string(&page)?;
    ensure!(
        !page.contains("<script") && page.contains("&lt;script&gt;&quot;&amp;"),
        "{page}"
    );
    ensure!(mode == 0o600, "{mode:o}");
    let (code, text) = said(&world, 0, &["report", "--csv"], None)?;
    ensure!(code == 0 && text.lines().count() == 3, "{code} {text}");
    let (code, text) = said(&world, 0, &["report"], Some("80"))?;
    println!("{text}");
    ensure!(
        code == 0 && text.lines().all(|it| it.chars().count() <= 80),
        "{code} {text}"
    );

    // Users see themselves and nobody else.
    let (code, text) = said(&world, OTHER, &["report", "--json"], None)?;
    ensure!(
        code == 0 && !text.contains(&user) && text.contains(&other),
        "{code} {text}"
    );
    let (code, text) = said(&world, OTHER, &["report", &user], None)?;
    ensure!(code == 3, "{code} {text}");
    let (code, text) = said(&world, 0, &["report", "--html", "/nowhere/week.html"], None)?;
    ensure!(
        code == 1 && text.contains("does the directory exist"),
        "{code} {text}"
    );
    Ok(())
}

/// Of a store that was written here, with figures counted beside it.
fn month(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "month", "")?;
    let usage = world.directory().join("state/usage");
    fs::create_dir_all(&usage)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let today = now - now % 86_400;
    let mut store = Store::open(&usage, Bytes::from_mib(512), now)?;
    let mut kills = vec![0_u64; ACCOUNTS as usize];
    let mut most = vec![0_u64; ACCOUNTS as usize];
    // Quarter-hours of 29 days and today's that have ended.
    for day in 0..30 {
        let begins = today - (29 - day) * 86_400;
        let starts = (0..96)
            .map(|it| begins + it * 900)
            .filter(|it| it + 900 <= now);
        let (mut entries, mut complete) = (Vec::new(), Vec::new());
        for start in starts {
            complete.push(start);
            for place in 0..ACCOUNTS {
                let mixed = (start / 900)
                    .wrapping_mul(0x9e37_79b9)
                    .wrapping_add(u64::from(place) * 77_777)
                    >> 7;
                let sample = UsageSample {
                    start,
                    observed_ms: 900_000,
                    mean: Bytes::new(mixed % (1 << 29)),
                    max: Bytes::new(mixed % (1 << 30)),
                    limit: Some(Bytes::from_mib(1024)),
                    notices: 0,
                    refusals: 0,
                    kills: u32::from(mixed % 401 == 0),
                };
                let index = place as usize;
                kills[index] += u64::from(sample.kills);
                most[index] = most[index].max(sample.max.get());
                let name = format!("user{place}");
                entries.push(Entry {
                    id: AccountId::of(Uid::new(60_000 + place)),
                    name,
                    sample,
                });
            }
        }
        store.append(Tier::Quarter, &entries, &complete, begins);
    }
    drop(store);
    world.daemon.start()?;
    let (mut fastest, mut text) = (Duration::MAX, String::new());
    for _ in 0..3 {
        let began = Instant::now();
        let since = today - 29 * 86_400;
        let since = bursar_host::clock::rfc3339(UNIX_EPOCH + Duration::from_secs(since));
        let (code, said) = said(&world, 0, &["report", "--since", &since, "--json"], None)?;
        fastest = fastest.min(began.elapsed());
        ensure!(code == 0, "{said}");
        text = said;
    }
    let json: serde_json::Value = serde_json::from_str(&text)?;
    let accounts = json["accounts"].as_array().context("accounts")?;
    ensure!(accounts.len() == ACCOUNTS as usize, "{}", accounts.len());
    for account in accounts {
        let uid = account["uid"].as_u64().context("uid")?;
        let index = usize::try_from(uid - 60_000)?;
        ensure!(
            account["kills"] == kills[index] && account["max"] == most[index],
            "{account}"
        );
    }
    let resident = status_of(world.daemon.pid()?, "VmHWM")?;
    println!(
        "        a month of {ACCOUNTS} accounts: {fastest:.2?}; bursard was {resident} KiB at most"
    );
    ensure!(fastest < Duration::from_secs(1), "{fastest:?}");
    Ok(())
}
