// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bad input and bad days: each has a clear message or a counted fact, and loses nothing.

use std::fs;
use std::io::{PipeReader, Read, pipe};
use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bursar_config::LAST_GOOD;
use bursar_model::{AccountStatus, EventKind};
use rustix::pipe::fcntl_setpipe_size;

use super::limits::ORDINARY;
use crate::proc::pids_of;
use crate::runner::{Place, Story};
use crate::signal::send;
use crate::stories::ALICE_IS;
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "a_broken_limits_file_stops_the_start_with_file_and_line",
        place: Place::Anywhere,
        tell: broken_at_start,
    },
    Story {
        name: "a_limits_file_that_cannot_be_read_has_bursard_started_again",
        place: Place::Anywhere,
        tell: unreadable_at_start,
    },
    Story {
        name: "a_broken_limits_file_after_a_reboot_leaves_the_limits_that_were_last_in_force",
        place: Place::Anywhere,
        tell: broken_after_a_reboot,
    },
    Story {
        name: "a_broken_limits_file_at_reload_leaves_the_old_limits",
        place: Place::Anywhere,
        tell: broken_at_reload,
    },
    Story {
        name: "a_limits_file_that_has_gone_takes_no_limit_away",
        place: Place::Anywhere,
        tell: limits_file_gone,
    },
    Story {
        name: "a_second_bursard_is_refused",
        place: Place::Anywhere,
        tell: second,
    },
    Story {
        name: "a_full_ring_buffer_loses_events_and_counts_them",
        place: Place::Anywhere,
        tell: full_ring,
    },
    Story {
        name: "more_processes_than_the_ledger_has_room_for_still_have_a_limit",
        place: Place::Anywhere,
        tell: full_ledger,
    },
    Story {
        name: "who_finds_room_in_the_ledger_late_counts_once",
        place: Place::Anywhere,
        tell: recorded_late,
    },
    Story {
        name: "more_users_than_the_ledger_has_room_for_are_counted",
        place: Place::Anywhere,
        tell: full_accounts,
    },
    Story {
        name: "limits_that_do_not_fit_change_neither_the_file_nor_the_accounts",
        place: Place::Anywhere,
        tell: limits_that_do_not_fit,
    },
    Story {
        name: "a_users_link_has_bursard_write_nowhere",
        place: Place::Anywhere,
        tell: users_link,
    },
    Story {
        name: "the_log_goes_to_the_journal_only_where_stderr_does",
        place: Place::Guest,
        tell: journal,
    },
    Story {
        name: "a_log_that_nobody_reads_keeps_bursard_from_nothing",
        place: Place::Anywhere,
        tell: unread_log,
    },
    Story {
        name: "without_root_it_says_so",
        place: Place::Anywhere,
        tell: without_root,
    },
    Story {
        name: "pins_outside_a_bpf_file_system_are_refused_with_a_remedy",
        place: Place::Anywhere,
        tell: no_bpffs,
    },
    Story {
        name: "doctor_tells_what_this_kernel_gives",
        place: Place::Anywhere,
        tell: doctor,
    },
    Story {
        name: "verifier_cost_of_each_program",
        place: Place::Anywhere,
        tell: verifier_cost,
    },
];

/// Starts a bursard that should end at once; its exit code and what it said.
fn start_in_vain(world: &World) -> Result<(i32, String)> {
    let mut command = world.daemon.command()?;
    let output = command
        .stderr(Stdio::piped())
        .output()
        .context("run bursard")?;
    Ok((
        output.status.code().context("its exit code")?,
        String::from_utf8(output.stderr)?,
    ))
}

