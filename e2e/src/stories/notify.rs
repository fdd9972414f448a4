// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-notify`: people are told by mail, webhook and programs, once, whoever is killed in between.

mod digests;
mod full_socket;
mod memfd_noexec;
mod outage;
mod sink;
mod stage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_protocol::events_socket;

use self::sink::{Mood, Posted, Sink};
use self::stage::{ANN, GROUP, Stage, TELLER, recording_script};
use crate::length::whole;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::Binaries;

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "people_are_told_by_mail_webhook_and_programs",
        place: Place::Host,
        tell: every_way,
    },
    Story {
        name: "each_event_of_a_storm_is_told_once_whoever_is_killed_in_between",
        place: Place::Host,
        tell: storm,
    },
    Story {
        name: "on_a_full_disk_events_wait_at_bursard_and_are_told_when_there_is_room",
        place: Place::Host,
        tell: full_disk,
    },
    Story {
        name: "a_crowd_at_the_socket_of_requests_keeps_nobody_from_events",
        place: Place::Host,
        tell: full_socket::at_the_other_socket,
    },
    Story {
        name: "two_hundred_users_who_breach_all_the_time_have_one_digest_each_and_administrators_one",
        place: Place::Named,
        tell: digests::one_each,
    },
    Story {
        name: "a_webhooks_server_is_away_for_thirty_minutes",
        place: Place::Named,
        tell: outage::half_an_hour,
    },
    Story {
        name: "programs_are_told_where_memfd_noexec_is_2",
        place: Place::Host,
        tell: memfd_noexec::programs_are_told,
    },
    Story {
        name: "limits_hold_where_memfd_noexec_is_2",
        place: Place::Guest,
        tell: memfd_noexec::limits_hold,
    },
];

const STRANGER: u32 = 60733;

fn every_way(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "told")?;
    let sink = Sink::start()?;
    let got = stage.at("got");
    let sendmail = stage.script("sendmail", &recording_script(&got, "mail"))?;
    let tell = stage.script("tell", &recording_script(&got, "told"))?;
    let secret = stage.at("secret");
    fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")?;
    let (hook, chat) = (
        format!("http://127.0.0.1:{}/hook", sink.port),
        format!("http://localhost:{}/chat", sink.port),
    );
    stage.configure(&format!(
        "hint = \"use sbatch\"\n[mail]\nsendmail = [{sendmail:?}, \"-i\"]\ndomain = \"example.org\"\n\
         administrators = [\"root\", \"ops@example.org\"]\n\
         [[rule]]\nname = \"users\"\nkinds = [\"kill\", \"notice\"]\nwho = \"user\"\nvia = \"mail\"\ngather = \"3s\"\n\
         [[rule]]\nname = \"admins\"\nkinds = [\"kill\"]\nwho = \"administrators\"\nvia = \"mail\"\ngather = \"3s\"\n\
         [[rule]]\nname = \"hook\"\nkinds = [\"kill\"]\nvia = \"webhook\"\nurl = {hook:?}\nsecret_file = {secret:?}\n\
         [[rule]]\nname = \"chat\"\nkinds = [\"kill\"]\nvia = \"webhook\"\nurl = {chat:?}\nformat = \"chat\"\ngather = \"0s\"\n\
         [[rule]]\nname = \"tell\"\nkinds = [\"kill\"]\nvia = \"exec\"\ncommand = [{tell:?}, \"--fixed\"]\n"
    ))?;
    let checked = stage.command(&["--check"]).output()?;
    ensure!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    stage.start_and_follow()?;
    strangers_hear_nothing(&stage)?;
    stage.world.daemon.limit(&ANN.to_string(), "64M")?;
    let hostile = stage.at("x\n@all <!channel>");
    fs::copy(stage.binaries.path("hog"), &hostile)?;
    fs::set_permissions(&hostile, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(&hostile);
    command.args([
        &format!("uid={ANN}"),
        "hold=60M",
        "sleep=300",
        "hold=40M",
        "pause",
    ]);
    let mut hog = crate::hog::Hog::spawn(&mut command)?;
    hog.expect_killed()?;
    let mails = until("two mails", || {
        let mails = stage.got("mail")?;
        Ok((mails.len() >= 2).then_some(mails))
    })?;
    let status = stage.settle(stage.newest()?)?;
    check_mails(&stage, &mails)?;
    check_posts(&sink.posted())?;
    let told = stage.got("told")?;
    ensure!(
        told.len() == 1 && told[0].starts_with("argument: --fixed\n{\"delivery\":\""),
        "{told:?}"
    );
    ensure!(told[0].contains("\"comm\":\"x\\\\n@all"), "{told:?}");
    for (rule, messages) in [
        ("users", 1),
        ("admins", 1),
        ("hook", 1),
        ("chat", 1),
        ("tell", 1),
    ] {
        let counts = &status["rules"][rule];
        ensure!(
            counts["messages"] == messages && counts["delivered"] == counts["matched"],
            "{rule}: {status:#}"
        );
    }
    ensure!(status["missed"] == 0, "{status:#}");
    check_metrics(&mut stage)
}

