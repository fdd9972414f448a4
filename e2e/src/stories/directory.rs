// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users and groups that change while limits are in force.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bursar_model::{EventKind, Uid};
use bursar_protocol::Reply;

use crate::mount_namespace::enter_before_exec;
use crate::runner::{Place, Story};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "who_joins_or_leaves_a_group_is_under_its_limit_or_free_in_seconds",
        place: Place::Host,
        tell: members,
    },
    Story {
        name: "who_gets_somebodys_number_is_not_shown_his_kills",
        place: Place::Host,
        tell: successor,
    },
    Story {
        name: "a_directory_that_knows_nobody_takes_no_limit_away",
        place: Place::Host,
        tell: nobody_known,
    },
    Story {
        name: "who_turns_out_to_be_a_user_is_nobodys_subordinate",
        place: Place::Host,
        tell: not_listed,
    },
];

/// A change is in force within so long: it is seen at once, and what settles is asked for once.
const SECONDS: Duration = Duration::from_secs(5);

/// The daemon with an /etc of the story's own, which only it sees.
struct Etc(PathBuf);

impl Etc {
    fn start(world: &mut World, passwd: &str, group: &str) -> Result<Self> {
        let etc = Self(world.directory().join("etc"));
        fs::create_dir(&etc.0)?;
        etc.replace("passwd", passwd)?;
        etc.replace("group", group)?;
        etc.replace("nsswitch.conf", "passwd: files\ngroup: files\n")?;
        let mut command = world.daemon.command()?;
        etc.cover(&mut command);
        world.daemon.start_as(&mut command)?;
        Ok(etc)
    }

    /// As the system's own tools do: a new file takes the place of the old one.
    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let fresh = self.0.join("new");
        fs::write(&fresh, text)?;
        fs::rename(fresh, self.0.join(name)).with_context(|| format!("replace {name}"))
    }

    fn cover(&self, command: &mut Command) {
        let directory = self.0.clone();
        enter_before_exec(command, move || {
            Ok(rustix::mount::mount_bind(&directory, "/etc")?)
        });
    }
}

/// As with a directory that does not list its users: the range was read before anybody knew that she is one.
fn not_listed(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "notlisted", "[accounts]\nuid_min = 60000\n")?;
    let passwd = "root:x:0:0::/:/bin/sh\nalice:x:60001:60001::/:/bin/sh\n";
    fs::write(world.directory().join("subuid"), "alice:60500:100\n")?;
    let etc = Etc::start(&mut world, passwd, "root:x:0:\n")?;
    let mut alice = world.there("uid=60001 hold=70M say=there pause")?;
    let mut carol = world.there("uid=60507 hold=40M say=there pause")?;
    let over = world.daemon.try_limit("default", "100M", false)?;
    ensure!(matches!(over, Reply::Refused(_)), "{over:?}");
    alice.finish()?;
    world.daemon.limit("default", "100M")?;
    let is_in = |world: &World, uid: u32| -> Result<bool> {
        let accounts = world.daemon.status()?.accounts;
        let own = accounts.iter().find(|it| it.uid == Some(Uid::new(uid)));
        Ok(own.is_some_and(|it| it.processes == 1))
    };
    within(
        SECONDS,
        "her counting for whoever was given her uid",
        || Ok(is_in(&world, 60_001)?.then_some(())),
    )?;
    etc.replace(
        "passwd",
        &format!("{passwd}carol:x:60507:60507::/:/bin/sh\n"),
    )?;
    within(SECONDS, "her counting for herself", || {
        Ok((is_in(&world, 60_507)? && !is_in(&world, 60_001)?).then_some(()))
    })?;
    // That she is one is remembered.
    world.daemon.end(libc::SIGTERM)?;
    let mut command = world.daemon.command()?;
    etc.replace("passwd", passwd)?;
    etc.cover(&mut command);
    world.daemon.start_as(&mut command)?;
    within(SECONDS, "her counting for herself", || {
        Ok((is_in(&world, 60_507)? && !is_in(&world, 60_001)?).then_some(()))
    })?;
    carol.finish()
}

fn members(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "members", "")?;
    let passwd = "root:x:0:0::/:/bin/sh\nalice:x:60001:60001::/:/bin/sh\nbob:x:60002:60002::/:/bin/sh\n\
         carol:x:60003:60003::/:/bin/sh\n";
    let film = |names: &str| format!("root:x:0:\nfilm:x:60100:{names}\n");
    let etc = Etc::start(&mut world, passwd, &film("alice"))?;
    world.daemon.limit("@film", "64M")?;
    let mut bob = world.there("uid=60002 hold=100M say=there pause")?;

    // Bob and carol join. Bob is over the limit: he is told, and has his time.
    etc.replace("group", &film("alice,bob,carol"))?;
    let joined = Instant::now();
    let told = within(SECONDS, "bob being told", || {
        let told = world.daemon.events_of(EventKind::LimitChanged)?;
        let is_his = |reason: &str| reason.contains("this limit holds in 10 seconds");
        Ok(told
            .into_iter()
            .find(|it| it.reason.as_deref().is_some_and(is_his)))
    })?;
    ensure!(
        told.account.as_deref() == Some("bob") && told.held > told.limit,
        "{told:?}"
    );
    std::thread::sleep(Duration::from_secs(5));
    bob.expect_alive("who was told some seconds ago")?;
    bob.expect_killed()?;
    let lived = joined.elapsed();
    ensure!(
        lived > Duration::from_secs(9) && lived < Duration::from_secs(20),
        "bob was killed after {lived:?}"
    );
    world.hog("uid=60003 hold=200M pause")?.expect_killed()?;

    // Alice leaves, and nobody is over anything.
    etc.replace("group", &film("bob,carol"))?;
    within(SECONDS, "alice having no limit", || {
        Ok(world.daemon.account("alice")?.is_none().then_some(()))
    })?;
    let mut alice = world.there("uid=60001 hold=200M say=there pause")?;

    // Dave is new, and a member by his first group.
    etc.replace(
        "passwd",
        &format!("{passwd}dave:x:60004:60100::/:/bin/sh\n"),
    )?;
    within(SECONDS, "dave's account", || {
        Ok(world.daemon.account("dave")?.map(drop))
    })?;
    world.hog("uid=60004 hold=200M pause")?.expect_killed()?;
    alice.expect_alive("who has left the group")
}