fn broken_at_start(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "broken", "")?;
    let path = world.daemon.limits_path();
    for (text, line, word) in [
        ("[limits]\nalice = { memory = \"-5M\" }\n", 2, "negative"),
        ("[limits]\nbob = { memory = \"1G\"\n", 2, ""),
        (
            "[limits]\n\n60001 = { memory = \"99999999999T\" }\n",
            3,
            "too large",
        ),
        (
            "[limits]\ncarol = { memory = { limit = \"1G\", notice = \"2G\" } }\n",
            2,
            "notice",
        ),
    ] {
        fs::write(&path, text)?;
        let (code, said) = start_in_vain(&world)?;
        ensure!(code == 2, "ended with {code}: {said}");
        let place = format!("{}:{line}:", path.display());
        ensure!(
            said.contains(&place) && said.contains(word),
            "{place} {word} is not in: {said}"
        );
    }
    Ok(())
}

/// The unit has RestartPreventExitStatus=2: a disk's error is not for ever.
fn unreadable_at_start(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "unreadable", "")?;
    let path = world.daemon.limits_path();
    // A regular file that cannot be read from its beginning.
    std::os::unix::fs::symlink("/proc/self/mem", &path)?;
    let (code, said) = start_in_vain(&world)?;
    ensure!(
        code == 1 && said.contains("cannot read it: Input/output error"),
        "ended with {code}: {said}"
    );
    fs::remove_file(&path)?;
    world.daemon.start()
}

fn limits_file_gone(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "gone", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let path = world.daemon.limits_path();
    fs::remove_file(&path)?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the complaint", || {
        let log = world.daemon.log()?;
        let is_said = log.contains("the limits stay as they were") && log.contains("empty file");
        Ok(is_said.then_some(()))
    })?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    // A new bursard goes by the limits that were last in force, also without a kernel half that enforces them, as after
    // a reboot.
    world.daemon.end(libc::SIGTERM)?;
    holds_as_before(&mut world, "does not exist")?;
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.release()?;
    holds_as_before(&mut world, "does not exist")?;
    world.daemon.end(libc::SIGTERM)?;
    // Without that copy it leaves alone what it knows nothing of, also where the kernel half is of another build or has
    // other options, and would be replaced.
    fs::remove_file(world.directory().join("state").join(LAST_GOOD))?;
    for options in ["", "[ledger]\nmax_processes = 1000\n"] {
        world.configure(options)?;
        let (code, said) = start_in_vain(&world)?;
        ensure!(
            code == 2 && said.contains("does not exist"),
            "ended with {code}: {said}"
        );
        world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    }
    // An empty file is an administrator's word.
    fs::write(&path, "")?;
    world.daemon.start()?;
    ensure!(
        world.daemon.account("60001")?.is_none(),
        "the limit is still there"
    );
    // What clears the last limit leaves such a file.
    world.daemon.limit("60001", "64M")?;
    let reply = world.daemon.ask(bursar_protocol::Operation::ClearLimit {
        who: "60001".parse()?,
        force: false,
        terms: bursar_protocol::Terms::default(),
    })?;
    ensure!(
        matches!(reply, bursar_protocol::Reply::Changed { .. }),
        "{reply:?}"
    );
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()
}

/// A bursard whose limits.toml is not to be read starts with the limits that were last in force, and says so.
fn holds_as_before(world: &mut World, why: &str) -> Result<()> {
    world.daemon.start()?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(
        said.contains(why) && said.contains("the limits hold that were last in force"),
        "{said}"
    );
    let log = world.daemon.log()?;
    ensure!(
        log.lines()
            .any(|it| it.contains("ERROR") && it.contains(why)),
        "{log}"
    );
    Ok(())
}

fn broken_after_a_reboot(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "reboot", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    world.daemon.end(libc::SIGTERM)?;
    world.daemon.release()?;
    let path = world.daemon.limits_path();
    let good = fs::read_to_string(&path)?;
    let broken = "[limits]\n60001 = { memo";
    fs::write(&path, broken)?;
    holds_as_before(&mut world, "limits.toml:2")?;
    let reply = world.daemon.try_limit("60002", "1G", false)?;
    ensure!(
        matches!(&reply, bursar_protocol::Reply::Refused(it) if it.message.contains("limits.toml:2")),
        "{reply:?}"
    );
    ensure!(fs::read_to_string(&path)? == broken, "his text is gone");
    fs::write(&path, good.replace("64M", "128M"))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the new limit", || {
        let limit = world.daemon.memory("60001")?.limit;
        Ok(limit.is_some_and(|it| it.get() == 128 << 20).then_some(()))
    })?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(!said.contains("not in force"), "{said}");
    Ok(())
}

