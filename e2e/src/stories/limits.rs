// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Setting, changing and taking away limits; for whom they are.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{AccountKind, BoundsSpec, Bytes, EventKind, Resource, RowBounds};
use bursar_protocol::{ErrorKind, LimitChange, Operation, Reply, RowsChange, Terms};

use crate::length::whole;
use crate::mount_namespace::enter_before_exec;
use crate::runner::{Place, Story};
use crate::stories::ALICE_IS;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_limit_set_over_running_processes_does_not_wait_to_learn_what_they_share",
        place: Place::Host,
        tell: looked_at_first,
    },
    Story {
        name: "a_limit_change_takes_effect_at_once",
        place: Place::Host,
        tell: at_once,
    },
    Story {
        name: "a_limit_below_what_is_held_is_refused_with_the_facts_unless_forced",
        place: Place::Anywhere,
        tell: below_held,
    },
    Story {
        name: "a_limit_forced_below_what_is_held_leaves_whom_it_fits",
        place: Place::Anywhere,
        tell: forced_below_held,
    },
    Story {
        name: "a_first_default_below_what_somebody_holds_is_refused",
        place: Place::Anywhere,
        tell: first_default,
    },
    Story {
        name: "a_first_default_looks_at_two_hundred_users_and_leaves_nothing",
        place: Place::Host,
        tell: many_at_first,
    },
    Story {
        name: "who_moves_into_a_shared_account_does_not_die_by_default",
        place: Place::Guest,
        tell: into_shared,
    },
    Story {
        name: "a_new_shared_limit_below_what_its_members_hold_is_refused",
        place: Place::Anywhere,
        tell: shared_below_held,
    },
    Story {
        name: "a_limit_is_not_cleared_onto_a_stricter_default",
        place: Place::Anywhere,
        tell: cleared_below_held,
    },
    Story {
        name: "a_row_is_not_taken_away_onto_a_stricter_default",
        place: Place::Anywhere,
        tell: row_below_held,
    },
    Story {
        name: "limits_read_again_are_put_in_force_and_who_is_over_them_is_told_first",
        place: Place::Anywhere,
        tell: read_again,
    },
    Story {
        name: "a_row_alone_takes_nobody_out_of_a_shared_account",
        place: Place::Anywhere,
        tell: row_of_a_member,
    },
    Story {
        name: "a_groups_rows_alone_leave_its_members_under_the_default",
        place: Place::Anywhere,
        tell: rows_of_a_group,
    },
    Story {
        name: "processes_older_than_the_limit_count",
        place: Place::Anywhere,
        tell: older_processes,
    },
    Story {
        name: "default_covers_ordinary_users_and_nobody_else",
        place: Place::Anywhere,
        tell: default_covers,
    },
    Story {
        name: "a_shared_account_counts_its_members_together",
        place: Place::Anywhere,
        tell: shared,
    },
    Story {
        name: "each_member_of_a_group_has_the_groups_limit_by_himself",
        place: Place::Anywhere,
        tell: group,
    },
    Story {
        name: "names_are_looked_up_anew_when_a_limit_changes",
        place: Place::Anywhere,
        tell: looked_up_anew,
    },
    Story {
        // Needs a source of names that can be named and does not answer: glibc's hesiod, unconfigured.
        name: "members_keep_their_groups_limit_while_the_directory_is_down",
        place: Place::Host,
        tell: directory_down,
    },
    Story {
        name: "unknown_users_and_limits_above_ram_are_kept_and_said",
        place: Place::Anywhere,
        tell: remarks,
    },
    Story {
        name: "a_limit_taken_away_restores_what_was_changed",
        place: Place::Anywhere,
        tell: cleared,
    },
];

