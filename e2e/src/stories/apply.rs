// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits set again and again by programs: what is so already changes nothing, and a file is applied as a whole.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "apply_what_is_so_already_and_nothing_is_written_or_recorded",
        place: Place::Anywhere,
        tell: so_already,
    },
    Story {
        name: "apply_a_file_of_limits_as_a_whole_or_not_at_all",
        place: Place::Anywhere,
        tell: as_a_whole,
    },
    Story {
        name: "apply_a_file_that_is_wrong_or_in_vain_and_it_is_refused",
        place: Place::Anywhere,
        tell: wrong_or_in_vain,
    },
];

/// `bursar --json ARGUMENTS`: exit code, answer, and what it complained of.
fn json(world: &World, arguments: &[&str]) -> Result<(i32, serde_json::Value, String)> {
    let output = world.bursar(&[&["--json"], arguments].concat()).output()?;
    let code = output.status.code().context("its exit code")?;
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok((code, answer, String::from_utf8(output.stderr)?))
}

fn changes(world: &World) -> Result<usize> {
    Ok(world.daemon.events_of(EventKind::LimitChanged)?.len())
}

fn limit_mib(world: &World, name: &str) -> Result<Option<u64>> {
    Ok(world.daemon.memory(name)?.limit.map(|it| it.get() >> 20))
}

