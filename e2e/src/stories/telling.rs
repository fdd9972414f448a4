// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users read on their terminals, and that nobody is kept from it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use crate::hog::Hog;
use crate::mount_namespace::enter_before_exec;
use crate::runner::{Place, Story};
use crate::terminal::Terminal;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        // Kills as fast as these come take a machine.
        name: "a_storm_of_kills_keeps_no_message_back_and_bursards_end_waits_for_none",
        place: Place::Host,
        tell: storm,
    },
    Story {
        name: "the_administrators_hint_stands_in_messages_quota_and_why",
        place: Place::Anywhere,
        tell: hinted,
    },
    Story {
        name: "in_a_shared_account_the_owner_is_told_and_others_only_that_it_was_a_program",
        place: Place::Anywhere,
        tell: shared,
    },
    Story {
        name: "files_are_named_where_bursard_itself_sees_another_directory",
        place: Place::Anywhere,
        tell: named_files,
    },
];

const HINTED: u32 = 60429;
const HINT: &str = "for larger jobs use sbatch: https://wiki.example.org";

fn hinted(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "hint", &format!("[messages]\nhint = {HINT:?}\n"))?;
    world.let_users_in()?;
    world.daemon.start()?;
    world.daemon.limit(&HINTED.to_string(), "64M")?;
    let mut terminal = Terminal::of(HINTED)?;
    let at = terminal.path().display().to_string();
    let _login = world.there(&format!(
        "uid={HINTED} session terminal={at} say=there pause"
    ))?;
    let mut hog = world.hog(&format!("uid={HINTED} hold=60M sleep=1500 hold=10M pause"))?;
    terminal.shows("bursar: your programs hold", Duration::from_secs(30))?;
    terminal.shows(
        &format!("(see: bursar quota); {HINT}"),
        Duration::from_secs(30),
    )?;
    terminal.shows("bursar: killed your program hog", Duration::from_secs(30))?;
    terminal.shows(
        &format!("(see: bursar why); {HINT}"),
        Duration::from_secs(30),
    )?;
    for command in ["quota", "why"] {
        let mut ask = world.bursar(&[command]);
        let output = ask.uid(HINTED).gid(HINTED).current_dir("/").output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let in_one_line = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let word = format!("From your administrator: {HINT}");
        ensure!(
            output.status.success() && in_one_line.contains(&word),
            "{said}"
        );
        let has_kill =
            in_one_line.contains("The last kills and refusals:") && said.contains("hog[");
        ensure!(command == "why" || has_kill, "{said}");
    }
    hog.expect_killed()?;
    // What would write over the message is no hint.
    world.configure("[messages]\nhint = \"all is well\\u001b[1A\"\n")?;
    world.daemon.end(libc::SIGTERM)?;
    let refused = world.daemon.command()?.status()?;
    // Whoever clears the stage reads it, too.
    world.configure("")?;
    let said = world.daemon.log()?;
    ensure!(
        !refused.success() && said.contains("not printable"),
        "{said}"
    );
    Ok(())
}

const STORMY: u32 = 60430;
const CALM: u32 = 60431;
const CROWD: u32 = 60432;
/// Each makes a look at /proc longer.
const CROWDED: u32 = 1500;
/// What waited once was 256; a look took some 70 ms, and kills come every 8.
const ENOUGH: u64 = 600;
/// A look at /proc and a rest take a few hundred milliseconds, 256 looks took 20 s.
const SOON: Duration = Duration::from_secs(8);

