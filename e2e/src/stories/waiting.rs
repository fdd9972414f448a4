// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that wait for a level of their account, and save their work in time.

mod examples;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use bursar_host::clock::parse_since;
use bursar_model::{EventKind, WatchLevel};
use bursar_protocol::{Client, Operation, Reply};

use super::usage::until_asleep;
use crate::hog::Hog;
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "waiting_ends_at_each_level_and_says_which",
        place: Place::Anywhere,
        tell: levels,
    },
    Story {
        name: "waiting_in_an_entered_account_is_for_that_account",
        place: Place::Anywhere,
        tell: entered,
    },
    Story {
        name: "waiting_follows_limits_and_outlives_bursard",
        place: Place::Anywhere,
        tell: changes,
    },
    Story {
        name: "waiting_is_bounded_for_each_user",
        place: Place::Anywhere,
        tell: bounded,
    },
    Story {
        name: "waiting_by_a_hundred_costs_nothing_and_the_notice_is_heard_within_ten_milliseconds",
        place: Place::Host,
        tell: idle,
    },
    Story {
        name: "waiting_without_a_kernel_half_works_as_well",
        place: Place::Anywhere,
        tell: polled,
    },
    examples::ON_NOTICE,
    examples::CHECKPOINT,
    examples::IN_C,
];

const USER: u32 = 60880;
const OTHER: u32 = 60881;
const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A stage that users may look at.
fn stage(binaries: &Binaries, name: &str) -> Result<World> {
    let mut world = World::new(binaries, name, "on_exit = \"release\"\n")?;
    open(&world)?;
    world.daemon.start()?;
    Ok(world)
}

fn open(world: &World) -> Result<()> {
    world.let_users_in()?;
    Ok(())
}

fn as_user(world: &World, uid: u32, arguments: &[&str]) -> Command {
    let mut command = world.bursar(arguments);
    command
        .uid(uid)
        .gid(uid)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn begin(world: &World, uid: u32, arguments: &[&str]) -> Result<Child> {
    let mut command = as_user(world, uid, arguments);
    command.spawn().context("start bursar")
}

/// Exit code and what it said, on either stream.
fn end_of(mut child: Child) -> Result<(i32, String)> {
    until("bursar ending", || Ok(child.try_wait()?))?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().context("it was killed")?;
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

fn run(world: &World, uid: u32, arguments: &[&str]) -> Result<(i32, String)> {
    end_of(begin(world, uid, arguments)?)
}

fn is_running(child: &mut Child) -> Result<bool> {
    Ok(child.try_wait()?.is_none())
}

fn levels(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "waiting")?;
    let user = USER.to_string();
    let (code, said) = run(&world, USER, &["wait"])?;
    ensure!(
        code == 1 && said.contains("no limit concerns you"),
        "{code} {said}"
    );
    world.daemon.limit(&user, "200M")?;
    let (code, said) = run(&world, USER, &["wait", "--at", "120%"])?;
    ensure!(
        code == 2 && said.contains("is not a valid level"),
        "{code} {said}"
    );
    let began = Instant::now();
    let (code, said) = run(&world, USER, &["wait", "--at", "50%", "--timeout", "1s"])?;
    ensure!(code == 124 && said.is_empty(), "{code} {said}");
    ensure!(
        began.elapsed() >= Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );

    let mut half = begin(&world, USER, &["wait", "--at", "50%", "--json"])?;
    let mut notice = begin(&world, USER, &["wait"])?;
    let mut hog = world.hog(&format!(
        "uid={USER} hold=80M say=eighty wait hold=30M say=more wait hold=75M say=most pause"
    ))?;
    hog.hear("eighty")?;
    ensure!(
        is_running(&mut half)? && is_running(&mut notice)?,
        "told at 40 %"
    );
    hog.go_on()?;
    let (code, said) = end_of(half)?;
    ensure!(code == 0, "{code} {said}");
    let reached: bursar_protocol::Reached = serde_json::from_str(&said)?;
    ensure!(
        reached.at == WatchLevel::Percent(50) && reached.held.get() >= 100 * MIB,
        "{reached:?}"
    );
    hog.hear("more")?;
    ensure!(is_running(&mut notice)?, "the notice is at 90 %");
    hog.go_on()?;
    let (code, said) = end_of(notice)?;
    ensure!(
        code == 0 && said.contains("its notice is 180 MiB"),
        "{code} {said}"
    );
    // It is there already.
    let (code, said) = run(&world, USER, &["wait", "--timeout", "20s"])?;
    ensure!(code == 0, "{code} {said}");
    hog.expect_alive("who was told of")
}

fn entered(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "waiting-inside", "on_exit = \"release\"\n")?;
    open(&world)?;
    let text = format!(
        "[limits]\n\"=bursar-wait\" = {{ memory = \"100M\", granted = [\"{USER}\"] }}\n{USER} = {{ memory = \"300M\" }}\n"
    );
    fs::write(world.daemon.limits_path(), text)?;
    world.daemon.start()?;
    let hog = world.there(&format!("uid={USER} hold=150M say=there pause"))?;
    let bursar = world.bursar(&[]).get_program().to_owned();
    let bursar = bursar.to_str().context("a path of ours")?;
    let socket = world.daemon.socket().display().to_string();
    let mut inside = begin(
        &world,
        USER,
        &[
            "run",
            "--account",
            "=bursar-wait",
            "--",
            bursar,
            "--socket",
            &socket,
            "wait",
            "--at",
            "50%",
        ],
    )?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(
        is_running(&mut inside)?,
        "it heard of its user's own account"
    );
    let mut large = as_user(&world, USER, &["run", "--account", "=bursar-wait", "--"]);
    large
        .arg(binaries.path("hog"))
        .args(["hold=60M", "say=there", "pause"]);
    let _large = Hog::spawn(&mut large)?;
    let (code, said) = end_of(inside)?;
    ensure!(code == 0 && said.contains("=bursar-wait"), "{code} {said}");
    drop(hog);
    Ok(())
}