fn at_once(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "once", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    // Asked, decided, written to disk, in force: the answer comes when it holds. Who waited for the timer would wait for
    // 100 ms in the middle; on a machine that is busy a grace period of the kernel's takes 20. The slowest of them
    // belongs to whatever else this machine does.
    let most = Duration::from_millis(whole(10).or(50));
    let timed = |changes: usize, who: &dyn Fn(usize) -> (String, String)| -> Result<()> {
        let mut spent = Vec::new();
        for round in 0..changes {
            let (who, size) = who(round);
            let began = Instant::now();
            world.daemon.limit(&who, &size)?;
            spent.push(began.elapsed());
        }
        spent.sort_unstable();
        let median = spent.get(changes / 2).copied().unwrap_or_default();
        let slowest = spent.last().copied().unwrap_or_default();
        println!("        {changes} changes: median {median:?}, slowest {slowest:?}");
        ensure!(median < most, "a change took {median:?}");
        Ok(())
    };
    timed(100, &|round| {
        ("60001".into(), format!("{}M", 64 + round % 2))
    })?;
    timed(11, &|round| ((60100 + round).to_string(), "50M".into()))?;
    world.daemon.limit("60003", "50M")?;
    world.hog("uid=60003 hold=200M pause")?.expect_killed()?;
    Ok(())
}

fn below_held(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "below", "")?;
    world.daemon.start()?;
    let mut hog = world.there("uid=60001 hold=80M say=there pause")?;
    // Once for a user who has no limit yet and once for one who has.
    for _ in 0..2 {
        let Reply::Refused(refusal) = world.daemon.try_limit("60001", "50M", false)? else {
            bail!("it was not refused")
        };
        ensure!(refusal.kind == ErrorKind::Refused, "{refusal:?}");
        for fact in ["60001", " holds 8", "50 MiB", "--force"] {
            ensure!(
                refusal.message.contains(fact),
                "{fact} is not in: {}",
                refusal.message
            );
        }
        hog.expect_alive("one whose limit was refused")?;
        world.daemon.limit("60001", "100M")?;
    }
    let reply = world.daemon.try_limit("60001", "50M", true)?;
    ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
    hog.expect_killed()
}

/// Those that die are more than the limit together: each death is no reason for the next one.
fn forced_below_held(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "forced", "")?;
    world.daemon.start()?;
    // Once for a user who has no limit yet and once for one who has.
    for before in [None, Some("500M")] {
        if let Some(size) = before {
            world.daemon.limit("60001", size)?;
        }
        let there = |size: u64| world.there(&format!("uid=60001 hold={size}M say=there pause"));
        let mut largest = [there(50)?, there(45)?];
        let mut others = [there(36)?, there(4)?];
        let reply = world.daemon.try_limit("60001", "60M", true)?;
        ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
        for hog in &mut largest {
            hog.expect_killed()?;
        }
        // As long as what has died may count.
        std::thread::sleep(Duration::from_millis(1500));
        for hog in &mut others {
            hog.expect_alive("one that fits the new limit with the others")?;
        }
        drop(others);
        world.daemon.until_empty(60001)?;
        let cleared = clear(&world, "60001", true)?;
        ensure!(matches!(cleared, Reply::Changed { .. }), "{cleared:?}");
    }
    Ok(())
}

/// Refused because somebody would be killed at once, with these facts.
pub(super) fn expect_refused(reply: &Reply, facts: &[&str]) -> Result<()> {
    let Reply::Refused(refusal) = reply else {
        bail!("it was not refused: {reply:?}")
    };
    ensure!(refusal.kind == ErrorKind::Refused, "{refusal:?}");
    let message = &refusal.message;
    for fact in facts.iter().chain(&["would kill at once", "--force"]) {
        ensure!(message.contains(fact), "{fact} is not in: {message}");
    }
    Ok(())
}

pub(super) fn clear(world: &World, who: &str, force: bool) -> Result<Reply> {
    let who = who.parse()?;
    world.daemon.ask(Operation::ClearLimit {
        who,
        force,
        terms: Terms::default(),
    })
}

/// Of the story's users only, whoever else is at work on this machine.
pub(super) const ORDINARY: &str = "[accounts]\nuid_min = 60000\nexempt = [\"60700-4294967294\"]\n";