fn broken_at_reload(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "reload", "")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let path = world.daemon.limits_path();
    let good = fs::read_to_string(&path)?;
    fs::write(&path, "[limits]\n60001 = { memo")?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the complaint", || {
        let log = world.daemon.log()?;
        Ok(log.contains("the limits stay as they were").then_some(()))
    })?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    // Nor does a change by command write over what the administrator has half written.
    let reply = world.daemon.try_limit("60002", "1G", false)?;
    ensure!(
        matches!(&reply, bursar_protocol::Reply::Refused(it) if it.message.contains("limits.toml:2")),
        "it does not say where the text is broken: {reply:?}"
    );
    ensure!(
        fs::read_to_string(&path)?.ends_with("memo"),
        "his text is gone"
    );
    let remarks =
        |world: &World| -> Result<String> { Ok(world.daemon.status()?.remarks.join("\n")) };
    let said = remarks(&world)?;
    ensure!(
        said.contains("not in force as they are written") && said.contains("limits.toml:2"),
        "{said}"
    );

    fs::write(&path, good.replace("64M", "128M"))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the new limit", || {
        let limit = world.daemon.memory("60001")?.limit;
        Ok(limit.is_some_and(|it| it.get() == 128 << 20).then_some(()))
    })?;
    let said = remarks(&world)?;
    ensure!(!said.contains("not in force"), "{said}");
    Ok(())
}

fn second(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "second", "")?;
    world.daemon.start()?;
    let (code, said) = start_in_vain(&world)?;
    ensure!(code == 1, "ended with {code}: {said}");
    let holder = format!("pid {}", world.daemon.pid()?);
    ensure!(
        said.contains("already running") && said.contains(&holder),
        "{said}"
    );
    // Other runtime files, the same kernel half.
    let own = fs::read_to_string(world.daemon.config_path())?;
    let run = world.directory().join("run").display().to_string();
    fs::write(
        world.daemon.config_path(),
        own.replace(&run, &format!("{run}2")),
    )?;
    let (code, said) = start_in_vain(&world)?;
    ensure!(
        code == 1 && said.contains("already running with the pins"),
        "{code}: {said}"
    );
    fs::write(world.daemon.config_path(), own)?;
    Ok(())
}

fn full_ring(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "ring", "[ledger]\nevents_bytes = \"4K\"\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "16M")?;
    world.daemon.signal(libc::SIGSTOP)?;
    for _ in 0..30 {
        world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    }
    world.daemon.signal(libc::SIGCONT)?;
    let account = world.daemon.account("60001")?.context("his account")?;
    ensure!(account.kills == 30, "{} kills", account.kills);
    let lost = until("the loss being told", || {
        let lost = world.daemon.events_of(EventKind::Lost)?;
        Ok(lost.into_iter().next())
    })?;
    let status = world.daemon.status()?;
    // A notice now and then, a kill and an end each time: what is not there was counted.
    let told: usize = [EventKind::Notice, EventKind::Kill, EventKind::Reaped]
        .iter()
        .map(|&kind| world.daemon.events_of(kind).map(|it| it.len()))
        .sum::<Result<usize>>()?;
    let lost_count = status.kernel_half.events_lost;
    println!("        {told} events told, {lost_count} lost and counted");
    ensure!(
        lost_count > 0 && told as u64 + lost_count >= 60,
        "{told} told, {lost_count} lost"
    );
    ensure!(
        lost.reason.is_some_and(|it| it.contains("events_bytes")),
        "no remedy"
    );
    ensure!(
        status
            .remarks
            .iter()
            .any(|it| it.contains("events did not fit")),
        "{:?}",
        status.remarks
    );
    Ok(())
}