fn so_already(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "so", "")?;
    let limits = world.daemon.limits_path();
    let drop_ins = limits.with_file_name("limits.toml.d");
    fs::create_dir(&drop_ins)?;
    fs::write(
        drop_ins.join("10-a.toml"),
        "[limits]\n60002 = { memory = \"64M\" }\n",
    )?;
    world.daemon.start()?;
    let (code, answer, said) = json(&world, &["limit", "set", "60001", "64M", "numproc=200"])?;
    ensure!(
        code == 0 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    ensure!(answer.get("old").is_none(), "{answer}");
    let (events, inode) = (changes(&world)?, fs::metadata(&limits)?.ino());
    for arguments in [
        &["limit", "set", "60001", "64M"][..],
        &["limit", "set", "60001", "65536K", "numproc=200:200"],
        &["limit", "set", "60001", "numfile=unlimited"],
        // Also where a drop-in says so.
        &["limit", "set", "60002", "64M"],
    ] {
        let (code, answer, said) = json(&world, arguments)?;
        ensure!(
            code == 0 && answer["changed"] == false && answer["old"] == answer["new"],
            "{arguments:?}: {code} {answer} {said}"
        );
    }
    let output = world.bursar(&["limit", "set", "60001", "64M"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(text.contains("nothing changed"), "{text}");
    ensure!(changes(&world)? == events, "an event tells of nothing");
    ensure!(
        fs::metadata(&limits)?.ino() == inode,
        "it was written again"
    );

    let (code, answer, said) = json(&world, &["limit", "set", "60001", "96M"])?;
    ensure!(
        code == 0 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    let of = |which: &str| answer[which]["memory"]["limit"].clone();
    ensure!(of("old") == "64M" && of("new") == "96M", "{answer}");
    ensure!(answer["new"]["rows"]["numproc"] == "200:200", "{answer}");
    ensure!(changes(&world)? == events + 1);
    let (code, answer, said) = json(&world, &["limit", "clear", "60001"])?;
    ensure!(
        code == 0 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    ensure!(
        answer["old"]["memory"]["limit"] == "96M" && answer.get("new").is_none(),
        "{answer}"
    );
    Ok(())
}

fn write(path: &Path, entries: &str) -> Result<()> {
    fs::write(path, format!("# the lab's\n[limits]\n{entries}\n")).context("write a file")
}

/// Somebody would be killed by it: nobody gets anything of it.
fn refused_as_a_whole(world: &World, file: &Path) -> Result<()> {
    let limits = world.daemon.limits_path();
    let wanted = file.to_str().context("its name")?;
    write(
        file,
        "60003 = { memory = \"64M\" }\n60001 = { memory = \"50M\" }",
    )?;
    let (before, events) = (fs::read_to_string(&limits)?, changes(world)?);
    let (code, answer, said) = json(world, &["limit", "apply", wanted, "--check"])?;
    ensure!(
        code == 2 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    let remark = answer["remarks"][0].as_str().unwrap_or_default();
    let facts = ["would be refused", " holds 8", "50 MiB"];
    ensure!(facts.iter().all(|it| remark.contains(it)), "{answer}");
    let (code, _, said) = json(world, &["limit", "apply", wanted])?;
    ensure!(
        code == 1 && said.contains("--force") && said.contains(" holds 8"),
        "{code} {said}"
    );
    ensure!(
        world.daemon.account("60003")?.is_none(),
        "a part of it holds"
    );
    ensure!(fs::read_to_string(&limits)? == before && changes(world)? == events);
    Ok(())
}

/// Whatever was to write the file may have failed.
fn nothing_written(world: &World, file: &Path) -> Result<()> {
    let limits = world.daemon.limits_path();
    let wanted = file.to_str().context("its name")?;
    let check = ["limit", "apply", wanted, "--check"];
    let apply = ["limit", "apply", wanted];
    fs::write(file, "")?;
    let (code, _, said) = json(world, &apply)?;
    ensure!(
        code == 1 && said.contains("has no limit at all"),
        "{code} {said}"
    );
    ensure!(limit_mib(world, "60001")? == Some(50));
    let (code, answer, said) = json(world, &check)?;
    let note = answer["remarks"][0].as_str().unwrap_or_default();
    ensure!(
        code == 2 && note.contains("has no limit at all"),
        "{code} {answer} {said}"
    );
    let (code, _, said) = json(world, &["limit", "apply", wanted, "--force"])?;
    ensure!(
        code == 0 && fs::read_to_string(&limits)?.is_empty(),
        "{code} {said}"
    );
    Ok(())
}

fn as_a_whole(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "apply", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    world.daemon.limit("60002", "100M")?;
    let mut hog = world.there("uid=60001 hold=80M say=there pause")?;
    let limits = world.daemon.limits_path();
    let file = world.directory().join("wanted.toml");
    let wanted = file.to_str().context("its name")?;
    let check = ["limit", "apply", wanted, "--check"];
    let apply = ["limit", "apply", wanted];

    refused_as_a_whole(&world, &file)?;
    hog.expect_alive("one whose limit was refused")?;
    let (before, events) = (fs::read_to_string(&limits)?, changes(&world)?);

    // More than an ordinary request may have; and twice is once.
    let long = "x".repeat(128 << 10);
    write(
        &file,
        &format!(
            "# {long}\n60001 = {{ memory = \"128M\" }} # his thesis\n60003 = {{ memory = \"64M\" }}"
        ),
    )?;
    let output = world.bursar(&check).output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(
        output.status.code() == Some(2),
        "{:?} {text}",
        output.status
    );
    let diff =
        "- 60001: memory 100M\n+ 60001: memory 128M\n- 60002: memory 100M\n+ 60003: memory 64M\n";
    ensure!(text == format!("{diff}3 entries would change\n"), "{text}");
    ensure!(
        fs::read_to_string(&limits)? == before,
        "a check has changed it"
    );
    let (code, answer, said) = json(&world, &apply)?;
    ensure!(
        code == 0 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    ensure!(
        answer["changes"].as_array().map(Vec::len) == Some(3),
        "{answer}"
    );
    ensure!(fs::read_to_string(&limits)? == fs::read_to_string(&file)?);
    ensure!(changes(&world)? == events + 3, "one event for one entry");
    ensure!(limit_mib(&world, "60001")? == Some(128) && limit_mib(&world, "60003")? == Some(64));
    ensure!(
        world.daemon.account("60002")?.is_none(),
        "60002 is limited still"
    );
    for arguments in [&check[..], &apply[..]] {
        let (code, answer, said) = json(&world, arguments)?;
        ensure!(
            code == 0 && answer["changed"] == false,
            "{code} {answer} {said}"
        );
    }
    ensure!(changes(&world)? == events + 3, "an event tells of nothing");
    hog.expect_alive("one within the limit")?;

    write(&file, "60001 = { memory = \"50M\" }")?;
    let (code, _, said) = json(&world, &["limit", "apply", wanted, "--force"])?;
    ensure!(code == 0, "{code} {said}");
    hog.expect_killed()?;
    nothing_written(&world, &file)?;
    Ok(())
}

fn wrong_or_in_vain(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "vain", "")?;
    let limits = world.daemon.limits_path();
    let drop_ins = limits.with_file_name("limits.toml.d");
    fs::create_dir(&drop_ins)?;
    fs::write(
        drop_ins.join("10-a.toml"),
        "[limits]\n60002 = { memory = \"64M\" }\n",
    )?;
    world.daemon.start()?;
    let file = world.directory().join("wanted.toml");
    let wanted = file.to_str().context("its name")?;
    let place = format!("{wanted}:3: limits.60001.memroy");
    let winner = drop_ins.join("10-a.toml").display().to_string();
    // In check mode 2 means that something would change, and nothing else.
    for (entries, in_earnest, expected) in [
        ("60001 = { memroy = \"1G\" }", 2, place.as_str()),
        (
            "60001 = { memory = \"1G\" }\n60002 = { memory = \"2G\" }",
            1,
            winner.as_str(),
        ),
    ] {
        write(&file, entries)?;
        for (option, expected_code) in [("--check", 1), ("--force", in_earnest)] {
            let (code, _, said) = json(&world, &["limit", "apply", wanted, option])?;
            ensure!(
                code == expected_code && said.contains(expected),
                "{option}: {code} {said}"
            );
        }
        ensure!(!limits.exists(), "it was written");
    }
    // The same as the drop-in says is no contradiction.
    write(
        &file,
        "60001 = { memory = \"1G\" }\n60002 = { memory = \"64M\" }",
    )?;
    let (code, answer, said) = json(&world, &["limit", "apply", wanted])?;
    ensure!(
        code == 0 && answer["changed"] == true,
        "{code} {answer} {said}"
    );
    let (code, _, said) = json(&world, &["limit", "apply", "/nonexistent"])?;
    ensure!(code == 2 && said.contains("/nonexistent"), "{code} {said}");
    Ok(())
}
