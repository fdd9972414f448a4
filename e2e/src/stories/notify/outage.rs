// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A webhook's server is away for thirty minutes of the clock. Both programs are killed now and then meanwhile. It is told
//! only when it is named: `xtask/stage target/release/stories a_webhooks_server_is_away_for_thirty_minutes`.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::sink::{Mood, Sink};
use super::stage::Stage;
use super::{ALL_KINDS, once, random};
use crate::wait::within;
use crate::world::Binaries;

/// `BURSAR_OUTAGE_SECONDS` says another one, to try the story itself.
const OUTAGE: u64 = 1_800;
/// The longest pause between two attempts of one delivery, and some more.
const LATEST: Duration = Duration::from_secs(16 * 60);
const UID: u32 = 60739;

pub(super) fn half_an_hour(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "outage")?;
    let sink = Sink::start()?;
    let hook = format!("http://127.0.0.1:{}/hook", sink.port);
    stage.configure(&format!(
        "[[rule]]\nname = \"hook\"\nkinds = {ALL_KINDS}\nvia = \"webhook\"\nurl = {hook:?}\ntime_limit = \"10s\"\n"
    ))?;
    stage.world.daemon.limit(&UID.to_string(), "32M")?;
    stage.start_and_follow()?;
    let first = stage.status()?["read_up_to"]
        .as_u64()
        .context("a beginning")?;
    let asked_for = std::env::var("BURSAR_OUTAGE_SECONDS").ok();
    let outage = asked_for.map_or(Ok(OUTAGE), |it| it.parse())?;
    let mut seed = 39;
    let began = Instant::now();
    let mut deaths = 0;
    let moods = [Mood::Gone, Mood::Troubled, Mood::Silent, Mood::Gone];
    for round in 0.. {
        let passed = began.elapsed().as_secs();
        if passed >= outage {
            break;
        }
        let part = passed * moods.len() as u64 / outage;
        sink.set(moods[part as usize]);
        let mut hog = stage.world.hog(&format!("uid={UID} hold=40M pause"))?;
        hog.expect_killed()?;
        match round % 20 {
            9 => {
                stage.kill()?;
                stage.start()?;
            }
            19 => {
                stage.world.daemon.end(libc::SIGKILL)?;
                deaths += 1;
                stage.world.daemon.start()?;
            }
            _ => {}
        }
        thread::sleep(Duration::from_secs(3 + random(&mut seed, 8)));
    }
    ensure!(sink.posted().is_empty(), "{:?}", sink.posted());
    sink.set(Mood::Well);
    let newest = stage.newest()?;
    let back = Instant::now();
    let status = within(LATEST, "everything to be told", || {
        thread::sleep(Duration::from_secs(1));
        let status = stage.status()?;
        let is_read = status["read_up_to"].as_u64() >= Some(newest);
        Ok((is_read && status["rules"]["hook"]["waiting"] == 0).then_some(status))
    })
    .with_context(|| stage.log().unwrap_or_default())?;
    println!("all is told {:?} after the server was back", back.elapsed());
    let posted = sink.posted();
    let got = posted
        .iter()
        .map(|it| Ok((it.header("webhook-id").to_owned(), it.numbers()?)));
    let got: Vec<(String, Vec<u64>)> = got.collect::<Result<_>>()?;
    once("hook", &got, first, newest, &status).with_context(|| format!("{status:#}"))?;
    let dropped = status["rules"]["hook"]["dropped"].as_object();
    ensure!(dropped.is_some_and(|it| it.is_empty()), "{status:#}");
    // What bursard had in hand when it was killed had its number and is in no file. At most one each time.
    let missed = status["missed"].as_u64().context("how many were missed")?;
    println!("bursard was killed {deaths} times");
    ensure!(missed <= deaths, "{status:#}");
    Ok(())
}
