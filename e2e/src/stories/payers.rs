// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who pays: the real user, whatever program he came through; the owner of the outermost user namespace
//! that is not root's; and nobody for what is dead. How soon a change of user moves the charge.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bursar_model::{Event, EventKind};
use bursar_protocol::{Operation, Reply, Terms};

use crate::hog::Hog;
use crate::proc::{children_of, status_of};
use crate::runner::{Place, Story};
use crate::users::{ANN, BEN, TestUsers};
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "who_pays_after_su_the_user_become",
        place: Place::Host,
        tell: su,
    },
    Story {
        name: "who_pays_after_sudo_the_user_become",
        place: Place::Host,
        tell: sudo,
    },
    Story {
        name: "who_pays_for_what_cron_starts_the_owner_of_the_crontab",
        place: Place::Host,
        tell: cron,
    },
    Story {
        name: "who_pays_for_what_at_starts_the_owner_of_the_job",
        place: Place::Host,
        tell: at,
    },
    Story {
        name: "who_pays_in_a_rootless_container_its_owner_whatever_uid_is_taken",
        place: Place::Anywhere,
        tell: container,
    },
    Story {
        name: "who_pays_in_user_namespaces_where_bursard_decides",
        place: Place::Anywhere,
        tell: by_scans,
    },
    Story {
        name: "who_pays_in_a_user_namespace_of_roots_everybody_for_himself",
        place: Place::Anywhere,
        tell: roots_namespace,
    },
    Story {
        name: "who_pays_in_ones_own_namespace_inside_roots_its_owner",
        place: Place::Anywhere,
        tell: inside_roots,
    },
    Story {
        name: "who_pays_for_a_uid_that_root_has_shifted_root_unless_it_is_named",
        place: Place::Anywhere,
        tell: shifted,
    },
    Story {
        name: "who_pays_for_files_in_a_user_namespace_of_roots_their_owners",
        place: Place::Anywhere,
        tell: files_in_roots,
    },
    Story {
        name: "oom_score_adj_goes_by_who_pays",
        place: Place::Anywhere,
        tell: oom_score,
    },
    Story {
        name: "who_pays_for_zombies_nobody",
        place: Place::Anywhere,
        tell: zombies,
    },
    Story {
        name: "who_pays_after_a_change_of_uid_is_seen_without_a_page_fault",
        place: Place::Host,
        tell: unseen,
    },
];

const SIZE: u64 = 30 << 20;
/// Holds that much, waits, and tries more than anybody here may have.
const GROW: &str = "hold=30M say=there wait hold=200M pause";

fn stage(binaries: &Binaries, name: &str) -> Result<(World, TestUsers)> {
    let mut world = World::new(binaries, name, "")?;
    // Ann's programs are found through it.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(world.directory(), open).context("open the stage")?;
    let users = TestUsers::furnish(binaries, world.directory())?;
    world.daemon.start()?;
    for uid in [ANN, BEN] {
        world.daemon.limit(&uid.to_string(), "100M")?;
    }
    Ok((world, users))
}

fn held(world: &World, uid: u32) -> Result<u64> {
    Ok(world.daemon.memory(&uid.to_string())?.held.get())
}

/// Also where it has ended since.
fn await_held_once(world: &World, uid: u32) -> Result<()> {
    until("the payer having been charged", || {
        let most = world.daemon.memory(&uid.to_string())?.maxheld;
        Ok((most.get() >= SIZE).then_some(()))
    })
}

fn await_held(world: &World, uid: u32) -> Result<()> {
    until("the payer being charged", || {
        Ok((held(world, uid)? >= SIZE).then_some(()))
    })
}

/// The kill of a hog that this user pays for.
fn await_kill(world: &World, uid: u32) -> Result<Event> {
    until("a kill", || {
        let kills = world.daemon.events_of(EventKind::Kill)?;
        Ok(kills
            .into_iter()
            .find(|it| it.uid.is_some_and(|it| it.get() == uid)))
    })
}

fn expect_killed(world: &World, hog: &mut Hog, uid: u32) -> Result<()> {
    hog.go_on()?;
    let kill = await_kill(world, uid)?;
    ensure!(kill.comm.as_deref() == Some("hog"), "{kill:?}");
    Ok(())
}

fn hog(binaries: &Binaries, script: &str) -> String {
    format!("{} {script}", binaries.path("hog").display())
}

