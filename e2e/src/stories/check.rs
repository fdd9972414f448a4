// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger check: bursard compares its kernel half's ledger with /proc, and says what is out.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use bursar_protocol::{AccountCheck, LedgerCheck, Operation, Reply, Verdict};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "ledger_check_agrees_with_proc_about_every_kind_of_process",
        place: Place::Anywhere,
        tell: agrees,
    },
    Story {
        name: "ledger_check_calls_nobody_out_who_only_moves",
        place: Place::Anywhere,
        tell: moving,
    },
    Story {
        // Needs a ledger that stands still without its timer; before 6.2 it does not quite.
        name: "ledger_check_finds_a_ledger_that_is_out",
        place: Place::Host,
        tell: out,
    },
    Story {
        name: "ledger_check_is_roots_and_needs_a_kernel_half",
        place: Place::Anywhere,
        tell: refused,
    },
];

/// Asks for a check.
pub(super) fn check(world: &World) -> Result<LedgerCheck> {
    match world.daemon.ask(Operation::CheckLedger)? {
        Reply::LedgerChecked(check) => Ok(*check),
        other => bail!("check_ledger answered {other:?}"),
    }
}

fn of<'a>(check: &'a LedgerCheck, account: &str) -> Result<&'a AccountCheck> {
    let uid = account.parse().ok().map(bursar_model::Uid::new);
    let is_it = |it: &&AccountCheck| it.account == account || (uid.is_some() && it.uid == uid);
    let found = check.accounts.iter().find(is_it);
    found.with_context(|| format!("{account} in {check:?}"))
}

/// What `bursar doctor --json` says of the ledger.
fn doctors_word(world: &World) -> Result<serde_json::Value> {
    let output = world.bursar(&["doctor", "--json"]).output()?;
    ensure!(output.status.success(), "doctor: {output:?}");
    let all: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout)?;
    let is_it = |it: &serde_json::Value| {
        it["ability"]
            .as_str()
            .is_some_and(|it| it.contains("/proc"))
    };
    all.into_iter()
        .filter(|it| it.get("ledger").is_some())
        .find(is_it)
        .context("nothing of the ledger in doctor's answer")
}

fn agrees(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "check", "")?;
    world.daemon.start()?;
    for uid in ["60541", "60542", "60543"] {
        world.daemon.limit(uid, "700M")?;
    }
    let scripts = [
        "uid=60541 hold=37M say=there pause",
        "uid=60541 hold=5M shm=11M say=there pause",
        "uid=60541 leader-exits hold=20M say=there pause",
        "uid=60541 twin hold=24M say=there pause",
        "uid=60541 threads=4:3M say=there pause",
        "uid=60541 memfd=60M say=there pause",
        "uid=60541 zombies=3:2M say=there pause",
        "uid=60542 userns hold=16M say=there pause",
        // Root's namespaces: he himself, one inside of his own, and one that root has shifted.
        "userns-for=0:0-0-4294967295 uid=60542 hold=16M say=there pause",
        "userns-for=0:0-0-4294967295 userns-for=60542:0-60542-1,1-60550-50 uid=8 hold=16M say=there pause",
        "userns-for=0:0-60700-100 uid=5 hold=16M say=there pause",
        // What they inherited they share.
        "uid=60543 hold=60M leave=4 say=there pause",
    ];
    let mut hogs = Vec::new();
    for script in scripts {
        hogs.push(world.there(script)?);
    }
    // A count may fall into the middle of a file's being filled: the sum says when all is counted. Less what
    // is mapped, in files: in a guest programs lie in a tmpfs themselves.
    let (in_files, in_all) = (20 << 20, 160 << 20);
    until("the files being counted", || {
        let unmapped = world.daemon.account("60541")?.map(|it| it.unmapped.get());
        let held = world.daemon.memory("60541")?.held.get();
        Ok((unmapped >= Some(in_files) && held >= in_all).then_some(()))
    })?;
    let found = check(&world)?;
    println!(
        "        {} processes looked at in {} ms, /proc is {}exact",
        found.processes,
        found.duration_ns / 1_000_000,
        if found.proc_is_exact { "" } else { "not " }
    );
    for account in ["60541", "60542", "60543"] {
        let one = of(&found, account)?;
        println!(
            "        {account}: {} by the ledger, {} by /proc, bound {}, {:?}",
            one.held, one.held_by_proc, one.bound, one.verdict
        );
        ensure!(one.verdict == Verdict::Within, "{one:?}");
    }
    let first = of(&found, "60541")?;
    // The twins are two processes in /proc and one address space; what else there is counts once each.
    ensure!(
        first.processes == first.processes_by_proc || first.apart.get() == 0,
        "{first:?}"
    );
    ensure!(first.held.get() >= in_all, "{first:?}");
    ensure!(
        of(&found, "60542")?.held_by_proc.get() >= 48 << 20,
        "{found:?}"
    );
    ensure!(found.left == 0, "{found:?}");
    let word = doctors_word(&world)?;
    ensure!(word["state"] == "available", "{word}");
    ensure!(
        word["ledger"]["accounts"]
            .as_array()
            .is_some_and(|it| it.len() == 3),
        "{word}"
    );
    Ok(())
}