fn full_ledger(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "full", "[ledger]\nmax_processes = 64\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "200M")?;
    // He fills the ledger with small processes and hopes that the next one is not seen.
    let mut crowd = world.hog("uid=60001 hold=64K fork=100 pause")?;
    until("the ledger being full", || {
        Ok((world.daemon.status()?.kernel_half.records_full > 0).then_some(()))
    })?;
    let mut hog = world.hog("uid=60001 hold=300M churn=60000")?;
    until("somebody being killed for it", || {
        Ok((!world.daemon.events_of(EventKind::Kill)?.is_empty()).then_some(()))
    })?;
    until("the account being within its limit again", || {
        let row = world.daemon.memory("60001")?;
        Ok((row.held <= row.limit.context("limit")?).then_some(()))
    })?;
    let said = world.daemon.status()?.remarks.join("\n");
    ensure!(said.contains("max_processes"), "{said}");
    crowd.finish()?;
    hog.finish()
}

/// One user fills the ledger while another's process begins, and makes room again: what the re-sum had counted
/// is in a record from then on, and not in both.
fn recorded_late(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "late", "[ledger]\nmax_processes = 64\n")?;
    world.daemon.start()?;
    world.daemon.limit("60001", "1G")?;
    world.daemon.limit("60002", "128M")?;
    for _ in 0..3 {
        let full_before = world.daemon.status()?.kernel_half.records_full;
        let mut crowd = world.hog("uid=60001 hold=64K fork=100 pause")?;
        until("the ledger being full", || {
            let full = world.daemon.status()?.kernel_half.records_full;
            Ok((full > full_before).then_some(()))
        })?;
        let mut late = world.there("uid=60002 hold=80M say=there churn=60000")?;
        until("it to be counted", || {
            Ok((world.daemon.memory("60002")?.held.get() >> 20 >= 80).then_some(()))
        })?;
        crowd.finish()?;
        world.daemon.until_empty(60001)?;
        let resums = world.daemon.status()?.kernel_half.resums;
        until("three re-sums", || {
            let now = world.daemon.status()?.kernel_half.resums;
            Ok((now >= resums + 3).then_some(()))
        })?;
        let kills = world.daemon.events_of(EventKind::Kill)?;
        ensure!(kills.is_empty(), "killed: {kills:#?}");
        let row = world.daemon.memory("60002")?;
        ensure!(row.maxheld.get() >> 20 < 100, "at most {}", row.maxheld);
        late.finish()?;
        world.daemon.until_empty(60002)?;
    }
    // What a former account was known to hold beyond its records is not the next one's.
    let mut crowd = world.hog("uid=60001 hold=64K fork=100 pause")?;
    let mut late = world.there("uid=60001 hold=300M say=there pause")?;
    until("it to be counted", || {
        Ok((world.daemon.memory("60001")?.held.get() >> 20 >= 300).then_some(()))
    })?;
    let cleared = world.bursar(&["limit", "clear", "60001"]).output()?;
    ensure!(cleared.status.success(), "{cleared:?}");
    let mut other = world.there("uid=60003 hold=8M say=there pause")?;
    world.daemon.limit("60003", "64M")?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.is_empty(), "killed: {kills:#?}");
    let row = world.daemon.memory("60003")?;
    ensure!(row.maxheld.get() >> 20 < 30, "at most {}", row.maxheld);
    other.finish()?;
    late.finish()?;
    crowd.finish()
}