fn first_default(binaries: &Binaries) -> Result<()> {
    for trigger in ["bpf", "poll"] {
        let mut world = World::new(binaries, "first", ORDINARY)?;
        world.daemon.with_arguments(&["--trigger", trigger]);
        world.daemon.start()?;
        let mut hog = world.there("uid=60001 hold=80M say=there pause")?;
        let mut other = world.there("uid=60002 hold=70M say=there pause")?;
        let refused = world.daemon.try_limit("default", "50M", false)?;
        let facts = ["60001", " holds 8", "50 MiB", "one more account"];
        expect_refused(&refused, &facts)?;
        ensure!(world.daemon.account("60001")?.is_none(), "one is left");
        ensure!(!world.daemon.limits_path().exists(), "it was written down");
        world.daemon.limit("default", "100M")?;
        let refused = world.daemon.try_limit("default", "75M", false)?;
        expect_refused(&refused, &["60001", " holds 8", "75 MiB"])?;
        std::thread::sleep(Duration::from_millis(500));
        hog.expect_alive("one whose limit was refused")?;
        other.expect_alive("another one")?;
        let reply = world.daemon.try_limit("default", "75M", true)?;
        ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
        hog.expect_killed()?;
        other.expect_alive("one within the limit")?;
    }
    Ok(())
}

fn many_at_first(binaries: &Binaries) -> Result<()> {
    const USERS: u32 = 200;
    // Room for each of them once, and hardly for more.
    let config = format!("{ORDINARY}[ledger]\nmax_accounts = {}\n", USERS + 30);
    let mut world = World::new(binaries, "many", &config)?;
    world.daemon.start()?;
    let mut hogs = Vec::new();
    for user in 0..USERS {
        hogs.push(world.hog(&format!("uid={} hold=2M say=there pause", 60100 + user))?);
    }
    for hog in &mut hogs {
        hog.hear("there")?;
    }
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let began = Instant::now();
        let refused = world.daemon.try_limit("default", "1M", false)?;
        slowest = slowest.max(began.elapsed());
        expect_refused(&refused, &["and 199 more accounts"])?;
    }
    println!("        {USERS} users are looked at in {slowest:?} at most");
    ensure!(slowest < Duration::from_secs(2), "it took {slowest:?}");
    let left = world.daemon.status()?.accounts;
    ensure!(left.is_empty(), "{left:?}");
    world.daemon.limit("default", "64M")?;
    let status = world.daemon.status()?;
    ensure!(status.accounts.len() == 200, "{}", status.accounts.len());
    ensure!(status.kernel_half.accounts_full == 0, "there is no room");
    Ok(())
}

/// On the way from one account to another nobody is measured by a limit that holds for neither.
fn into_shared(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "intoshared", "")?;
    start_with_groups(&mut world)?;
    for (who, size) in [("alice", "100M"), ("=film", "200M"), ("default", "32M")] {
        world.daemon.limit(who, size)?;
    }
    let mut large = world.there("uid=60001 hold=60M say=there pause")?;
    // She grows all the time, so that each moment of hers is one at which she could be killed.
    let mut busy = world.there("uid=60001 hold=1M say=there churn=60000")?;
    for _ in 0..20 {
        ensure!(matches!(
            clear(&world, "alice", false)?,
            Reply::Changed { .. }
        ));
        world.daemon.limit("alice", "100M")?;
    }
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "{kills:#?}");
    large.expect_alive("who moved")?;
    busy.expect_alive("who moved and grew")
}

