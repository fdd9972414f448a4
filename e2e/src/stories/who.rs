// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who a command is about: names that nobody has, other users, and accounts that run the machine.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};

use super::command::outcome;
use crate::runner::{Place, Story};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_name_that_nobody_has_ends_every_command_with_1_and_another_user_with_3",
        place: Place::Host,
        tell: nobody_and_others,
    },
    Story {
        name: "a_limit_on_root_has_to_be_forced",
        place: Place::Host,
        tell: system_accounts,
    },
];

const USER: u32 = 60_870;
const OTHER: u32 = 60_871;
const NOBODY: &str = "nobody-has-this-name";

/// What comes of a command by `uid`.
fn run(world: &World, uid: u32, arguments: &[&str]) -> Result<(i32, String, String)> {
    let mut command = world.bursar(arguments);
    outcome(command.uid(uid).gid(uid).current_dir("/"))
}

/// Commands that are about an account, with all but whose.
const ABOUT: &[&[&str]] = &[
    &["status"],
    &["events"],
    &["history"],
    &["report"],
    &["why", "--user"],
    &["status", "--user"],
    &["events", "--user"],
    &["history", "--user"],
    &["report", "--user"],
    &["beancounters", "--user"],
    &["physpages", "--user"],
    &["beancounters"],
    &["physpages"],
    &["limit", "show"],
    &["limit", "log"],
];

fn nobody_and_others(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "who", "")?;
    world.daemon.start()?;
    let (user, other) = (USER.to_string(), OTHER.to_string());
    world.daemon.limit(&user, "64M")?;
    world.daemon.limit(&other, "64M")?;
    for about in ABOUT {
        for (uid, whom, expected) in [
            (0, NOBODY, 1),
            (0, user.as_str(), 0),
            (USER, user.as_str(), 0),
            (USER, other.as_str(), 3),
            // Nor is a user told who is there.
            (USER, NOBODY, 3),
        ] {
            let arguments = [about, &[whom][..]].concat();
            let (code, said, wrong) = run(&world, uid, &arguments)?;
            ensure!(
                code == expected,
                "{arguments:?} by {uid}: {code} {said} {wrong}"
            );
            let is_refused = expected != 0;
            ensure!(
                said.is_empty() || !is_refused,
                "{arguments:?} by {uid}: {said}"
            );
            ensure!(
                wrong.starts_with("bursar: ") == is_refused,
                "{arguments:?} by {uid}: {wrong}"
            );
        }
    }
    for (arguments, expected) in [
        // Nothing was tried.
        (&["kill", "--yes", "--user", NOBODY][..], 2),
        (&["kill", "--yes", "--group", NOBODY], 2),
        (&["faults", "watch", "--account", NOBODY], 1),
        (&["run", "--account", "=nobody-has-this", "--", "true"], 1),
        (&["limit", "log", "@nobody-has-this-name"], 1),
        (&["limit", "clear", NOBODY], 1),
        // What is no account at all is wrong usage.
        (&["events", "@staff"], 2),
        (&["history", "default"], 2),
    ] {
        let (code, said, wrong) = run(&world, 0, arguments)?;
        ensure!(code == expected, "{arguments:?}: {code} {said} {wrong}");
    }
    Ok(())
}

/// One below UID_MIN, which lies higher here, is told of; root is refused.
fn system_accounts(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "system", "[accounts]\nuid_min = 60871\n")?;
    world.daemon.start()?;
    let (user, other) = (USER.to_string(), OTHER.to_string());
    let set = |arguments: &[&str]| run(&world, 0, &[&["limit", "set"], arguments].concat());
    let is_refused = |(code, said, wrong): (i32, String, String)| {
        let is_said = wrong.contains("would hold for root") && wrong.contains("--force");
        ensure!(code == 1 && is_said, "{code} {said} {wrong}");
        Ok(())
    };
    let done = |arguments: &[&str], words: &str| {
        let (code, said, wrong) = set(arguments)?;
        let is_said = said.replace('\n', " ").contains(words);
        ensure!(code == 0 && is_said, "{arguments:?}: {code} {said} {wrong}");
        Ok(())
    };
    is_refused(set(&["root", "1000G"])?)?;
    is_refused(set(&["0", "1000G", "--for", "1h"])?)?;
    is_refused(set(&["root", "numproc=1000000"])?)?;
    done(&["root", "1000G", "--dry-run"], "it would be refused")?;
    let file = world.directory().join("new.toml");
    std::fs::write(&file, "[limits]\nroot = { memory = \"1000G\" }\n")?;
    is_refused(run(
        &world,
        0,
        &["limit", "apply", &file.display().to_string()],
    )?)?;
    // Nobody else is, but an administrator is told what it means.
    done(&[&user, "1G"], "UID_MIN")?;
    done(&[&other, "2G"], "has a limit of 2G")?;
    let (code, said, _) = run(&world, 0, &["limit", "show"])?;
    ensure!(code == 0 && said.contains("UID_MIN"), "{code} {said}");
    is_no_user_for_whom_a_limit_is_suggested(&world)
}

/// But where it is about it.
fn is_no_user_for_whom_a_limit_is_suggested(world: &World) -> Result<()> {
    let _system = world.there(&format!("uid={USER} hold=40M say=there pause"))?;
    let _user = world.there(&format!("uid={OTHER} hold=20M say=there pause"))?;
    for (whose, accounts, most_mib) in [(&[][..], 2, 20..30), (&["60870"], 1, 40..50)] {
        let (code, said, wrong) = run(world, 0, &[&["report", "--json"], whose].concat())?;
        let report: serde_json::Value = serde_json::from_str(&said).context(wrong)?;
        let count = report["accounts"].as_array().map(Vec::len);
        let suggested = &report["suggestions"][0];
        let most = suggested["most"].as_u64().map_or(0, |it| it >> 20);
        ensure!(
            code == 0 && count == Some(accounts) && suggested["users"] == 1,
            "{whose:?}: {said}"
        );
        ensure!(most_mib.contains(&most), "{whose:?}: {said}");
    }
    Ok(())
}