fn su(binaries: &Binaries) -> Result<()> {
    let (world, users) = stage(binaries, "su")?;
    let mut su = users.start(&["su", "ann", "-c", &hog(binaries, GROW)])?;
    su.hear("there")?;
    await_held(&world, ANN)?;
    expect_killed(&world, &mut su, ANN)?;
    // su itself, still root, waits for its child: not hers.
    println!("        Ann pays for what su starts; what su has itself is root's");
    until("su's end", || Ok((!su.is_alive()?).then_some(())))
}

fn sudo(binaries: &Binaries) -> Result<()> {
    let (world, users) = stage(binaries, "sudo")?;
    let sudo = users.program("sudo", "usr/bin/sudo");
    let as_ben = format!("exec {sudo} -u ben {}", hog(binaries, GROW));
    let mut as_ben = users.start(&["su", "ann", "-c", &as_ben])?;
    as_ben.hear("there")?;
    await_held(&world, BEN)?;
    let hers = held(&world, ANN)?;
    ensure!(hers < SIZE / 2, "she pays {hers} for his");
    expect_killed(&world, &mut as_ben, BEN)?;
    // Who may become root has root's limit: none.
    let as_root = format!("exec {sudo} {}", hog(binaries, "hold=150M say=there pause"));
    let mut as_root = users.start(&["su", "ann", "-c", &as_root])?;
    as_root.hear("there")?;
    let hers = held(&world, ANN)?;
    ensure!(hers < SIZE / 2, "she pays {hers} for root's");
    as_root.expect_alive("root's")?;
    println!(
        "        Ben pays after sudo -u ben, root after sudo; Ann for {hers} bytes of her own"
    );
    Ok(())
}

fn cron(binaries: &Binaries) -> Result<()> {
    let (world, users) = stage(binaries, "cron")?;
    // Of cron's entries the one that needs nobody to wait for a full minute.
    users.write_crontab(&format!(
        "@reboot {}\n",
        hog(binaries, "hold=30M sleep=200 hold=200M pause")
    ))?;
    let mut cron = users.start(&[&users.program("cron", "usr/sbin/cron"), "-f"])?;
    await_held_once(&world, ANN)?;
    let kill = await_kill(&world, ANN)?;
    ensure!(kill.comm.as_deref() == Some("hog"), "{kill:?}");
    cron.expect_alive("cron")?;
    println!("        Ann pays for the job of her crontab; cron lives");
    Ok(())
}

fn at(binaries: &Binaries) -> Result<()> {
    let (world, users) = stage(binaries, "at")?;
    let script = format!(
        "{} -f & while ! [ -e /run/atd.pid ]; do sleep 0.1; done; \
         su ann -c \"echo '{}' | {} now\" 2>&1; wait",
        users.program("at", "usr/sbin/atd"),
        hog(binaries, "hold=30M sleep=200 hold=200M pause"),
        users.program("at", "usr/bin/at"),
    );
    let mut atd = users.start(&["/bin/sh", "-c", &script])?;
    await_held_once(&world, ANN)?;
    let kill = await_kill(&world, ANN)?;
    ensure!(kill.comm.as_deref() == Some("hog"), "{kill:?}");
    atd.expect_alive("atd")?;
    println!("        Ann pays for her job; atd lives");
    Ok(())
}

/// As newuidmap would: uid 0 inside is the owner, the others are of a range that is his.
pub(super) fn map_users(pid: u32, owner: u32, range: u32) -> Result<()> {
    for map in ["uid_map", "gid_map"] {
        let text = format!("0 {owner} 1\n1 {range} 50\n");
        fs::write(format!("/proc/{pid}/{map}"), text).context("map users of a namespace")?;
    }
    Ok(())
}

fn container(binaries: &Binaries) -> Result<()> {
    container_by(binaries, &[])
}

/// The same rules, by what /proc says.
fn by_scans(binaries: &Binaries) -> Result<()> {
    for trigger in ["poll", "trace"] {
        let arguments = ["--trigger", trigger];
        container_by(binaries, &arguments)?;
        inside_roots_by(binaries, &arguments)?;
        shifted_by(binaries, &arguments)?;
    }
    Ok(())
}

