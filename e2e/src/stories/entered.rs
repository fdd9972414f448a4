// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts that processes enter and never leave (S5 section 2.1).

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bursar_model::{EventKind, How, Resource};
use bursar_protocol::{Quota, Reply};

use super::beancounters::{bill_of, limit};
use super::limits::{ORDINARY, clear, expect_refused};
use super::survival::halves;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "an_entered_account_is_charged_for_its_processes_and_their_children",
        place: Place::Anywhere,
        tell: charged,
    },
    Story {
        name: "an_entered_account_kills_its_own_largest_and_nobody_else",
        place: Place::Anywhere,
        tell: kills_inside,
    },
    Story {
        name: "what_happened_to_an_account_or_a_user_is_told_to_who_may_know",
        place: Place::Anywhere,
        tell: told_by_whom,
    },
    Story {
        name: "who_may_enter_an_account_or_is_in_it_sees_what_is_left_of_it",
        place: Place::Anywhere,
        tell: seen_from_outside,
    },
    Story {
        name: "an_entered_account_cannot_be_left",
        place: Place::Anywhere,
        tell: escapes,
    },
    Story {
        name: "an_entered_account_cannot_be_left_by_a_thread_that_was_there_before",
        place: Place::Anywhere,
        tell: threads,
    },
    Story {
        name: "an_entered_account_is_for_those_it_is_granted_to",
        place: Place::Anywhere,
        tell: granted_only,
    },
    Story {
        name: "an_entered_account_has_room_for_what_its_members_reserve",
        place: Place::Anywhere,
        tell: reserved,
    },
    Story {
        name: "an_entered_account_outlives_bursard",
        place: Place::Anywhere,
        tell: outlives,
    },
    Story {
        name: "an_entered_account_keeps_its_threads_when_the_kernel_half_is_replaced",
        place: Place::Anywhere,
        tell: replaced,
    },
    Story {
        // LSM programs.
        name: "an_entered_account_has_the_gate_before_it",
        place: Place::Guest,
        tell: gate,
    },
    Story {
        // As above.
        name: "an_entered_account_has_beancounters_that_refuse",
        place: Place::Guest,
        tell: bills,
    },
    Story {
        name: "an_entered_account_taken_away_leaves_its_processes_to_their_users",
        place: Place::Anywhere,
        tell: taken_away,
    },
    Story {
        name: "an_entered_account_is_not_taken_away_onto_a_stricter_limit",
        place: Place::Anywhere,
        tell: taken_away_below_held,
    },
];

const ALICE: u32 = 60410;
const BOB: u32 = 60411;
const MALLORY: u32 = 60412;

const LIMITS: &str = "[limits]\n\
    \"=bursar-render\" = { memory = \"64M\", granted = [\"60410\"] }\n\
    \"=bursar-other\" = { memory = \"64M\", granted = [\"60410\"] }\n\
    60410 = { memory = \"900M\" }\n\
    60411 = { memory = \"900M\" }\n";

fn stage(binaries: &Binaries, name: &str, config: &str) -> Result<World> {
    let mut world = World::new(binaries, name, config)?;
    fs::write(world.daemon.limits_path(), LIMITS)?;
    world.let_users_in()?;
    world.daemon.start()?;
    Ok(world)
}

/// `bursar run --account ACCOUNT -- hog SCRIPT`, by that user.
fn inside(world: &World, uid: u32, account: &str, script: &str) -> Command {
    let hog = world.hog_command().get_program().to_owned();
    let mut command = world.bursar(&["run", "--account", account, "--"]);
    command.arg(hog).args(script.split_whitespace());
    command.uid(uid).gid(uid);
    command
}

/// `bursar run --account =bursar-render -- flooder STEPS`, by alice.
fn flood(binaries: &Binaries, world: &World, steps: &str) -> Result<Hog> {
    let mut command = world.bursar(&["run", "--account", "=bursar-render", "--"]);
    command.arg(binaries.path("flooder"));
    command.args(steps.split_whitespace());
    Hog::spawn(command.uid(ALICE).gid(ALICE).current_dir("/"))
        .with_context(|| format!("enter an account and {steps}"))
}