fn full_accounts(binaries: &Binaries) -> Result<()> {
    let config = format!("[ledger]\nmax_accounts = 8\n{ORDINARY}");
    let mut world = World::new(binaries, "users", &config)?;
    world.daemon.start()?;
    // Whoever `default` would cover is counted before it is set, in an account that the kernel half does not
    // give to anybody itself: the story before has left processes that are ending.
    until("nobody being there any more", || {
        Ok(pids_of(60001)?.is_empty().then_some(()))
    })?;
    world.daemon.limit("default", "64M")?;
    let mut hogs = Vec::new();
    for uid in 60010..60030 {
        hogs.push(world.there(&format!("uid={uid} hold=1M say=there pause"))?);
    }
    let status = world.daemon.status()?;
    ensure!(
        status.accounts.len() == 7,
        "{} accounts",
        status.accounts.len()
    );
    ensure!(status.kernel_half.accounts_full > 0, "not counted");
    ensure!(
        status.remarks.iter().any(|it| it.contains("max_accounts")),
        "{:?}",
        status.remarks
    );
    // An explicit limit that does not fit is an error, not a silence.
    let reply = world.daemon.try_limit("60100", "1G", false)?;
    let bursar_protocol::Reply::Refused(refusal) = reply else {
        anyhow::bail!("{reply:?}")
    };
    ensure!(refusal.message.contains("max_accounts"), "{refusal:?}");
    Ok(())
}

/// limits.toml is linked to where a user keeps it, and he links it to where only root may write.
fn users_link(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "link", "")?;
    let at = |name: &str| world.directory().join(name);
    let (his, roots) = (at("his.toml"), at("nologin"));
    symlink(&his, world.daemon.limits_path())?;
    symlink(&roots, &his)?;
    lchown(&his, Some(60001), Some(60001))?;
    world.daemon.start()?;
    let said = format!("{:?}", world.daemon.try_limit("60001", "64M", false)?);
    ensure!(said.contains("another user's link"), "{said}");
    ensure!(!roots.exists(), "bursard has made {roots:?}");
    ensure!(
        world.daemon.account("60001")?.is_none(),
        "a limit that is kept nowhere"
    );
    // His own file is what the administrator meant.
    fs::remove_file(&his)?;
    fs::write(&his, "")?;
    chown(&his, Some(60001), Some(60001))?;
    let _ = world.daemon.end(libc::SIGTERM)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    let written = fs::read_to_string(&his)?;
    ensure!(written.contains("64M"), "{written:?}");
    Ok(())
}

fn limits_that_do_not_fit(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "nofit", "[ledger]\nmax_accounts = 4\n")?;
    let path = world.daemon.limits_path();
    let written = "\
# as the administrator likes it
[limits]
60001 = { memory = \"64M\" } # his thesis
\"=hall\" = { memory = \"1G\", kill = \"graceful\", granted = [\"60002\"] }
";
    fs::write(&path, written)?;
    world.daemon.start()?;
    let is_as_before = |world: &World, mib: u64| -> Result<()> {
        let accounts = world.daemon.status()?.accounts;
        // Some machines have a name for the number.
        let name = |it: &AccountStatus| it.uid.map_or(it.account.clone(), |uid| uid.to_string());
        let mut names: Vec<_> = accounts.iter().map(name).collect();
        names.sort();
        ensure!(names == ["60001", "=hall"], "{names:?}");
        let found = world.daemon.memory("60001")?.limit;
        ensure!(found.is_some_and(|it| it.get() == mib << 20), "{found:?}");
        Ok(())
    };

    world.daemon.limit("60003", "1G")?;
    let fits = fs::read_to_string(&path)?;
    // By whoever is careful it is refused before it is written, otherwise put back.
    for force in [false, true] {
        let reply = world.daemon.try_limit("60004", "1G", force)?;
        let bursar_protocol::Reply::Refused(refusal) = reply else {
            anyhow::bail!("{reply:?}")
        };
        let says = |word: &str| refusal.message.contains(word);
        ensure!(says("max_accounts"), "{refusal:?}");
        ensure!(says("the old limits stay") == force, "{refusal:?}");
    }
    ensure!(fs::read_to_string(&path)? == fits, "the file is another");
    // And goes on from there.
    let cleared = world.bursar(&["limit", "clear", "60003"]).output()?;
    ensure!(cleared.status.success(), "{cleared:?}");
    ensure!(fs::read_to_string(&path)? == written, "the file is another");
    is_as_before(&world, 64)?;

    // The same by hand, with a change that would fit among those that do not.
    let many: String = (60010..60020)
        .map(|uid| format!("{uid} = {{ memory = \"1G\" }}\n"))
        .collect();
    fs::write(&path, format!("{}{many}", written.replace("64M", "96M")))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the complaint", || {
        let log = world.daemon.log()?;
        Ok(log.contains("the limits stay as they were").then_some(()))
    })?;
    is_as_before(&world, 64)?;
    world.hog("uid=60001 hold=200M pause")?.expect_killed()?;
    fs::write(&path, written.replace("64M", "96M"))?;
    world.daemon.signal(libc::SIGHUP)?;
    until("the new limit", || Ok(is_as_before(&world, 96).ok()))
}