fn container_by(binaries: &Binaries, arguments: &[&str]) -> Result<()> {
    let mut world = World::new(binaries, "container", "")?;
    world.daemon.with_arguments(arguments);
    world.daemon.start()?;
    world.daemon.limit("60511", "100M")?;
    // Whose uid is used inside, and who never did anything.
    world.daemon.limit("60557", "100M")?;
    let mut hog = world.there(
        "uid=60511 userns say=there wait uid=8 hold=30M say=inside wait userns hold=30M say=deeper \
         wait hold=200M pause",
    )?;
    map_users(hog.pid(), 60511, 60550)?;
    hog.go_on()?;
    hog.hear("inside")?;
    let seen = status_of(hog.pid(), "Uid")?;
    ensure!(seen == 60557, "it is uid {seen} outside");
    until("the owner being charged", || {
        Ok((held(&world, 60511)? >= SIZE).then_some(()))
    })?;
    ensure!(held(&world, 60557)? == 0, "the uid inside is charged");
    hog.go_on()?;
    hog.hear("deeper")?;
    until("the owner of the outermost namespace being charged", || {
        Ok((held(&world, 60511)? >= 2 * SIZE).then_some(()))
    })?;
    ensure!(
        held(&world, 60557)? == 0,
        "the owner of the inner namespace is charged"
    );
    hog.go_on()?;
    hog.expect_killed()
}

/// `default` is to concern nobody but ours.
const ORDINARY: &str = "[accounts]\nuid_min = 60000\n";
/// As `unshare` and PrivateUsers=full map it.
const EVERYBODY: &str = "0-0-4294967295";

/// What firejail --noroot and bubblewrap with the set-uid bit do, and services with PrivateUsers=.
fn roots_namespace(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "roots", ORDINARY)?;
    world.daemon.start()?;
    for who in ["60515", "default"] {
        world.daemon.limit(who, "100M")?;
        for (map, inside) in [
            (EVERYBODY, 60515),
            ("0-0-1,60515-60515-1", 60515),
            ("0-60515-1", 0),
        ] {
            let mut hog = world.hog(&format!("userns-for=0:{map} uid={inside} {GROW}"))?;
            hog.hear("there")?;
            ensure!(status_of(hog.pid(), "Uid")? == 60515, "{map}");
            await_held(&world, 60515)?;
            until("it alone being counted", || {
                let account = world.daemon.account("60515")?.context("his account")?;
                Ok((account.processes == 1).then_some(()))
            })?;
            hog.go_on()?;
            hog.expect_killed()?;
            let kill = world.daemon.await_event(EventKind::Kill, hog.pid())?;
            ensure!(kill.uid.is_some_and(|it| it.get() == 60515), "{kill:?}");
        }
        let reply = world.daemon.ask(Operation::ClearLimit {
            who: who.parse()?,
            force: false,
            terms: Terms::default(),
        })?;
        ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
    }
    // In there, too, another user is another payer.
    for uid in ["60515", "60516"] {
        world.daemon.limit(uid, "100M")?;
    }
    let mut hog = world.hog(&format!(
        "userns-for=0:{EVERYBODY} uids=60515:60516 hold=30M say=there wait uids=60516:60516 hold=1M \
         say=moved pause"
    ))?;
    hog.hear("there")?;
    await_held(&world, 60515)?;
    hog.go_on()?;
    hog.hear("moved")?;
    await_held(&world, 60516)?;
    until("the first one being free of it", || {
        Ok((held(&world, 60515)? == 0).then_some(()))
    })
}

/// A map of many extents.
fn extents(
    first: &str,
    others: impl Iterator<Item = u32>,
    extent: impl Fn(u32) -> (u32, u32, u32),
) -> String {
    others
        .map(extent)
        .fold(first.to_owned(), |map, (inside, outside, count)| {
            format!("{map},{inside}-{outside}-{count}")
        })
}

/// A rootless container in a sandbox that root has made.
fn inside_roots(binaries: &Binaries) -> Result<()> {
    inside_roots_by(binaries, &[])
}