fn enter(world: &World, uid: u32, script: &str) -> Result<Hog> {
    Hog::spawn(&mut inside(world, uid, "=bursar-render", script))
        .with_context(|| format!("enter an account and {script}"))
}

fn held(world: &World, account: &str) -> Result<u64> {
    let account = world.daemon.account(account)?;
    let rows = account.map(|it| it.resources).unwrap_or_default();
    Ok(rows.values().map(|row| row.held.get()).sum())
}

fn kills(world: &World) -> Result<Vec<Option<String>>> {
    let events = world.daemon.events_of(EventKind::Kill)?;
    Ok(events.into_iter().map(|event| event.account).collect())
}

const MIB: u64 = 1 << 20;

fn charged(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "entered", "")?;
    let mut hog = enter(
        &world,
        ALICE,
        "hold=20M say=there wait fork=2 hold=8M say=there pause",
    )?;
    hog.hear("there")?;
    let is_about = |account: &str, mib: u64| {
        until("what was entered being charged", || {
            let held = held(&world, account)?;
            Ok((held >= mib * MIB && held < (mib + 12) * MIB).then_some(()))
        })
        .with_context(|| format!("{account} holds {:?}", held(&world, account)))
    };
    is_about("=bursar-render", 20)?;
    hog.go_on()?;
    hog.hear("there")?;
    hog.hear("there")?;
    // The parent's 20 MiB are shared by three and counted once; near no limit each counts in full.
    until("children being charged", || {
        Ok((held(&world, "=bursar-render")? >= 36 * MIB).then_some(()))
    })?;
    ensure!(
        held(&world, "60410")? < 4 * MIB,
        "her own account pays as well"
    );
    let processes = |account: &str| {
        let row = bill_of(&world, account)?.remove(&Resource::Numproc);
        row.and_then(|it| it.held).context("how many processes")
    };
    until(
        "all three being on the account's bill, and none on hers",
        || {
            let billed = (processes("=bursar-render")?, processes("60410")?);
            Ok((billed == (3, 0)).then_some(()))
        },
    )?;
    // What she starts elsewhere is her own.
    let _own = world.there("uid=60410 hold=30M say=there pause")?;
    is_about("60410", 30)?;
    // She asks, inside, about her account: it is the one she is in.
    let quota = world.bursar(&["quota", "--json"]);
    let mut asking = world.bursar(&["run", "--account", "=bursar-render", "--"]);
    asking.arg(quota.get_program()).args(quota.get_args());
    let output = asking.uid(ALICE).gid(ALICE).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("\"=bursar-render\""), "{text}");
    drop(hog);
    until("everything being given back", || {
        Ok((held(&world, "=bursar-render")? == 0).then_some(()))
    })
}

fn kills_inside(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "inkill", "")?;
    let mut outside = world.there("uid=60410 hold=200M say=there pause")?;
    let mut small = enter(&world, ALICE, "hold=10M say=there pause")?;
    small.hear("there")?;
    let mut large = enter(&world, ALICE, "hold=20M say=there wait hold=200M pause")?;
    large.hear("there")?;
    large.go_on()?;
    large.expect_killed()?;
    small.expect_alive("the smaller one in the same account")?;
    outside.expect_alive("her larger one outside")?;
    until("the kill being told", || {
        Ok((kills(&world)? == [Some("=bursar-render".to_owned())]).then_some(()))
    })?;
    let output = world.bursar(&["why"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("=bursar-render"), "{text}");
    Ok(())
}

/// `bursar why` by uid: its exit code and all it says.
fn why(world: &World, uid: u32, about: &[&str]) -> Result<(Option<i32>, String)> {
    let mut command = world.bursar(&[&["why"], about].concat());
    let output = command.uid(uid).gid(uid).stdin(Stdio::null()).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).replace('\n', " ");
    Ok((output.status.code(), text))
}