fn shared_below_held(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "together", "")?;
    start_with_groups(&mut world)?;
    let mut alice = world.there("uid=60001 hold=40M say=there pause")?;
    let mut bob = world.there("uid=60002 hold=40M say=there pause")?;
    // One of them has an account of his own already, the other none at all.
    world.daemon.limit("bob", "100M")?;
    let mut carol = world.there("uid=60003 hold=60M say=there pause")?;
    world.daemon.limit("carol", "100M")?;
    let refused = world.daemon.try_limit("=film", "30M", false)?;
    expect_refused(&refused, &["=film holds 4", "30 MiB"])?;
    ensure!(world.daemon.account("=film")?.is_none(), "it is left");
    world.daemon.limit("=film", "75M")?;
    expect_refused(&clear(&world, "bob", false)?, &["=film holds 8", "75 MiB"])?;
    world.daemon.limit("=film", "100M")?;
    ensure!(matches!(
        clear(&world, "bob", false)?,
        Reply::Changed { .. }
    ));
    let refused = world.daemon.try_limit("=film", "75M", false)?;
    expect_refused(&refused, &["=film holds 8", "75 MiB"])?;
    // Of what a shared account holds only her part is hers; and she stays in it.
    let refused = world.daemon.try_limit("alice", "30M", false)?;
    expect_refused(&refused, &["alice holds 4", "30 MiB"])?;
    let together = world.daemon.memory("=film")?.held.get();
    ensure!(together > 80 << 20, "=film holds {together}");
    expect_refused(
        &clear(&world, "carol", false)?,
        &["=film holds 1", "100 MiB"],
    )?;
    for (hog, who) in [
        (&mut alice, "alice"),
        (&mut bob, "bob"),
        (&mut carol, "carol"),
    ] {
        hog.expect_alive(who)?;
    }
    ensure!(matches!(
        clear(&world, "carol", true)?,
        Reply::Changed { .. }
    ));
    carol.expect_killed()
}

fn cleared_below_held(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "fallback", ORDINARY)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "200M")?;
    world.daemon.limit("default", "50M")?;
    let mut hog = world.there("uid=60001 hold=80M say=there pause")?;
    let refused = clear(&world, "60001", false)?;
    expect_refused(&refused, &["60001", " holds 8", "50 MiB"])?;
    hog.expect_alive("one whose limit was not cleared")?;
    let limit = world.daemon.memory("60001")?.limit;
    ensure!(limit.is_some_and(|it| it.get() == 200 << 20), "{limit:?}");
    ensure!(matches!(
        clear(&world, "60001", true)?,
        Reply::Changed { .. }
    ));
    hog.expect_killed()
}

fn set_processes(world: &World, who: &str, bounds: &str, force: bool) -> Result<Reply> {
    let bounds = RowBounds::parse(Resource::Numproc, bounds)?;
    let rows = [(Resource::Numproc, bounds)].into();
    let who = who.parse()?;
    world.daemon.ask(Operation::SetRows(RowsChange {
        who,
        rows,
        force,
        terms: Terms::default(),
    }))
}

/// With its last row an entry goes, and its users pay elsewhere.
fn row_below_held(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "row", ORDINARY)?;
    start_with_groups(&mut world)?;
    world.daemon.limit("default", "50M")?;
    let is_set = |reply: Reply| matches!(reply, Reply::Changed { .. });
    ensure!(is_set(set_processes(&world, "=film", "200", false)?));
    let mut hog = world.hog("uid=60001 hold=80M say=there pause")?;
    hog.hear("there")?;
    let refused = set_processes(&world, "=film", "unlimited", false)?;
    expect_refused(&refused, &["alice holds 8", "50 MiB"])?;
    hog.expect_alive("one whose row was not taken away")?;
    ensure!(is_set(set_processes(&world, "=film", "unlimited", true)?));
    hog.expect_killed()
}