fn without_root(binaries: &Binaries) -> Result<()> {
    use std::os::unix::process::CommandExt;

    let world = World::new(binaries, "nonroot", "")?;
    let mut command = world.daemon.command()?;
    command.uid(60001).gid(60001).stderr(Stdio::piped());
    let output = command.output().context("run bursard as a user")?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(1) && said.contains("needs root"),
        "{said}"
    );
    Ok(())
}

fn no_bpffs(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "nobpffs", "")?;
    let own = fs::read_to_string(world.daemon.config_path())?;
    let pins = world.pins().display().to_string();
    let elsewhere = world.directory().join("pins").display().to_string();
    let text = format!("trigger = \"bpf\"\n{}", own.replace(&pins, &elsewhere));
    fs::write(world.daemon.config_path(), text)?;
    let (code, said) = start_in_vain(&world)?;
    ensure!(code == 1, "ended with {code}: {said}");
    ensure!(
        said.contains("BPF file system") && said.contains("mount -t bpf"),
        "{said}"
    );
    fs::write(world.daemon.config_path(), own)?;
    Ok(())
}

fn doctor(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "doctor", "")?;
    world.daemon.start()?;
    let output = world
        .bursar(&["doctor"])
        .output()
        .context("run bursar doctor")?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    for line in text
        .lines()
        .filter(|line| !line.starts_with(' ') && !line.is_empty())
    {
        println!("        {line}");
    }
    let output = world.bursar(&["doctor", "--json"]).output()?;
    serde_json::from_slice::<serde_json::Value>(&output.stdout).context("doctor --json")?;
    Ok(())
}

fn verifier_cost(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "verifier", "")?;
    let began = Instant::now();
    world.daemon.start()?;
    println!("        ready after {} ms", began.elapsed().as_millis());
    let ours = [
        "on_rss_stat",
        "on_exit_mmap",
        // One of the two.
        "start_timer",
        "start_deferred",
        // Where the timer cannot walk tasks.
        "meet_every_tas",
        "on_page_alloc",
        "set_limit",
        "end_pss_scan",
        "open_account",
        "close_account",
        "configure",
        "run_oom_killer",
    ];
    let mut found = 0;
    for program in libbpf_rs::query::ProgInfoIter::default() {
        let name = program.name.to_string_lossy().into_owned();
        if ours.iter().any(|it| name.starts_with(it)) {
            found += 1;
            println!(
                "        {name:16} {:7} instructions verified",
                program.verified_insns
            );
            // The verifier gives up at a million; far below it a load takes milliseconds. A loop over up to
            // 512 CPUs adds ten thousand.
            ensure!(
                program.verified_insns < 60_000,
                "{name} costs {}",
                program.verified_insns
            );
        }
    }
    let expected = ours.len() - 2;
    ensure!(
        found >= expected,
        "{found} of {expected} programs are loaded"
    );
    Ok(())
}

/// More lines than a pipe of one page has room for.
const MANY_LINES: u64 = 200;

/// A bursard that nobody hears.
struct Unheard(Child);