fn check_metrics(stage: &mut Stage) -> Result<()> {
    let ask = |stage: &Stage| -> Result<String> {
        let said = stage.command(&["--metrics"]).output()?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    };
    let said = ask(stage)?;
    for line in [
        "bursar_notify_running 1",
        "bursar_notify_delivered_total{rule=\"hook\"} 1",
        "bursar_notify_waiting{rule=\"hook\"} 0",
        "bursar_notify_trying_seconds{rule=\"hook\"} 0",
    ] {
        ensure!(said.lines().any(|it| it == line), "{line} in {said}");
    }
    stage.kill()?;
    let said = ask(stage)?;
    ensure!(said.contains("\nbursar_notify_running 0\n"), "{said}");
    Ok(())
}

fn check_mails(stage: &Stage, mails: &[String]) -> Result<()> {
    ensure!(
        mails.len() == 2 && stage.got("mail")?.len() == 2,
        "{mails:?}"
    );
    let to_ann = mails
        .iter()
        .find(|it| it.contains("argument: ann@example.org"))
        .context("ann's mail")?;
    ensure!(
        to_ann.starts_with("argument: -i\nargument: --\nargument: ann@example.org\nFrom: bursar <"),
        "{to_ann}"
    );
    ensure!(
        to_ann.contains("\nSubject: bursar: one of your programs was killed on "),
        "{to_ann}"
    );
    ensure!(
        to_ann.contains("Hello ann,")
            && to_ann.contains("use sbatch")
            && to_ann.contains("x\\n@all"),
        "{to_ann}"
    );
    let to_admins = mails
        .iter()
        .find(|it| it.contains("argument: root\n"))
        .context("root's mail")?;
    ensure!(
        to_admins.contains("argument: ops@example.org\n"),
        "{to_admins}"
    );
    ensure!(
        !to_ann
            .lines()
            .chain(to_admins.lines())
            .any(|line| line.starts_with('@')),
        "{mails:?}"
    );
    Ok(())
}

fn check_posts(posted: &[Posted]) -> Result<()> {
    let hooked: Vec<_> = posted.iter().filter(|it| it.path == "/hook").collect();
    ensure!(hooked.len() == 1 && posted.len() == 2, "{posted:?}");
    let (id, signature) = (
        hooked[0].header("webhook-id"),
        hooked[0].header("webhook-signature"),
    );
    ensure!(
        !id.is_empty() && signature.starts_with("v1,") && hooked[0].numbers()?.len() == 1,
        "{hooked:?}"
    );
    let chat = posted
        .iter()
        .find(|it| it.path == "/chat")
        .context("a chat")?;
    let text: serde_json::Value = serde_json::from_slice(&chat.body)?;
    let text = text["text"].as_str().context("a text")?;
    ensure!(
        !text.contains('@') && !text.contains('<') && text.contains("&lt;!ch"),
        "{text}"
    );
    Ok(())
}