/// Whoever wants it so is not asked whether he means what he has written; what follows is told before it happens.
fn read_again(binaries: &Binaries) -> Result<()> {
    let config = format!("reload = \"force\"\n{ORDINARY}");
    let mut world = World::new(binaries, "again", &config)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    world.daemon.limit("60002", "100M")?;
    let holding = |uid: u32, size: &str| -> Result<crate::hog::Hog> {
        let mut hog = world.hog(&format!("uid={uid} hold={size} say=there pause"))?;
        hog.hear("there")?;
        Ok(hog)
    };
    let (mut over, mut within) = (holding(60001, "80M")?, holding(60002, "20M")?);
    let mut by_default = holding(60003, "60M")?;
    let limits = "[limits]\n60001 = { memory = \"50M\" }\n60002 = { memory = \"50M\" }\n\
                  default = { memory = \"40M\" }\n";
    fs::write(world.daemon.limits_path(), limits)?;
    world.daemon.signal(libc::SIGHUP)?;
    over.expect_killed()?;
    by_default.expect_killed()?;
    within.expect_alive("one within his new limit")?;
    for (uid, least, limit) in [(60001, 80, 50), (60003, 60, 40)] {
        let pid = if uid == 60001 {
            over.pid()
        } else {
            by_default.pid()
        };
        world.daemon.await_event(EventKind::Kill, pid)?;
        let events = world.daemon.events()?;
        let is_told = |event: &bursar_model::Event| {
            let by = event.overcommit.map_or(0, |it| it.get() >> 20);
            event.event == EventKind::LimitChanged
                && event.uid.is_some_and(|it| it.get() == uid)
                && event.held.is_some_and(|it| it.get() >= least << 20)
                && event.limit.is_some_and(|it| it.get() == limit << 20)
                && (least - limit..least - limit + 8).contains(&by)
        };
        let is_kill = |event: &bursar_model::Event| {
            event.event == EventKind::Kill && event.pid.is_some_and(|it| it.get() == pid)
        };
        let told = events.iter().position(is_told);
        let killed = events.iter().position(is_kill);
        ensure!(
            told.is_some() && told < killed,
            "{uid}: told {told:?}, killed {killed:?} of {} events",
            events.len()
        );
    }
    let told_of = |event: &bursar_model::Event| {
        event.overcommit.is_some() && event.uid.is_some_and(|it| it.get() == 60002)
    };
    ensure!(!world.daemon.events()?.iter().any(told_of), "who is within");
    let log = world.daemon.log()?;
    ensure!(
        ALICE_IS
            .iter()
            .any(|who| log.contains(&format!("limit_changed {who}: held ")))
            && log.contains("over by 3"),
        "{log}"
    );
    Ok(())
}

/// Neither with a default, whose limit she would get instead, nor without, when she would have none.
fn row_of_a_member(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "member", ORDINARY)?;
    start_with_groups(&mut world)?;
    world.daemon.limit("=film", "64M")?;
    let set = |who: &str, world: &World| set_processes(world, who, "200", false);
    for _ in 0..2 {
        for who in ["alice", "60001"] {
            let Reply::Refused(refusal) = set(who, &world)? else {
                bail!("it was not refused")
            };
            ensure!(refusal.kind == ErrorKind::Refused, "{refusal:?}");
            ensure!(refusal.message.contains("pays into =film"), "{refusal:?}");
        }
        world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
        world.daemon.limit("default", "300M")?;
    }
    // There it may stand, and so may hers with a limit of her own.
    ensure!(matches!(set("=film", &world)?, Reply::Changed { .. }));
    world.daemon.limit("alice", "100M")?;
    ensure!(matches!(set("alice", &world)?, Reply::Changed { .. }));
    let limit = world.daemon.memory("alice")?.limit;
    ensure!(limit.is_some_and(|it| it.get() == 100 << 20), "{limit:?}");
    Ok(())
}

fn rows_of_a_group(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "grouprows", ORDINARY)?;
    let limits = "[limits]\n\"@film\" = { numproc = 200 }\nbob = { numproc = 100 }\n\
                  carol = { memory = \"none\", numproc = 100 }\ndefault = { memory = \"64M\" }\n";
    fs::write(world.daemon.limits_path(), limits)?;
    start_with_groups(&mut world)?;
    for (uid, who) in [(60001, "alice"), (60002, "bob")] {
        world
            .hog(&format!("uid={uid} hold=200M pause"))?
            .expect_killed()?;
        let limit = world.daemon.memory(who)?.limit;
        ensure!(limit.is_some_and(|it| it.get() == 64 << 20), "{limit:?}");
    }
    // That she has no limit on memory is written.
    let mut carol = world.hog("uid=60003 hold=200M say=there pause")?;
    carol.hear("there")?;
    carol.expect_alive("one with a limit of none")?;
    // By command, too; and a change of the default reaches them.
    world.daemon.limit("default", "300M")?;
    let mut alice = world.hog("uid=60001 hold=200M say=there pause")?;
    alice.hear("there")?;
    let refused = world.daemon.try_limit("default", "100M", false)?;
    expect_refused(&refused, &["alice holds 20", "100 MiB"])?;
    alice.expect_alive("one within the default")
}