fn changes(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "waiting-on", "")?;
    open(&world)?;
    world.daemon.start()?;
    let user = USER.to_string();
    world.daemon.limit(&user, "1G")?;
    let mut hog = world.hog(&format!(
        "uid={USER} hold=80M say=there wait hold=40M say=more pause"
    ))?;
    hog.hear("there")?;
    let lowered = begin(&world, USER, &["wait", "--at", "50%"])?;
    std::thread::sleep(Duration::from_millis(300));
    world.daemon.limit(&user, "150M")?;
    let (code, said) = end_of(lowered)?;
    ensure!(code == 0 && said.contains("50% or more"), "{code} {said}");

    let mut waits = begin(&world, USER, &["wait", "--at", "70%"])?;
    std::thread::sleep(Duration::from_millis(300));
    world.daemon.end(libc::SIGKILL)?;
    world.daemon.start()?;
    std::thread::sleep(Duration::from_secs(1));
    ensure!(is_running(&mut waits)?, "it did not outlive bursard");
    hog.go_on()?;
    let (code, said) = end_of(waits)?;
    ensure!(code == 0, "{code} {said}");

    let cleared = begin(&world, USER, &["wait", "--at", "99%"])?;
    std::thread::sleep(Duration::from_millis(300));
    super::limits::clear(&world, &user, false)?;
    let (code, said) = end_of(cleared)?;
    ensure!(
        code == 1 && said.contains("no limit concerns you"),
        "{code} {said}"
    );
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.release()
}

/// A connection of this user's, made by a thread that is this user.
fn client_of(world: &World, uid: u32) -> Result<Client> {
    let socket = world.daemon.socket();
    let connect = move || -> Result<Client> {
        // SAFETY: the system call itself, unlike setresuid(3), concerns this thread alone.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        ensure!(
            done == 0,
            "become uid {uid}: {}",
            std::io::Error::last_os_error()
        );
        Client::connect(&socket).context("connect")
    };
    match std::thread::spawn(connect).join() {
        Ok(client) => client,
        Err(_) => bail!("the thread that connects ended"),
    }
}