fn told_by_whom(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "asked", "")?;
    for (count, account) in ["=bursar-render", "=bursar-other"].into_iter().enumerate() {
        let mut hog = Hog::spawn(&mut inside(&world, ALICE, account, "hold=200M pause"))?;
        hog.expect_killed()?;
        until("the kill being told", || {
            Ok((kills(&world)?.len() == count + 1).then_some(()))
        })?;
    }
    let render: &[&str] = &["=bursar-render"];
    let of_alice: &[&str] = &["--user", "60410"];
    for (uid, about, code, said) in [
        (0, &[][..], 0, "account =bursar-other held"),
        (0, render, 0, "account =bursar-render held"),
        (0, of_alice, 0, "account =bursar-other held"),
        (0, &["--user", "60411"], 0, "nothing of 60411"),
        (0, &["nobody-has-this-name"], 1, "no user"),
        (0, &["@staff"], 2, "not an account"),
        (ALICE, render, 0, "account =bursar-render held"),
        (ALICE, of_alice, 0, "account =bursar-other held"),
        (BOB, &["--user", "60411"], 0, "nothing of 60411"),
        (BOB, render, 3, "only root"),
        (BOB, of_alice, 3, "only root"),
        (BOB, &["nobody-has-this-name"], 3, "only root"),
    ] {
        let (ended, text) = why(&world, uid, about)?;
        ensure!(
            ended == Some(code) && text.contains(said),
            "{uid} asks {about:?}: {ended:?}, {text}"
        );
    }
    Ok(())
}

/// `bursar quota --json` by uid: the shared accounts besides his own, and what they hold.
fn shared(world: &World, uid: u32) -> Result<Vec<(String, u64)>> {
    let mut command = world.bursar(&["quota", "--json"]);
    let output = command.uid(uid).gid(uid).stdin(Stdio::null()).output()?;
    let quota: Quota = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what {uid} is told: {output:?}"))?;
    let own = quota.account.context("no account of his own")?.account;
    ensure!(own == uid.to_string(), "{own} is not {uid}'s");
    let held = quota.shared.into_iter().map(|it| {
        let held = it.resources.values().map(|row| row.held.get()).sum();
        (it.account, held)
    });
    Ok(held.collect())
}

fn seen_from_outside(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "seen", "")?;
    let mut hog = enter(&world, ALICE, "hold=20M say=there pause")?;
    hog.hear("there")?;
    let sees = |uid: u32, expected: &[&str]| -> Result<Option<Vec<u64>>> {
        let (names, held): (Vec<String>, _) = shared(&world, uid)?.into_iter().unzip();
        Ok((names == expected).then_some(held))
    };
    let both = ["=bursar-other", "=bursar-render"];
    until("her being told of what she may enter", || {
        let held = sees(ALICE, &both)?.unwrap_or_default();
        Ok((held.first() == Some(&0) && held.last() >= Some(&(20 * MIB))).then_some(()))
    })?;
    ensure!(sees(BOB, &[])?.is_some(), "{:?}", shared(&world, BOB)?);
    // Nobody may enter any more; she is in one.
    let path = world.daemon.limits_path();
    fs::write(&path, LIMITS.replace("[\"60410\"]", "[]"))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("her being told only of what she is in", || {
        sees(ALICE, &both[1..])
    })?;
    ensure!(sees(BOB, &[])?.is_some(), "{:?}", shared(&world, BOB)?);
    drop(hog);
    until("her being told of nothing that she is not in", || {
        sees(ALICE, &[])
    })?;
    Ok(())
}

fn escapes(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "escapes", "")?;
    let tricks = [
        (ALICE, "fork=1"),
        (ALICE, "detach"),
        (ALICE, "exec detach exec"),
        (ALICE, "userns-root pidns"),
        (ALICE, "userns"),
        (ALICE, "leader-exits"),
        (ALICE, "twin"),
        (0, "uid=60411"),
        (0, "uid=60411 detach exec"),
        (0, "detach uid=60412"),
    ];
    let mut expected = 0;
    for (uid, trick) in tricks {
        // Not for ever, should it get away.
        let mut hog = enter(
            &world,
            uid,
            &format!("{trick} hold=200M say=free sleep=20000"),
        )?;
        expected += 1;
        until("who tries to leave being killed", || {
            let killed = kills(&world)?;
            ensure!(
                killed
                    .iter()
                    .all(|it| it.as_deref() == Some("=bursar-render")),
                "{trick}: killed in {killed:?}"
            );
            Ok((killed.len() >= expected).then_some(()))
        })
        .with_context(|| {
            let status = world
                .daemon
                .status()
                .map(|it| (it.accounts, it.kernel_half));
            let last = world
                .daemon
                .events()
                .map(|all| all.into_iter().rev().take(4).collect::<Vec<_>>());
            format!("{trick} by {uid}: {status:?}, {last:?}")
        })?;
        expected = kills(&world)?.len();
        hog.finish()?;
    }
    until("everything being given back", || {
        Ok((held(&world, "=bursar-render")? == 0).then_some(()))
    })
}