fn older_processes(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "older", "")?;
    let mut old = world.there("uid=60001 hold=40M say=there wait hold=60M pause")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let held = world.daemon.memory("60001")?.held.get();
    ensure!(held >= 40 << 20, "only {held} bytes are seen");
    old.go_on()?;
    old.expect_killed()
}

fn default_covers(binaries: &Binaries) -> Result<()> {
    let config = "[accounts]\nuid_min = 60000\nexempt = [\"60005-60006\", \"60700-4294967294\"]\n";
    let mut world = World::new(binaries, "default", config)?;
    let _old = world.there("uid=60001 hold=30M say=there pause")?;
    world.daemon.start()?;
    world.daemon.limit("60004", "none")?;
    world.daemon.limit("default", "64M")?;
    world.hog("uid=60002 hold=200M pause")?.expect_killed()?;
    for (uid, why) in [
        (59_999, "below uid_min"),
        (60_005, "exempt"),
        (60_004, "limit none"),
    ] {
        let mut free = world
            .there(&format!("uid={uid} hold=80M say=there pause"))
            .with_context(|| why.to_owned())?;
        free.expect_alive(why)?;
    }
    let account = world
        .daemon
        .account("60001")?
        .context("the account of one who was there before")?;
    ensure!(account.kind == AccountKind::Default, "{account:?}");
    ensure!(world.daemon.memory("60001")?.held.get() >= 30 << 20);
    // Raised for all of them at once, then taken away.
    world.daemon.limit("default", "300M")?;
    let _fits = world.there("uid=60002 hold=200M say=there pause")?;
    let reply = world.daemon.ask(Operation::ClearLimit {
        who: "default".parse()?,
        force: false,
        terms: Terms::default(),
    })?;
    ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
    ensure!(
        world.daemon.account("60002")?.is_none(),
        "it is still there"
    );
    Ok(())
}

/// Runs the daemon with users and groups of the story's own: /etc/passwd and /etc/group are covered
/// in a mount namespace that only it sees.
fn start_with_groups(world: &mut World) -> Result<()> {
    let directory = world.directory().to_owned();
    let passwd = "root:x:0:0::/root:/bin/sh\nalice:x:60001:60001::/:/bin/sh\nbob:x:60002:60002::/:/bin/sh\ncarol:x:60003:60100::/:/bin/sh\n";
    fs::write(directory.join("passwd"), passwd)?;
    fs::write(
        directory.join("group"),
        "root:x:0:\nfilm:x:60100:alice,bob\n",
    )?;
    fs::write(
        directory.join("nsswitch.conf"),
        "passwd: files\ngroup: files\n",
    )?;
    start_covered(world)
}

/// The same with the files as they are now.
fn start_covered(world: &mut World) -> Result<()> {
    let mut command = world.daemon.command()?;
    cover_etc(&mut command, world.directory());
    world.daemon.start_as(&mut command)
}

/// Makes a command see its own /etc/passwd, /etc/group and /etc/nsswitch.conf.
pub(super) fn cover_etc(command: &mut Command, directory: &std::path::Path) {
    let directory = directory.to_owned();
    enter_before_exec(command, move || {
        for name in ["passwd", "group", "nsswitch.conf"] {
            let target = std::path::Path::new("/etc").join(name);
            if !target.exists() {
                continue;
            }
            rustix::mount::mount_bind(directory.join(name), &target)?;
        }
        Ok(())
    });
}