fn moving(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "moving", "")?;
    world.daemon.start()?;
    world.daemon.limit("60544", "700M")?;
    let scripts = [
        "uid=60544 hold=8M say=there churn=600000",
        "uid=60544 hold=8M say=there forks=600000",
        "uid=60544 hold=8M say=there work=600000",
    ];
    let mut hogs = Vec::new();
    for script in scripts {
        hogs.push(world.there(script)?);
    }
    let mut verdicts = Vec::new();
    for _ in 0..5 {
        let found = check(&world)?;
        let one = of(&found, "60544")?;
        ensure!(one.verdict != Verdict::Out, "{one:?}");
        verdicts.push((one.verdict, one.moved.to_string(), found.rounds));
    }
    println!("        {verdicts:?}");
    Ok(())
}

/// Writes another number of held pages into the ledger, behind everybody's back.
fn spoil(world: &World, uid: u32, pages: i64) -> Result<()> {
    let half = fs::read_dir(world.pins())?
        .next()
        .context("a kernel half")??;
    let accounts = MapHandle::from_pinned_path(half.path().join("accounts"))?;
    let page = world.daemon.status()?.kernel_half.page_bytes;
    let held = world.daemon.memory(&uid.to_string())?.held.get() / page;
    let held = i64::try_from(held)?.to_ne_bytes();
    for slot in 1..accounts.max_entries() {
        let key = slot.to_ne_bytes();
        let Some(mut value) = accounts.lookup(&key, MapFlags::ANY)? else {
            continue;
        };
        // abi.h: the id follows the history; held_pages begins a cache line of its own, not the first.
        if value.get(32..36) != Some(&uid.to_ne_bytes()) {
            continue;
        }
        let lines = value.chunks_exact_mut(64).skip(1);
        let mut found = lines.filter_map(|line| line.first_chunk_mut::<8>());
        let field = found.find(|it| **it == held).context("its held pages")?;
        *field = (i64::from_ne_bytes(*field) + pages).to_ne_bytes();
        return Ok(accounts.update(&key, &value, MapFlags::ANY)?);
    }
    bail!("no account of {uid}")
}

fn out(binaries: &Binaries) -> Result<()> {
    // With the timer it would be put right before anybody looks.
    let mut world = World::new(binaries, "out", "[triggers]\ntimer = false\n")?;
    world.daemon.start()?;
    for uid in ["60545", "60546"] {
        world.daemon.limit(uid, "700M")?;
    }
    let mut hogs = Vec::new();
    for uid in [60545, 60546] {
        hogs.push(world.there(&format!("uid={uid} hold=40M say=there pause"))?);
    }
    let before = check(&world)?;
    for uid in ["60545", "60546"] {
        let one = of(&before, uid)?;
        ensure!(one.verdict == Verdict::Within, "{one:?}");
    }
    let page = world.daemon.status()?.kernel_half.page_bytes;
    // However many CPUs there are: the published bound may be larger. The account is far, CPUs keep some pages back.
    spoil(&world, 60545, i64::try_from((1 << 20) / page)?)?;
    let after = check(&world)?;
    ensure!(after.rounds == 3, "{after:?}");
    let first = after.accounts.first().context("the worst")?;
    ensure!(first.uid.is_some_and(|it| it.get() == 60545), "{first:?}");
    ensure!(first.verdict == Verdict::Out, "{first:?}");
    let apart = first.apart.get();
    ensure!((768 << 10..=1280 << 10).contains(&apart), "{first:?}");
    ensure!(of(&after, "60546")?.verdict == Verdict::Within, "{after:?}");
    let word = doctors_word(&world)?;
    ensure!(
        word["state"] == "wrong" && word["remedy"].is_string(),
        "{word}"
    );
    let text = world.bursar(&["doctor"]).output()?;
    ensure!(text.status.success(), "{text:?}");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let said: Vec<&str> = text
        .lines()
        .skip_while(|it| !it.starts_with("wrong"))
        .take(11)
        .collect();
    println!("        {}", said.join("\n        "));
    ensure!(said.len() > 5, "{text}");
    Ok(())
}

fn refused(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "nocheck", "")?;
    world.daemon.with_arguments(&["--trigger", "poll"]);
    world.daemon.start()?;
    let Reply::Refused(refusal) = world.daemon.ask(Operation::CheckLedger)? else {
        bail!("a check without a kernel half");
    };
    ensure!(refusal.message.contains("no kernel half"), "{refusal:?}");
    let _hog = world.there("uid=60547 say=there pause")?;
    // As that user, over the same socket.
    use std::os::unix::process::CommandExt;
    let mut command = world.bursar(&["doctor", "--json"]);
    command.uid(60547).gid(60547).current_dir("/");
    let directory = world.directory();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(directory, open)?;
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        text.contains("only root may have the ledger compared"),
        "{output:?}"
    );
    Ok(())
}