fn inside_roots_by(binaries: &Binaries, arguments: &[&str]) -> Result<()> {
    let mut world = World::new(binaries, "insideroots", "")?;
    world.daemon.with_arguments(arguments);
    world.daemon.start()?;
    for uid in ["60515", "60557"] {
        world.daemon.limit(uid, "100M")?;
    }
    for around in [
        EVERYBODY.to_owned(),
        // More than a map holds by itself: the rest lies elsewhere, in the order of the uids outside.
        extents("0-0-1", (60_510..60_570).step_by(10), |uid| (uid, uid, 10)),
    ] {
        let mut hog = world.hog(&format!(
            "userns-for=0:{around} userns-for=60515:0-60515-1,1-60550-9 uid=8 {GROW}"
        ))?;
        hog.hear("there")?;
        ensure!(status_of(hog.pid(), "Uid")? == 60557);
        await_held(&world, 60515)?;
        ensure!(held(&world, 60557)? == 0, "the uid inside is charged");
        hog.go_on()?;
        hog.expect_killed()?;
    }
    Ok(())
}

/// systemd-nspawn -U: uids that nobody has outside, however many there are.
fn shifted(binaries: &Binaries) -> Result<()> {
    shifted_by(binaries, &[])
}

fn shifted_by(binaries: &Binaries, arguments: &[&str]) -> Result<()> {
    let mut world = World::new(binaries, "shifted", ORDINARY)?;
    world.daemon.with_arguments(arguments);
    world.daemon.start()?;
    let scripts = [
        "userns-for=0:0-60700-100 uid=5".to_owned(),
        // As another one inside, where the owner is as little anybody's.
        "userns-for=0:0-60700-100 userns-for=5:0-5-1,1-50-9 uid=4".to_owned(),
        format!(
            "userns-for=0:{} uid=5",
            extents("0-60700-2", (2..20).step_by(2), |uid| (
                uid,
                60_700 + uid,
                2
            ))
        ),
    ];
    let expect_nobody = |world: &World| -> Result<()> {
        let mut hogs = Vec::new();
        for script in &scripts {
            let hog = world.there(&format!("{script} hold=80M say=there pause"))?;
            let uid = status_of(hog.pid(), "Uid")?;
            ensure!((60_700..60_800).contains(&uid), "{script}: {uid}");
            hogs.push((hog, script));
        }
        // Two walks over all processes.
        std::thread::sleep(Duration::from_millis(2_500));
        let accounts = world.daemon.status()?.accounts;
        let theirs = accounts
            .iter()
            .find(|it| it.uid.is_some_and(|it| it.get() >= 60_700));
        ensure!(theirs.is_none(), "{theirs:?}");
        for (hog, script) in &mut hogs {
            hog.expect_alive(script)?;
            hog.finish()?;
        }
        Ok(())
    };
    expect_nobody(&world)?;
    world.daemon.limit("default", "64M")?;
    expect_nobody(&world)?;
    // By his number, whether or not somebody has it: then as any other.
    let mut named = world.hog(&format!(
        "{} hold=30M say=there wait hold=100M pause",
        scripts[0]
    ))?;
    named.hear("there")?;
    world.daemon.limit("60705", "64M")?;
    await_held(&world, 60705)?;
    named.go_on()?;
    named.expect_killed()?;
    let mut inside = world.hog(&format!("{} {GROW}", scripts[1]))?;
    inside.hear("there")?;
    await_held(&world, 60705)?;
    inside.go_on()?;
    inside.expect_killed()
}

fn files_in_roots(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "rootsfiles", "")?;
    world.daemon.start()?;
    world.daemon.limit("60515", "100M")?;
    let mut hog = world.hog(&format!(
        "userns-for=0:{EVERYBODY} tmpfs=4K uid=60515 file=/tmp/his:30M say=there pause"
    ))?;
    hog.hear("there")?;
    until("the file being counted", || {
        let account = world.daemon.account("60515")?.context("his account")?;
        // Less what is mapped: in a guest programs lie in a tmpfs themselves.
        Ok((account.unmapped.get() >= SIZE / 2).then_some(()))
    })
}