fn shared(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "shared", "")?;
    start_with_groups(&mut world)?;
    world.daemon.limit("=film", "100M")?;
    let mut alice = world.there("uid=60001 hold=20M say=there pause")?;
    let mut carol = world.there("uid=60003 hold=15M say=there pause")?;
    let account = world
        .daemon
        .account("=film")?
        .context("the shared account")?;
    ensure!(
        account.kind == AccountKind::Shared && account.uid.is_none(),
        "{account:?}"
    );
    let mut bob = world.hog("uid=60002 hold=90M pause")?;
    bob.expect_killed()?;
    alice.expect_alive("a member")?;
    carol.expect_alive("a member by primary group")?;
    let kill = world.daemon.await_event(EventKind::Kill, bob.pid())?;
    ensure!(kill.account.as_deref() == Some("=film"), "{kill:?}");
    ensure!(kill.uid.is_some_and(|uid| uid.get() == 60002), "{kill:?}");
    // Whoever was chosen and could not be signalled from there is told of without the others, at its own event.
    let met = kill.candidates_met;
    let is_late = met == Some(0) && !super::triggers::sends_to_others()?;
    ensure!(met == Some(3) || is_late, "{kill:?}");
    // A limit of one's own leaves the shared account.
    world.daemon.limit("bob", "150M")?;
    let _bob = world.there("uid=60002 hold=100M say=there pause")?;
    ensure!(world.daemon.memory("bob")?.held.get() >= 100 << 20);
    let row = world.daemon.memory("=film")?;
    ensure!(row.held.get() < 80 << 20, "bob still counts: {}", row.held);
    Ok(())
}

fn group(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "group", "")?;
    start_with_groups(&mut world)?;
    world.daemon.limit("@film", "64M")?;
    let mut hogs = Vec::new();
    for uid in [60001, 60002, 60003] {
        hogs.push(world.there(&format!("uid={uid} hold=40M say=there pause"))?);
    }
    for hog in &mut hogs {
        hog.expect_alive("a member within his own limit")?;
    }
    for name in ["alice", "bob", "carol"] {
        ensure!(
            world
                .daemon
                .account(name)?
                .is_some_and(|it| it.kind == AccountKind::Group),
            "{name}"
        );
    }
    world.hog("uid=60002 hold=200M pause")?.expect_killed()
}

fn looked_up_anew(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "anew", "")?;
    start_with_groups(&mut world)?;
    let remarks = world.daemon.limit("zoe", "1G")?.join("\n");
    ensure!(remarks.contains("no user of this name"), "{remarks}");
    world.daemon.limit("bob", "1G")?;
    // useradd zoe; userdel bob; useradd bob
    let file = world.directory().join("passwd");
    let passwd = fs::read_to_string(&file)?.replace("bob:x:60002:60002:", "bob:x:60005:60005:");
    fs::write(&file, passwd + "zoe:x:60004:60004::/:/bin/sh\n")?;
    for (who, uid) in [("zoe", 60004), ("bob", 60005)] {
        let remarks = world.daemon.limit(who, "64M")?;
        ensure!(remarks.is_empty(), "{remarks:?}");
        world
            .hog(&format!("uid={uid} hold=200M pause"))?
            .expect_killed()?;
    }
    let mut free = world.there("uid=60002 hold=100M say=there pause")?;
    free.expect_alive("who had bob's number before")?;
    // Nobody need set a limit again, nor reload, for a user who comes after his limit.
    world.daemon.limit("yan", "64M")?;
    let passwd = fs::read_to_string(&file)?;
    fs::write(&file, passwd + "yan:x:60006:60006::/:/bin/sh\n")?;
    until("yan's account", || {
        Ok(world.daemon.account("yan")?.map(drop))
    })?;
    world.hog("uid=60006 hold=200M pause")?.expect_killed()
}

fn directory_down(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "down", "")?;
    start_with_groups(&mut world)?;
    world.daemon.limit("@film", "64M")?;
    // The group is a local one; bob is in a directory, which goes away.
    let directory = world.directory().to_owned();
    let passwd = fs::read_to_string(directory.join("passwd"))?;
    let here: Vec<&str> = passwd
        .lines()
        .filter(|line| !line.starts_with("bob:"))
        .collect();
    fs::write(
        directory.join("nsswitch.conf"),
        "passwd: files hesiod\ngroup: files\n",
    )?;
    fs::write(directory.join("passwd"), here.join("\n") + "\n")?;
    let reloads = || -> Result<usize> { Ok(world.daemon.events_of(EventKind::Reloaded)?.len()) };
    let before = reloads()?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the reload", || Ok((reloads()? > before).then_some(())))?;
    for restarted in [false, true] {
        if restarted {
            world.daemon.end(libc::SIGTERM)?;
            start_covered(&mut world)?;
        }
        let said = world.daemon.status()?.remarks.join("\n");
        ensure!(
            said.contains("@film") && said.contains("known from before stand as well"),
            "{said}"
        );
        world.hog("uid=60002 hold=200M pause")?.expect_killed()?;
    }
    Ok(())
}