/// Who was let in is inside, whichever of his threads executes and makes the first one give way.
fn threads(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "threads", "")?;
    let socket = world.daemon.socket().display().to_string();
    let ask = |trick: &str| -> Result<bool> {
        let steps = format!("uid={ALICE} {trick}={socket}:=bursar-render hold=20M say=there pause");
        let mut hog = world.hog(&steps)?;
        let answer = hog.next_line()?;
        hog.hear("there")?;
        let is_in = answer.starts_with("{\"entered\"");
        ensure!(
            is_in || answer.contains("bursar run --account =bursar-render"),
            "{answer}"
        );
        let charged = || anyhow::Ok((held(&world, "=bursar-render")?, held(&world, "60410")?));
        until("who executed being charged", || {
            let (inside, outside) = charged()?;
            // A thread born while its process was in for a moment is in, though its process is not.
            let may_be_outside = !is_in && outside >= 20 * MIB;
            let may_be_inside = is_in || trick == "thread-asking";
            let is_inside = may_be_inside && inside >= 20 * MIB;
            Ok((is_inside || may_be_outside).then_some(()))
        })
        .with_context(|| answer.clone())?;
        hog.finish()?;
        until("everything being given back", || {
            Ok((charged()? == (0, 0)).then_some(()))
        })?;
        Ok(is_in)
    };
    ensure!(!ask("thread-asked")?, "two threads were let in");
    let mut let_in = 0;
    for _ in 0..20 {
        let_in += u32::from(ask("thread-asking")?);
    }
    println!("        with a thread made behind the question {let_in} of 20 were let in");
    Ok(())
}

fn granted_only(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "granted", "")?;
    let table = [
        (MALLORY, "=bursar-render", 3, "may not enter"),
        (BOB, "=bursar-render", 3, "may not enter"),
        (MALLORY, "=bursar-none", 3, "may not enter"),
        (0, "=bursar-none", 1, "there is no account"),
        (ALICE, "60411", 2, "only shared accounts"),
        (ALICE, "=bursar-render", 0, ""),
        (0, "=bursar-render", 0, ""),
    ];
    for (uid, account, code, words) in table {
        let mut command = inside(&world, uid, account, "sleep=1");
        let output = command.stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(code) && text.contains(words),
            "{uid} into {account}: {:?}: {text}",
            output.status
        );
    }
    // Once in, no other: not even root.
    for uid in [ALICE, 0] {
        let again = inside(&world, uid, "=bursar-other", "sleep=1");
        let mut command = world.bursar(&["run", "--account", "=bursar-render", "--"]);
        command.arg(again.get_program()).args(again.get_args());
        let output = command.uid(uid).gid(uid).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.code() == Some(1) && text.contains("which nobody leaves"),
            "{:?}: {text}",
            output.status
        );
    }
    Ok(())
}

fn gate(binaries: &Binaries) -> Result<()> {
    let config = "[gate]\nmode = \"auto\"\nmeasure = \"committed\"\n";
    let world = stage(binaries, "ingate", config)?;
    let grower = binaries.path("grower");
    let mut command = world.bursar(&["run", "--account", "=bursar-render", "--"]);
    command.arg(&grower).args([
        // another user's, in a child
        "forked=uid=60411+map=70M",
        "map=40M",
        "map=30M",
        "drop",
        "map=30M",
    ]);
    command.uid(0).current_dir("/").stdin(Stdio::null());
    let output = command.output().context("run grower")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "map=70M: ENOMEM\nmap=40M: ok\nmap=30M: ENOMEM\nmap=30M: ok\n";
    ensure!(said == expected, "{said}");
    // Outside it is another account's matter.
    let outside = Command::new(&grower)
        .args(["uid=60410", "map=200M"])
        .current_dir("/")
        .output()?;
    let said = String::from_utf8_lossy(&outside.stderr).into_owned();
    ensure!(said == "map=200M: ok\n", "{said}");
    until("the refusal being told", || {
        let events = world.daemon.events_of(EventKind::Refused)?;
        let mut accounts = events.iter().map(|it| it.account.as_deref());
        Ok(accounts
            .any(|it| it == Some("=bursar-render"))
            .then_some(()))
    })
}