impl Unheard {
    fn end(&mut self) -> Result<()> {
        let status = until("bursard's end", || Ok(self.0.try_wait()?))?;
        ensure!(status.success(), "ended with {status}");
        Ok(())
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A bursard whose stderr is a pipe of one page, filled.
fn with_a_full_log(world: &World) -> Result<(Unheard, PipeReader)> {
    let (reader, writer) = pipe()?;
    fcntl_setpipe_size(&reader, 4096)?;
    let mut command = world.daemon.command()?;
    let child = command.stderr(writer).spawn().context("start bursard")?;
    let child = Unheard(child);
    // With the command goes the pipe's other end.
    drop(command);
    until("an answer", || Ok(world.daemon.status().ok()))?;
    for number in 0..MANY_LINES {
        world.daemon.limit("60001", &format!("{}M", 64 + number))?;
    }
    world.daemon.status().context("with a full log")?;
    Ok((child, reader))
}

fn unread_log(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "unread", "")?;
    let (mut unheard, reader) = with_a_full_log(&world)?;
    let mut hog = world.hog("uid=60001 hold=600M pause")?;
    hog.expect_killed()?;
    world.daemon.await_event(EventKind::Reaped, hog.pid())?;
    send(unheard.0.id(), libc::SIGTERM)?;
    unheard.end()?;
    drop(reader);

    // Whoever reads it later reads all of it.
    let (mut unheard, mut reader) = with_a_full_log(&world)?;
    send(unheard.0.id(), libc::SIGTERM)?;
    let mut log = String::new();
    reader.read_to_string(&mut log)?;
    unheard.end()?;
    for number in 0..MANY_LINES {
        let line = format!("memory {}M", 64 + number);
        ensure!(log.contains(&line), "{line} is not in: {log}");
    }
    ensure!(log.contains("bursard: ready"), "it was never ready: {log}");
    Ok(())
}

/// A guest has no journal: one of ours takes what comes. JOURNAL_STREAM is inherited by all that a service
/// starts, wherever their stderr leads.
fn journal(binaries: &Binaries) -> Result<()> {
    const JOURNAL: &str = "/run/systemd/journal/socket";
    fs::create_dir_all("/run/systemd/journal")?;
    let journal = UnixDatagram::bind(JOURNAL).context("be the journal")?;
    let told = tell_journal(binaries, &journal);
    fs::remove_file(JOURNAL)?;
    told
}

fn tell_journal(binaries: &Binaries, journal: &UnixDatagram) -> Result<()> {
    journal.set_nonblocking(true)?;
    for is_its in [false, true] {
        let mut world = World::new(binaries, "journal", "")?;
        let mut command = world.daemon.command()?;
        let log = fs::metadata(world.directory().join("log"))?;
        let stream = match is_its {
            true => format!("{}:{}", log.dev(), log.ino()),
            false => format!("{}:{}", log.dev(), log.ino() + 1),
        };
        world
            .daemon
            .start_as(command.env("JOURNAL_STREAM", stream))?;
        world.daemon.limit("60001", "64M")?;
        let mut hog = world.hog("uid=60001 hold=100M pause")?;
        hog.expect_killed()?;
        world.daemon.await_event(EventKind::Kill, hog.pid())?;
        let kill = ALICE_IS.map(|who| format!("kill {who}: hog[{}] ", hog.pid()));
        world.daemon.end(libc::SIGTERM)?;
        let mut taken = Vec::new();
        let mut entry = [0; 4096];
        while let Ok(length) = journal.recv(&mut entry) {
            taken.extend_from_slice(&entry[..length]);
        }
        let taken = String::from_utf8_lossy(&taken).into_owned();
        let log = world.daemon.log()?;
        let says = |text: &str| {
            text.contains("memory 64M")
                && kill.iter().any(|it| text.contains(it))
                && text.contains(" of 64 MiB, over by ")
        };
        let places = (says(&log), says(&taken));
        ensure!(
            places == (!is_its, is_its),
            "log: {log}\njournal: {taken:?}"
        );
    }
    Ok(())
}