fn remarks(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "remarks", "")?;
    fs::write(
        world.daemon.limits_path(),
        "[limits]\nnobodyhere = { memory = \"1G\" }\n60001 = { memory = \"64M\" }\n",
    )?;
    world.daemon.start()?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(
        said.contains("nobodyhere") && said.contains("no user"),
        "{said}"
    );
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    let remarks = world.daemon.limit("60003", "1M")?.join("\n");
    ensure!(remarks.contains("less than a login needs"), "{remarks}");
    let remarks = world.daemon.limit("60002", "8T")?;
    ensure!(
        remarks
            .iter()
            .any(|it| it.contains("above this machine's memory")),
        "{remarks:?}"
    );
    let kept = fs::read_to_string(world.daemon.limits_path())?;
    ensure!(kept.contains("nobodyhere"), "{kept}");
    Ok(())
}

fn cleared(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "cleared", "[last_defence]\nwhen = \"always\"\n")?;
    let mut hog = world.there("uid=60001 hold=30M say=there wait hold=100M say=more pause")?;
    let adj = || -> Result<String> {
        Ok(
            fs::read_to_string(format!("/proc/{}/oom_score_adj", hog.pid()))?
                .trim()
                .to_owned(),
        )
    };
    let before = adj()?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    until("oom_score_adj being raised", || {
        Ok((adj()? == "900").then_some(()))
    })?;
    let reply = world.daemon.ask(Operation::ClearLimit {
        who: "60001".parse()?,
        force: false,
        terms: Terms::default(),
    })?;
    ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
    until("oom_score_adj being restored", || {
        Ok((adj()? == before).then_some(()))
    })?;
    hog.go_on()?;
    hog.hear("more")?;
    let again = world.daemon.ask(Operation::ClearLimit {
        who: "60001".parse()?,
        force: false,
        terms: Terms::default(),
    })?;
    ensure!(
        matches!(again, Reply::Refused(ref it) if it.kind == ErrorKind::NotFound),
        "{again:?}"
    );
    Ok(())
}

/// Of what ran before its limit nobody knows what it shares: it is looked at when the limit is set. Looked at when
/// it is passed, as it was, that costs what grows meanwhile, 4 to 8 MiB here.
fn looked_at_first(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "first", "")?;
    world.daemon.start()?;
    let pss_scans = || anyhow::Ok(world.daemon.status()?.kernel_half.surveys.made);
    for round in 0..4 {
        let others = (0..4).map(|_| world.there("uid=60001 hold=300M say=there pause"));
        let _others = others.collect::<Result<Vec<_>>>()?;
        let mut grower = world.there("uid=60001 hold=10M say=there wait hold=900M pause")?;
        let before = pss_scans()?;
        // Without a notice below it, at which it would be asked beforehand.
        let memory = BoundsSpec {
            limit: "1500M".parse()?,
            notice: Some("100%".parse()?),
            barrier: None,
        };
        let change = LimitChange {
            who: "60001".parse()?,
            memory,
            force: false,
            terms: Terms::default(),
        };
        let reply = world.daemon.ask(Operation::SetLimit(change))?;
        ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
        until("his processes being looked at", || {
            Ok((pss_scans()? > before).then_some(()))
        })?;
        let account = world.daemon.account("60001")?.context("no account")?;
        ensure!(
            account.correction.is_none(),
            "something is taken off that nobody watches: {account:?}"
        );
        grower.go_on()?;
        grower.expect_killed()?;
        let kill = world.daemon.await_event(EventKind::Kill, grower.pid())?;
        let over = kill.overcommit.context("by how much?")?;
        ensure!(over < Bytes::from_mib(1), "round {round}: {over} over");
        let cleared = clear(&world, "60001", false)?;
        ensure!(matches!(cleared, Reply::Changed { .. }), "{cleared:?}");
    }
    Ok(())
}