/// What is charged of these rows.
fn expect_rows(world: &World, account: &str, rows: &[(Resource, u64)]) -> Result<()> {
    let charged = || -> Result<Vec<(Resource, Option<u64>)>> {
        let bill = bill_of(world, account)?;
        let one = |&(resource, _): &(Resource, u64)| {
            let bean = bill.get(&resource).filter(|bean| bean.how == How::Exact);
            (resource, bean.and_then(|bean| bean.held))
        };
        Ok(rows.iter().map(one).collect())
    };
    until("rows to be what is expected", || {
        let is_it = charged()?
            .iter()
            .zip(rows)
            .all(|(found, expected)| found.1 == Some(expected.1));
        Ok(is_it.then_some(()))
    })
    .with_context(|| format!("{account}: expected {rows:?}, found {:?}", charged()))
}

fn bills(binaries: &Binaries) -> Result<()> {
    use Resource::{Numfile, Numflock, Numothersock, Numproc};
    let world = stage(binaries, "inbills", "")?;
    let (shared, own) = ("=bursar-render", "60410");
    let mut before = flood(
        binaries,
        &world,
        "fork=1 open=2 flock=1 udp=1 say=ready wait",
    )?;
    before.hear("ready")?;
    // Hers first: what a member has is not hers, whoever has a limit.
    limit(&world, own, "numproc=10 numfile=20")?;
    limit(
        &world,
        shared,
        "numproc=6 numfile=30 numflock=3 numothersock=4",
    )?;
    let there = [(Numproc, 2), (Numfile, 4), (Numflock, 1), (Numothersock, 1)];
    expect_rows(&world, shared, &there)?;
    expect_rows(&world, own, &[(Numproc, 0), (Numfile, 0)])?;
    // The process that enters is hers, as she has paid for it; what it makes inside is the account's.
    let mut member = flood(
        binaries,
        &world,
        "fork=10 flock=9 udp=9 open=40 say=ready wait",
    )?;
    for expected in [
        "fork=10: 4 EAGAIN×6",
        "flock=9: 2 ENOLCK×7",
        "udp=9: 3 ENOBUFS×6",
    ] {
        let said = member.next_line()?;
        ensure!(said.trim_end() == expected, "{expected}: {said}");
    }
    member.hear("ready")?;
    let full = [
        (Numproc, 6),
        (Numfile, 30),
        (Numflock, 3),
        (Numothersock, 4),
    ];
    expect_rows(&world, shared, &full)?;
    expect_rows(&world, own, &[(Numproc, 1), (Numfile, 0)])?;
    for (resource, bean) in bill_of(&world, shared)? {
        let is_refused = full.iter().any(|(it, _)| *it == resource);
        ensure!(
            !is_refused || (bean.failcnt > 0 && bean.maxheld == bean.barrier),
            "{resource:?}: {bean:?}"
        );
    }
    drop(member);
    expect_rows(&world, shared, &there)?;
    expect_rows(&world, own, &[(Numproc, 0), (Numfile, 0)])?;
    // What she has paid for before she enters goes back to her, closed inside.
    let inside = world.bursar(&["run", "--account", shared, "--"]);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(
            "exec 3</dev/null 4</dev/null 5</dev/null; \
             exec \"$@\" sh -c 'echo there; read x; exec 3<&- 4<&- 5<&-; echo closed; read x'",
        )
        .arg("sh")
        .arg(inside.get_program())
        .args(inside.get_args());
    for (name, value) in inside.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let mut opener = Hog::spawn(command.uid(ALICE).gid(ALICE).current_dir("/"))?;
    opener.hear("there")?;
    expect_rows(&world, own, &[(Numproc, 1), (Numfile, 3)])?;
    opener.go_on()?;
    opener.hear("closed")?;
    expect_rows(&world, own, &[(Numproc, 1), (Numfile, 0)])?;
    drop(opener);
    expect_rows(&world, shared, &there)?;
    expect_rows(&world, own, &[(Numproc, 0), (Numfile, 0)])?;
    // A row below nothing would grant more than its barrier.
    let mut outside = Command::new(binaries.path("flooder"));
    outside.args(["uid=60410", "fork=20", "open=30"]);
    let output = outside.current_dir("/").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = "fork=20: 9 EAGAIN×11\nopen=30: 20 ENFILE×10\n";
    ensure!(said == expected, "{said}");
    // Whom nobody has paid for is the account's from the moment he enters.
    limit(&world, own, "numproc=unlimited numfile=unlimited")?;
    let mut member = flood(binaries, &world, "fork=10 say=ready wait")?;
    let said = member.next_line()?;
    ensure!(said.trim_end() == "fork=10: 3 EAGAIN×7", "{said}");
    member.hear("ready")?;
    expect_rows(&world, shared, &[(Numproc, 6)])?;
    drop(member);
    drop(before);
    let nothing = there.map(|(resource, _)| (resource, 0));
    expect_rows(&world, shared, &nothing)?;
    until("the refusals being told", || {
        let events = world.daemon.events_of(EventKind::Refused)?;
        let mut accounts = events.iter().map(|it| it.account.as_deref());
        Ok(accounts.any(|it| it == Some(shared)).then_some(()))
    })
}