/// Who is not in the group hears nothing, and who is has no other answer.
fn strangers_hear_nothing(stage: &Stage) -> Result<()> {
    let socket = stage.world.daemon.socket();
    let events = events_socket(&socket);
    let ask = |uid: u32, socket: &std::path::Path, ask: &str| -> Result<String> {
        let script = format!(
            "import socket,sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
             s.sendall(b'{{\"version\":1,\"ask\":\"{ask}\"}}\\n')\nprint(s.recv(65536).decode())"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]).arg(socket).current_dir("/");
        // The group as the only one; of a stranger his own.
        let gid = if uid == TELLER { GROUP.1 } else { uid };
        let said = command.uid(uid).gid(gid).output()?;
        Ok(format!(
            "{}{}",
            String::from_utf8_lossy(&said.stdout),
            String::from_utf8_lossy(&said.stderr)
        ))
    };
    let said = ask(STRANGER, &events, "stream")?;
    ensure!(said.contains("PermissionError"), "{said}");
    let said = ask(TELLER, &socket, "stream")?;
    ensure!(said.contains("not_permitted"), "{said}");
    let said = ask(TELLER, &events, "status")?;
    ensure!(said.contains("not_permitted"), "{said}");
    let said = ask(TELLER, &events, "stream")?;
    ensure!(said.contains("\"is_last\":true"), "{said}");
    Ok(())
}

const STORMY: u32 = 60734;
/// Of a storm: moments at which one of the two is killed, and events for each of them, at least.
fn moments() -> u64 {
    whole(100).or(50)
}
const EVENTS_EACH: u64 = 10;
const ALL_KINDS: &str = "[\"notice\", \"refused\", \"kill\", \"reaped\", \"asked\", \"no_victim\", \"kill_failed\", \
    \"limit_changed\", \"attached\", \"released\", \"reloaded\", \"lost\"]";

/// A number below `most`, of a sequence that is another one each time.
pub(super) fn random(state: &mut u64, most: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % most.max(1)
}

fn storm(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "storm")?;
    let sink = Sink::start()?;
    let tell = stage.script("tell", &recording_script(&stage.at("got"), "told"))?;
    let hook = format!("http://127.0.0.1:{}/hook", sink.port);
    stage.configure(&format!(
        "[[rule]]\nname = \"hook\"\nkinds = {ALL_KINDS}\nvia = \"webhook\"\nurl = {hook:?}\n\
         [[rule]]\nname = \"tell\"\nkinds = {ALL_KINDS}\nvia = \"exec\"\ncommand = [{tell:?}]\n"
    ))?;
    stage.world.daemon.limit(&STORMY.to_string(), "32M")?;
    stage.start_and_follow()?;
    let first = stage.status()?["read_up_to"]
        .as_u64()
        .context("a beginning")?;
    let mut seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)?
        .as_nanos() as u64;
    println!("seed {seed}");
    let mut killed = 0;
    while killed < moments() {
        // Three events of a process that dies, and some of limits that change.
        let mut hog = stage.world.hog(&format!("uid={STORMY} hold=40M pause"))?;
        hog.expect_killed()?;
        for _ in 0..8 {
            let size = format!("{}M", 33 + random(&mut seed, 900));
            stage.world.daemon.limit("60735", &size)?;
        }
        sink.set(match killed {
            30..45 => Mood::Troubled,
            _ => Mood::Well,
        });
        thread::sleep(Duration::from_millis(random(&mut seed, 80)));
        if random(&mut seed, 2) == 0 {
            stage.kill()?;
            stage.start()?;
        } else {
            stage.world.daemon.end(libc::SIGKILL)?;
            stage.world.daemon.start()?;
        }
        killed += 1;
    }
    let newest = stage.newest()?;
    ensure!(newest - first >= moments() * EVENTS_EACH, "{newest} events");
    let status = stage.settle(newest)?;
    let by_hook: Vec<(String, Vec<u64>)> = sink
        .posted()
        .iter()
        .map(|it| Ok((it.header("webhook-id").to_owned(), it.numbers()?)))
        .collect::<Result<_>>()?;
    let by_program: Vec<(String, Vec<u64>)> = stage
        .got("told")?
        .iter()
        .map(|text| {
            let read: serde_json::Value = serde_json::from_str(text)?;
            let numbers = read["events"].as_array().context("events")?.iter();
            let id = read["delivery"].as_str().unwrap_or_default().to_owned();
            Ok((id, numbers.filter_map(|it| it["number"].as_u64()).collect()))
        })
        .collect::<Result<_>>()?;
    for (rule, got) in [("hook", by_hook), ("tell", by_program)] {
        once(rule, &got, first, newest, &status).with_context(|| format!("{status:#}"))?;
    }
    Ok(())
}

