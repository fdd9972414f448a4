// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two hundred users breach again and again: each has one digest of it, and administrators have one. Ten minutes of
//! breaches and a quarter of an hour of gathering are played ten times as fast: a minute, and 90 seconds.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use super::stage::{MANY, Stage, recording_script};
use crate::wait::within;
use crate::world::Binaries;

const BREACHING: Duration = Duration::from_secs(60);
const GATHER: Duration = Duration::from_secs(90);
/// What comes later than that is no part of the digests.
const QUIET: Duration = Duration::from_secs(15);

pub(super) fn one_each(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "digests")?;
    let sendmail = stage.script("sendmail", &recording_script(&stage.at("got"), "mail"))?;
    let gather = format!("{}s", GATHER.as_secs());
    stage.configure(&format!(
        "[mail]\nsendmail = [{sendmail:?}]\nadministrators = [\"root\"]\n\
         [[rule]]\nname = \"users\"\nkinds = [\"kill\", \"notice\"]\nwho = \"user\"\nvia = \"mail\"\ngather = {gather:?}\n\
         [[rule]]\nname = \"admins\"\nkinds = [\"kill\"]\nwho = \"administrators\"\nvia = \"mail\"\ngather = {gather:?}\n"
    ))?;
    for uid in MANY {
        stage.world.daemon.limit(&uid.to_string(), "24M")?;
    }
    stage.start_and_follow()?;
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < BREACHING {
        for uid in MANY {
            let mut hog = stage.world.hog(&format!("uid={uid} hold=30M pause"))?;
            hog.expect_killed()?;
        }
        rounds += 1;
    }
    let kills = stage.world.daemon.events_of(EventKind::Kill)?.len();
    println!(
        "{} users, {rounds} rounds in {:?}, {kills} kills remembered by bursard",
        MANY.count(),
        began.elapsed()
    );
    ensure!(stage.got("mail")?.is_empty(), "a mail before its time");
    let users = MANY.count();
    let mails = within(GATHER * 2, "all mails", || {
        let mails = stage.got("mail")?;
        Ok((mails.len() > users).then_some(mails))
    })?;
    let status = stage.settle(stage.newest()?)?;
    thread::sleep(QUIET);
    ensure!(stage.got("mail")?.len() == mails.len(), "a mail too many");
    let mut by_recipient: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for mail in &mails {
        let arguments = mail.lines().map_while(|it| it.strip_prefix("argument: "));
        let to = arguments.last().context("a recipient")?;
        by_recipient.entry(to).or_default().push(mail);
    }
    ensure!(
        by_recipient.len() == users + 1 && by_recipient.values().all(|its| its.len() == 1),
        "{:?}",
        by_recipient.keys()
    );
    ensure!(by_recipient.contains_key("root"), "no mail to root");
    let counts = |rule: &str| status["rules"][rule].clone();
    let (to_users, to_admins) = (counts("users"), counts("admins"));
    ensure!(
        to_users["messages"] == users && to_admins["messages"] == 1,
        "{status:#}"
    );
    // Each was killed in each round.
    ensure!(
        to_admins["delivered"].as_u64() >= Some((rounds * users) as u64),
        "{rounds} rounds: {status:#}"
    );
    for rule in [&to_users, &to_admins] {
        ensure!(rule["delivered"] == rule["matched"], "{status:#}");
    }
    ensure!(status["missed"] == 0, "{status:#}");
    Ok(())
}