fn reserved(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "inreserve", "")?;
    let library = binaries.path("libbursar.so");
    let client = |command: &mut Command| {
        command.arg("transact").arg("60410").arg(&library);
        command.env("BURSAR_SOCKET", world.daemon.socket());
        let mut client = Hog::spawn(command)?;
        client.hear("ready")?;
        anyhow::Ok(client)
    };
    // Root's, so that they may become hers.
    let member = || {
        let mut command = world.bursar(&["run", "--account", "=bursar-render", "--"]);
        client(command.arg(binaries.path("alloc_client")))
    };
    let ask = |client: &mut Hog, what: &str| -> Result<i32> {
        client.say(what)?;
        client
            .next_line()?
            .trim_end()
            .parse()
            .context(what.to_owned())
    };
    let promised =
        |account: &str| -> Result<u64> { Ok(world.daemon.memory(account)?.reserved.get()) };
    let (mut first, mut second) = (member()?, member()?);
    let mut outside = client(&mut Command::new(binaries.path("alloc_client")))?;
    // 40 MiB twice, of a barrier at 60.8.
    ensure!(ask(&mut first, "reserve 10240")? == 0);
    ensure!(promised("=bursar-render")? == 40 * MIB && promised("60410")? == 0);
    let refused = ask(&mut second, "reserve 10240")?;
    ensure!(refused == libc::ENOMEM, "{refused}");
    ensure!(ask(&mut outside, "reserve 10240")? == 0);
    ensure!(promised("60410")? == 40 * MIB);
    first.finish()?;
    until("a dead member's promise being given back", || {
        Ok((ask(&mut second, "reserve 10240")? == 0).then_some(()))
    })
}

fn outlives(binaries: &Binaries) -> Result<()> {
    let mut world = stage(binaries, "outlives", "")?;
    let script = "hold=10M say=there wait fork=1 hold=10M say=there wait fork=1 hold=200M pause";
    let mut hog = enter(&world, ALICE, script)?;
    hog.hear("there")?;
    world.daemon.end(libc::SIGKILL)?;
    // Born while nobody of ours is alive.
    hog.go_on()?;
    hog.hear("there")?;
    world.daemon.start()?;
    until("the account being known again", || {
        Ok((held(&world, "=bursar-render")? >= 18 * MIB).then_some(()))
    })?;
    ensure!(held(&world, "60410")? < 4 * MIB, "her own account pays");
    world.daemon.end(libc::SIGKILL)?;
    let before = fs::read_to_string(format!("/proc/{}/stat", hog.pid()))?;
    ensure!(!before.is_empty(), "it is gone already");
    hog.go_on()?;
    // Its grandchild is killed, whoever waited for it ends.
    hog.end()?;
    world.daemon.start()?;
    until("the kill being told", || {
        Ok((kills(&world)? == [Some("=bursar-render".to_owned())]).then_some(()))
    })
}