fn bounded(binaries: &Binaries) -> Result<()> {
    let world = stage(binaries, "waiting-many")?;
    for uid in [USER, OTHER] {
        world.daemon.limit(&uid.to_string(), "100M")?;
    }
    let ask = Operation::Wait {
        at: WatchLevel::Percent(90),
        follow: true,
    };
    let soon = || Some(Instant::now() + Duration::from_millis(20));
    let mut clients = Vec::new();
    let refused = loop {
        ensure!(clients.len() < 200, "nothing is refused");
        let mut client = client_of(&world, USER)?;
        client.send(ask.clone())?;
        match client.next_reply(soon()) {
            Ok(Some(Reply::Refused(refusal))) => break refusal,
            Ok(other) => bail!("{other:?}"),
            Err(_) => clients.push(client),
        }
    };
    ensure!(clients.len() == 128, "{} wait: {refused:?}", clients.len());
    ensure!(refused.message.contains("end some of them"), "{refused:?}");
    // He can ask all the same, others can wait, and who ends makes room.
    let (code, said) = run(&world, USER, &["quota"])?;
    ensure!(code == 0, "{code} {said}");
    let (code, said) = run(&world, OTHER, &["wait", "--timeout", "1s"])?;
    ensure!(code == 124, "{code} {said}");
    drop(clients);
    until("room", || {
        let (code, _) = run(&world, USER, &["wait", "--timeout", "1s"])?;
        Ok((code == 124).then_some(()))
    })
}

const WAITING: usize = 100;
const ROUNDS: usize = 3;

fn idle(binaries: &Binaries) -> Result<()> {
    // What is kept of usage wakes bursard while somebody holds something (stories usage_).
    let config = "on_exit = \"release\"\n[usage]\nkeep_bytes = 0\n";
    let mut world = World::new(binaries, "waiting-idle", config)?;
    open(&world)?;
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "200M")?;
    let rounds = " wait hold=185M say=more wait drop say=less".repeat(ROUNDS);
    let mut hog = world.there(&format!("uid={USER} hold=1M say=there{rounds} pause"))?;
    let ask = |follow| Operation::Wait {
        at: WatchLevel::Notice,
        follow,
    };
    let mut clients = Vec::new();
    for _ in 0..WAITING {
        let mut client = client_of(&world, USER)?;
        client.send(ask(false))?;
        // Who waits does not count with those who ask from when he has been heard.
        std::thread::sleep(Duration::from_millis(20));
        clients.push(client);
    }
    let pid = world.daemon.pid()?;
    until_asleep(pid, Duration::from_secs(5), "those who wait waking nobody")?;

    let mut follower = client_of(&world, USER)?;
    follower.send(ask(true))?;
    let mut late = Vec::new();
    for round in 1..=ROUNDS {
        let (told, heard) = mpsc::channel();
        let listener = std::thread::spawn(move || -> Result<Client> {
            let reply = follower.next_reply(Some(Instant::now() + TIMEOUT))?;
            told.send((SystemTime::now(), reply))?;
            Ok(follower)
        });
        hog.go_on()?;
        let (at, reply) = heard.recv_timeout(TIMEOUT).context("nobody was told")?;
        ensure!(matches!(reply, Some(Reply::Reached(_))), "{reply:?}");
        let notice = until("the notice", || {
            let notices = world.daemon.events_of(EventKind::Notice)?;
            Ok(notices.into_iter().nth(round - 1))
        })?;
        let moment = parse_since(&notice.time, SystemTime::now())?;
        late.push(at.duration_since(moment).unwrap_or_default());
        let Ok(again) = listener.join() else {
            bail!("the thread that waits ended");
        };
        follower = again?;
        hog.hear("more")?;
        // The notice has a pause of a second.
        std::thread::sleep(Duration::from_millis(1200));
        hog.go_on()?;
        hog.hear("less")?;
        std::thread::sleep(Duration::from_millis(600));
    }
    late.sort();
    println!("        heard {late:?} after the notice");
    // Others want the processors, too.
    let best = late.first().copied().unwrap_or_default();
    ensure!(
        best < Duration::from_millis(whole(10).or(40)),
        "heard {late:?} after the notice"
    );
    for mut client in clients {
        let reply = client.next_reply(Some(Instant::now() + TIMEOUT))?;
        ensure!(matches!(reply, Some(Reply::Reached(_))), "{reply:?}");
    }
    Ok(())
}

fn polled(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "waiting-polled", "")?;
    open(&world)?;
    world.daemon.with_arguments(&["--trigger", "poll"]);
    world.daemon.start()?;
    world.daemon.limit(&USER.to_string(), "200M")?;
    let mut waits = begin(&world, USER, &["wait"])?;
    let mut hog = world.hog(&format!(
        "uid={USER} hold=100M say=there wait hold=85M say=more pause"
    ))?;
    hog.hear("there")?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(is_running(&mut waits)?, "told at half of the limit");
    hog.go_on()?;
    let (code, said) = end_of(waits)?;
    ensure!(code == 0, "{code} {said}");
    Ok(())
}