fn oom_score(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(
        binaries,
        "oomscore",
        &format!("{ORDINARY}[last_defence]\nwhen = \"always\"\n"),
    )?;
    let there = |script: &str| -> Result<Hog> {
        let mut hog = world.hog(&format!("{script} hold=4M say=there pause"))?;
        hog.hear("there")?;
        Ok(hog)
    };
    let rootless = there("userns-for=60511:0-60511-1,1-60550-50 uid=8")?;
    let shifted = there("userns-for=0:0-60700-100 uid=5")?;
    let outside = there("uid=60516")?;
    let adj = |hog: &Hog| -> Result<String> {
        let text = fs::read_to_string(format!("/proc/{}/oom_score_adj", hog.pid()))?;
        Ok(text.trim().to_owned())
    };
    let before = adj(&shifted)?;
    world.daemon.start()?;
    world.daemon.limit("60511", "100M")?;
    until("a rootless container being raised", || {
        Ok((adj(&rootless)? == "900").then_some(()))
    })?;
    world.daemon.limit("default", "100M")?;
    until("who is covered by default being raised", || {
        Ok((adj(&outside)? == "900").then_some(()))
    })?;
    // Nobody of default's, and whoever was looked at before the other.
    ensure!(adj(&shifted)? == before, "{}", adj(&shifted)?);
    Ok(())
}

fn zombies(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "zombies", "")?;
    world.daemon.start()?;
    world.daemon.limit("60512", "500M")?;
    let hog = world.there("uid=60512 zombies=40:4M say=there pause")?;
    let children = children_of(hog.pid())?;
    ensure!(children.len() == 40, "{children:?}");
    until("the parent alone being charged", || {
        let account = world.daemon.account("60512")?.context("the account")?;
        let held = world.daemon.memory("60512")?.held.get();
        let is_alone = account.processes == 1 && account.dying.get() == 0 && held < 4 << 20;
        Ok(is_alone.then_some(()))
    })?;
    Ok(())
}

/// Page faults of a process so far.
fn faults(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("read /proc/PID/stat")?;
    let fields = text.rsplit_once(')').context("a comm")?.1;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    number(7)
        .zip(number(9))
        .map(|(minor, major)| minor + major)
        .context("page faults")
}

/// How long after a change of uid the charge has moved to `uid`.
fn time_move(world: &World, hog: &mut Hog, uid: u32) -> Result<Duration> {
    // Its last page faults are those on its way into the wait.
    until("it waiting", || {
        let text = fs::read_to_string(format!("/proc/{}/syscall", hog.pid()));
        let is_reading = text.is_ok_and(|it| it.starts_with(&format!("{} 0x0 ", libc::SYS_read)));
        Ok(is_reading.then_some(()))
    })?;
    let before = faults(hog.pid())?;
    hog.go_on()?;
    within(Duration::from_secs(5), "the change of uid", || {
        Ok((status_of(hog.pid(), "Uid")? == u64::from(uid)).then_some(()))
    })?;
    let changed = Instant::now();
    within(Duration::from_secs(12), "the charge moving", || {
        Ok((held(world, uid)? >= SIZE).then_some(()))
    })?;
    let took = changed.elapsed();
    let taken = faults(hog.pid())? - before;
    if taken > 0 {
        bail!("{taken} page faults told of the change; the story wants none");
    }
    Ok(took)
}

fn unseen(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "unseen", "")?;
    world.daemon.start()?;
    for uid in ["60513", "60514"] {
        world.daemon.limit(uid, "100M")?;
    }
    let (mut entered, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        // Root's so far, whom nobody counts: only a walk over all tasks can find it.
        let mut hog = world.hog("hold=30M unseen-uids=60513:60513 pause")?;
        hog.hear("ready")?;
        ensure!(held(&world, 60513)? == 0);
        entered.push(time_move(&world, &mut hog, 60513)?);
        hog.finish()?;
        // Counted already: the re-sum of what is recorded sees it.
        let mut hog = world.hog("uids=60513:60514 hold=30M unseen-uids=60514:60514 pause")?;
        hog.hear("ready")?;
        until("the first user being charged", || {
            Ok((held(&world, 60513)? >= SIZE).then_some(()))
        })?;
        moved.push(time_move(&world, &mut hog, 60514)?);
        hog.finish()?;
        until("nobody being charged", || {
            Ok((held(&world, 60513)? + held(&world, 60514)? == 0).then_some(()))
        })?;
    }
    let longest = |all: &[Duration]| all.iter().max().copied().unwrap_or_default();
    println!(
        "        without a page fault: from nobody to a user in {entered:.0?}, from user to user in {moved:.0?}"
    );
    ensure!(
        longest(&entered) < Duration::from_millis(1300),
        "{entered:?}"
    );
    ensure!(longest(&moved) < Duration::from_millis(700), "{moved:?}");
    Ok(())
}