fn storm(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(
        binaries,
        "telling",
        "on_exit = \"release\"\n[last_defence]\nwhen = \"always\"\n",
    )?;
    world.daemon.start()?;
    world.daemon.limit(&STORMY.to_string(), "16M")?;
    world.daemon.limit(&CALM.to_string(), "64M")?;
    let _crowd = world.hog(&format!("uid={CROWD} fork={CROWDED} pause"))?;
    let sleeper = world.there(&format!("uid={STORMY} say=there pause"))?;
    let score = || {
        let text = fs::read_to_string(format!("/proc/{}/oom_score_adj", sleeper.pid()))?;
        Ok::<_, anyhow::Error>(text.trim_end().to_owned())
    };
    until("oom_score_adj being raised", || {
        Ok((score()? == "900").then_some(()))
    })?;
    let (mut stormy, mut calm) = (Terminal::of(STORMY)?, Terminal::of(CALM)?);
    let (at_stormy, at_calm) = (stormy.path().display(), calm.path().display());
    let mut neighbour = world.there(&format!(
        "uid={CALM} session terminal={at_calm} say=there wait hold=60M pause"
    ))?;
    let _storm = world.hog(&format!(
        "uid={STORMY} session terminal={at_stormy} repeat=1000000 hold=20M"
    ))?;
    until("many kills", || {
        let account = world.daemon.account(&STORMY.to_string())?;
        Ok(account.filter(|it| it.kills >= ENOUGH))
    })?;

    neighbour.go_on()?;
    calm.shows("bursar: your programs hold", SOON)?;
    ensure!(!calm.seen().contains(" times"), "{}", calm.seen());
    stormy.shows("; again, ", SOON)?;
    stormy.shows("bursar: killed your program hog", SOON)?;
    let remarks = world.daemon.status()?.remarks;
    let is_complaint = |it: &String| it.contains("did not fit") || it.contains("left out");
    ensure!(!remarks.iter().any(is_complaint), "{remarks:?}");

    let began = Instant::now();
    let status = world.daemon.end(libc::SIGTERM)?;
    let took = began.elapsed();
    ensure!(status.success(), "{status}");
    ensure!(took < SOON, "its end took {took:?}");
    ensure!(score()? == "0", "oom_score_adj stayed {}", score()?);
    Ok(())
}

/// Those whom the account is granted to, so many that not all could be told.
const GRANTED: std::ops::RangeInclusive<u32> = 60433..=60502;

fn shared(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "told", "")?;
    let granted: Vec<String> = GRANTED.map(|it| it.to_string()).collect();
    fs::write(
        world.daemon.limits_path(),
        format!("[limits]\n\"=bursar-render\" = {{ memory = \"64M\", granted = {granted:?} }}\n"),
    )?;
    world.let_users_in()?;
    world.daemon.start()?;
    let (first, last) = (*GRANTED.start(), *GRANTED.end());
    let (bystander, insider, owner) = (first, first + 1, last);
    let [apart, beside, his] = [bystander, insider, owner].map(Terminal::of);
    let (mut apart, mut beside, mut his) = (apart?, beside?, his?);
    // As after a login; nothing of them is in the account.
    let sits = |uid: u32, terminal: &Terminal| {
        let at = terminal.path().display();
        world.there(&format!("uid={uid} session terminal={at} say=there pause"))
    };
    let _logins = [
        sits(bystander, &apart)?,
        sits(insider, &beside)?,
        sits(owner, &his)?,
    ];
    let enter = |uid: u32, script: &str| -> Result<Hog> {
        let mut command = world.bursar(&["run", "--account", "=bursar-render", "--"]);
        command
            .arg(binaries.path("hog"))
            .args(script.split_whitespace());
        Hog::spawn(command.uid(uid).gid(uid).current_dir("/")).context("enter the account")
    };
    let mut small = enter(insider, "hold=2M say=there pause")?;
    small.hear("there")?;
    let _large = enter(owner, "name=painter hold=200M pause")?;

    let timeout = Duration::from_secs(30);
    his.shows("bursar: killed your program painter", timeout)?;
    beside.shows(
        "bursar: killed a program of the shared account =bursar-render",
        timeout,
    )?;
    for text in ["your program", "painter"] {
        ensure!(!beside.seen().contains(text), "{}", beside.seen());
    }
    // Of one account all are told at once.
    ensure!(apart.seen().is_empty(), "{}", apart.seen());
    Ok(())
}

/// As under the unit's PrivateTmp=: over the tmpfs lies, for bursard alone, a directory of that tmpfs.
fn named_files(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "named", "")?;
    let file = format!("/dev/shm/bursar-e2e-{}", std::process::id());
    let private = format!("{file}.d");
    fs::create_dir(&private)?;
    let of_bursard = private.clone();
    let mut command = world.daemon.command()?;
    enter_before_exec(&mut command, move || {
        Ok(rustix::mount::mount_bind(&of_bursard, "/dev/shm")?)
    });
    let told = world.daemon.start_as(&mut command).and_then(|()| {
        world.daemon.limit("60001", "64M")?;
        let mut hog = world.hog(&format!("uid=60001 file={file}:80M say=full pause"))?;
        hog.hear("full")?;
        until("being told which", || {
            let told = world.daemon.events_of(EventKind::NoVictim)?;
            Ok(told.into_iter().find(|it| it.files_bytes.is_some()))
        })
    });
    let _ = fs::remove_file(&file);
    let _ = fs::remove_dir(&private);
    let told = told?;
    let largest = told.files.first().context("the largest file")?;
    ensure!(largest.place == file, "{told:?}");
    Ok(())
}