fn successor(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "successor", "")?;
    let passwd = |name: &str| format!("root:x:0:0::/:/bin/sh\n{name}:x:60002:60002::/:/bin/sh\n");
    let etc = Etc::start(&mut world, &passwd("old"), "root:x:0:\n")?;
    world.daemon.limit("60002", "64M")?;
    let killed = |world: &World| -> Result<u32> {
        let mut hog = world.hog("uid=60002 hold=200M pause")?;
        hog.expect_killed()?;
        world.daemon.await_event(EventKind::Kill, hog.pid())?;
        Ok(hog.pid())
    };
    let seen = |world: &World| -> Result<String> {
        let mut text = String::new();
        for arguments in [["why", "--json"], ["events", "--json"]] {
            let mut command = world.bursar(&arguments);
            let output = command.uid(60002).gid(60002).current_dir("/").output()?;
            text.push_str(&String::from_utf8_lossy(&output.stdout));
        }
        Ok(text)
    };
    let has = |text: &str, pid: u32| text.contains(&format!("\"pid\":{pid}"));
    let first = killed(&world)?;
    ensure!(has(&seen(&world)?, first), "his own kill");
    for (name, restarts) in [("new", false), ("new", true), ("newest", false)] {
        etc.replace("passwd", &passwd(name))?;
        if restarts {
            world.daemon.end(libc::SIGTERM)?;
            let mut command = world.daemon.command()?;
            etc.cover(&mut command);
            world.daemon.start_as(&mut command)?;
        }
        until("nothing of his predecessor", || {
            Ok((!has(&seen(&world)?, first)).then_some(()))
        })?;
    }
    // The same name again, after nobody had the number.
    etc.replace("passwd", "root:x:0:0::/:/bin/sh\n")?;
    until("nobody", || {
        let account = world.daemon.account("60002")?.context("the account")?;
        Ok((account.account == "60002").then_some(()))
    })?;
    etc.replace("passwd", &passwd("newest"))?;
    within(SECONDS, "the name being somebody's again", || {
        let account = world.daemon.account("60002")?.context("the account")?;
        Ok((account.account == "newest").then_some(()))
    })?;
    let second = killed(&world)?;
    let text = seen(&world)?;
    ensure!(has(&text, second) && !has(&text, first), "{text}");
    let all = world.daemon.events_of(EventKind::Kill)?;
    ensure!(all.len() == 2, "root sees {} kills", all.len());
    Ok(())
}

/// SSSD without its socket says of everybody that there is no such user, and so does a file that is half written.
fn nobody_known(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "unknown", "")?;
    let root = "root:x:0:0::/:/bin/sh\n";
    let bob = "bob:x:60002:60002::/:/bin/sh\n";
    let alice = "alice:x:60001:60001::/:/bin/sh\n";
    let group = "root:x:0:\nfilm:x:60100:bob\n";
    let etc = Etc::start(&mut world, &format!("{root}{alice}{bob}"), group)?;
    world.daemon.limit("alice", "64M")?;
    world.daemon.limit("@film", "64M")?;

    etc.replace("passwd", root)?;
    for restarts in [false, true] {
        if restarts {
            world.daemon.end(libc::SIGTERM)?;
            let mut command = world.daemon.command()?;
            etc.cover(&mut command);
            world.daemon.start_as(&mut command)?;
        }
        within(SECONDS, "it being said", || {
            let said = world.daemon.status()?.remarks.join("\n");
            let is_said = said.contains("alice: unknown to the directory since")
                && said.contains("@film: uids of members that the directory does not know");
            Ok(is_said.then_some(()))
        })?;
        world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
        world.hog("uid=60002 hold=200M pause")?.expect_killed()?;
    }

    // Bob is there again, and alice's number is somebody else's: her limit is not zoe's.
    let zoe = "zoe:x:60001:60001::/:/bin/sh\n";
    etc.replace("passwd", &format!("{root}{zoe}{bob}"))?;
    within(SECONDS, "alice having no account", || {
        Ok(world.daemon.account("alice")?.is_none().then_some(()))
    })?;
    let mut zoe = world.there("uid=60001 hold=200M say=there pause")?;
    world.hog("uid=60002 hold=200M pause")?.expect_killed()?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(
        said.contains("alice: there is no user of this name")
            && !said.contains("uids of members that the directory does not know"),
        "{said}"
    );
    zoe.expect_alive("who has the number that alice had")
}