/// Each event came once, as far as ids tell, or is counted.
fn once(
    rule: &str,
    got: &[(String, Vec<u64>)],
    first: u64,
    newest: u64,
    status: &serde_json::Value,
) -> Result<()> {
    let counts = &status["rules"][rule];
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let mut by_id: BTreeMap<&str, &[u64]> = BTreeMap::new();
    let mut again: BTreeSet<&str> = BTreeSet::new();
    for (id, numbers) in got {
        let before = by_id.insert(id, numbers);
        ensure!(before.is_none_or(|it| it == numbers), "{id} is two things");
        if before.is_some() {
            again.insert(id);
        }
    }
    // An event counts once, however often it came.
    let repeats = again.iter().filter_map(|id| by_id.get(id));
    let repeats = repeats.map(|numbers| numbers.len() as u64).sum::<u64>();
    let told: Vec<u64> = by_id.values().flat_map(|it| it.iter().copied()).collect();
    let distinct: BTreeSet<u64> = told.iter().copied().collect();
    ensure!(
        told.len() == distinct.len(),
        "{rule}: an event was told under two ids"
    );
    let missed = number(&status["missed"]);
    let dropped = counts["dropped"]
        .as_object()
        .context("dropped")?
        .values()
        .map(number)
        .sum::<u64>();
    println!(
        "{rule}: {} events told, {repeats} of them again under one id ({} might have been), {dropped} dropped, {missed} missed",
        told.len(),
        number(&counts["repeated"])
    );
    ensure!(
        repeats <= number(&counts["repeated"]),
        "{rule}: repeated without a word"
    );
    ensure!(
        number(&counts["matched"]) == number(&counts["delivered"]) + dropped,
        "{rule}: it does not add up"
    );
    ensure!(
        number(&counts["delivered"]) == told.len() as u64,
        "{rule}: told is not what is counted"
    );
    ensure!(
        told.len() as u64 + dropped + missed == newest - first,
        "{rule}: of {} events",
        newest - first
    );
    Ok(())
}

fn full_disk(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "full")?;
    let state = stage.at("state-of-notify");
    let tell = stage.script("tell", &recording_script(&stage.at("got"), "told"))?;
    stage.configure(&format!(
        "[[rule]]\nname = \"tell\"\nkinds = [\"limit_changed\"]\nvia = \"exec\"\ncommand = [{tell:?}]\n"
    ))?;
    let options = format!("size=512k,uid={TELLER},mode=700");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
        .arg(&state)
        .status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    let done = (|| {
        stage.start_and_follow()?;
        let _ = fs::write(state.join("filler"), vec![0; 1 << 20]);
        for size in 0..400 {
            stage
                .world
                .daemon
                .limit("60736", &format!("{}M", 64 + size))?;
        }
        until("bursar-notify to say that the disk is full", || {
            Ok(stage
                .log()?
                .contains("events wait at bursard")
                .then_some(()))
        })?;
        fs::remove_file(state.join("filler"))?;
        let status = stage.settle(stage.newest()?)?;
        ensure!(
            status["rules"]["tell"]["delivered"] == 400 && status["missed"] == 0,
            "{status:#}"
        );
        // Those of which many waited came together.
        let mut told = 0;
        for text in stage.got("told")? {
            let read: serde_json::Value = serde_json::from_str(&text)?;
            told += read["events"].as_array().context("events")?.len();
        }
        ensure!(told == 400, "{told}");
        Ok(())
    })();
    stage.kill()?;
    let unmounted = Command::new("umount").arg(&state).status()?;
    ensure!(unmounted.success(), "umount: {unmounted}");
    done
}