/// Whichever of its threads executes afterwards and takes the first one's place, or has lost it already; and
/// who is born while nobody of ours is alive.
fn replaced(binaries: &Binaries) -> Result<()> {
    let mut world = stage(binaries, "rethreads", "")?;
    let mut hogs = Vec::new();
    for script in [
        "leader-exits say=there wait exec hold=16M say=there pause",
        "leader-exits say=there wait hold=16M say=there pause",
        "say=there wait fork=1 hold=10M say=there pause",
    ] {
        let mut hog = enter(&world, ALICE, script)?;
        hog.hear("there")?;
        hogs.push(hog);
    }
    let before = halves(&world)?;
    world.configure("[ledger]\nmax_processes = 2048\n")?;
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    let after = halves(&world)?;
    ensure!(after.len() == 1 && after != before, "{before:?}, {after:?}");
    for hog in &mut hogs {
        hog.go_on()?;
    }
    for hog in &mut hogs {
        hog.hear("there")?;
    }
    until("all of them being charged", || {
        Ok((held(&world, "=bursar-render")? >= 42 * MIB).then_some(()))
    })
    .with_context(|| {
        let (inside, outside) = (held(&world, "=bursar-render"), held(&world, "60410"));
        format!("inside {inside:?}, outside {outside:?}")
    })?;
    ensure!(held(&world, "60410")? < 4 * MIB, "somebody has left");
    Ok(())
}

fn taken_away(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "takenaway", "")?;
    let mut hog = enter(
        &world,
        ALICE,
        "hold=30M say=there wait hold=200M say=there pause",
    )?;
    hog.hear("there")?;
    until("what was entered being charged", || {
        Ok((held(&world, "=bursar-render")? >= 30 * MIB).then_some(()))
    })?;
    let output = world
        .bursar(&["limit", "clear", "=bursar-render"])
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    until("her own account paying", || {
        Ok((held(&world, "60410")? >= 30 * MIB).then_some(()))
    })?;
    hog.go_on()?;
    hog.hear("there")?;
    hog.expect_alive("one whose account is gone")
}

/// By a limit of her own, by default's where she has an account, and where nothing of hers runs outside.
fn taken_away_below_held(binaries: &Binaries) -> Result<()> {
    let shared = "=bursar-render";
    for (name, who, runs_outside) in [
        ("own", "60410", false),
        ("bydefault", "default", true),
        ("inonly", "default", false),
    ] {
        let world = stage(binaries, name, ORDINARY)?;
        if who == "default" {
            ensure!(matches!(
                clear(&world, "60410", false)?,
                Reply::Changed { .. }
            ));
        }
        world.daemon.limit(who, "40M")?;
        let mut outside = None;
        if runs_outside {
            let mut hog = world.hog("uid=60410 hold=20M say=there pause")?;
            hog.hear("there")?;
            outside = Some(hog);
        }
        let inside = if runs_outside { 30 } else { 50 };
        let mut hog = enter(&world, ALICE, &format!("hold={inside}M say=there pause"))?;
        hog.hear("there")?;
        until("what was entered being charged", || {
            Ok((held(&world, shared)? >= inside * MIB).then_some(()))
        })?;
        let refused = clear(&world, shared, false)?;
        expect_refused(&refused, &[" holds 5", "40 MiB"]).context(name)?;
        hog.expect_alive("one whose account was not taken away")?;
        ensure!(held(&world, shared)? >= inside * MIB, "it is gone");
        let reply = clear(&world, shared, true)?;
        ensure!(matches!(reply, Reply::Changed { .. }), "{reply:?}");
        hog.expect_killed()?;
        if let Some(mut outside) = outside {
            outside.expect_alive("her smaller one")?;
        }
    }
    Ok(())
}
