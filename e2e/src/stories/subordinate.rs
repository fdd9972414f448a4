// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files in memory that a user gives to his subordinate uids (subuid(5)), by a user namespace of his: they are
//! his.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::{Event, EventKind, Request, Uid};
use bursar_protocol::Verdict;

use super::check::check;
use crate::hog::Hog;
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "subordinate_uids_files_count_for_whoever_has_them",
        place: Place::Anywhere,
        tell: count,
    },
    Story {
        name: "subordinate_uids_that_stay_are_told_by_name",
        place: Place::Anywhere,
        tell: told,
    },
    Story {
        name: "subordinate_uids_of_two_users_count_for_neither_until_one_has_them",
        place: Place::Anywhere,
        tell: disputed,
    },
    Story {
        name: "subordinate_uids_taken_for_good_pay_with_whoever_has_them",
        place: Place::Anywhere,
        tell: taken,
    },
    Story {
        name: "subordinate_uids_under_default_are_no_more_users",
        place: Place::Anywhere,
        tell: under_default,
    },
    Story {
        name: "subordinate_uids_files_are_refused_at_the_barrier",
        place: Place::Guest,
        tell: refused,
    },
];

const MIB: u64 = 1 << 20;
/// Of 60001; uid 8 in there is 60507.
const INSIDE: &str = "userns-for=60001:0-60001-1,1-60500-100 uid=8";
const HIS: &str = "60001:60500:100\n";

/// As usermod does it: another file in its place.
fn write_subuid(world: &World, text: &str) -> Result<()> {
    let path = world.directory().join("subuid");
    let fresh = world.directory().join("subuid+");
    fs::write(&fresh, text).context("write subuid+")?;
    fs::rename(fresh, path).context("put subuid in its place")
}

/// Whether an event is about 60001's account, whatever he is called here.
fn is_his(world: &World, event: &Event) -> Result<bool> {
    let his = world.daemon.account("60001")?.context("his account")?;
    Ok(event.account.as_deref() == Some(his.account.as_str()))
}

fn unmapped(world: &World, who: &str) -> Result<u64> {
    let account = world.daemon.account(who)?;
    Ok(account.map_or(0, |it| it.unmapped.get()))
}

fn await_unmapped(world: &World, who: &str, bytes: u64) -> Result<()> {
    until("files being counted for whoever has their uid", || {
        Ok((unmapped(world, who)? >= bytes).then_some(()))
    })
}

fn count(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subcount", "")?;
    write_subuid(&world, HIS)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    // The largest, if it were not for files.
    let mut other = world.there("uid=60001 hold=30M say=there pause")?;
    let mut keeper = world.there(&format!(
        "{INSIDE} memfd=40M say=there wait memfd=90M pause"
    ))?;
    // Less what is mapped: in a guest programs lie in a tmpfs themselves.
    await_unmapped(&world, "60001", 30 * MIB)?;
    let accounts = world.daemon.status()?.accounts;
    let another = accounts.iter().find(|it| it.uid != Some(Uid::new(60_001)));
    ensure!(another.is_none(), "{another:?}");
    let found = check(&world)?;
    ensure!(
        found
            .accounts
            .iter()
            .all(|it| it.verdict == Verdict::Within),
        "{found:?}"
    );
    keeper.go_on()?;
    keeper.expect_killed()?;
    other.expect_alive("his other program")?;
    let kill = world.daemon.await_event(EventKind::Kill, keeper.pid())?;
    ensure!(is_his(&world, &kill)?, "{kill:?}");
    until("nothing being left of it", || {
        Ok((unmapped(&world, "60001")? < MIB).then_some(()))
    })
}

/// What outlives the hogs goes with the story: a file, and segments of 60507's.
struct Leftover(String);

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let (Some(Ok(id)), Some(&"60507")) =
                (fields.get(1).map(|it| it.parse()), fields.get(9))
            {
                // SAFETY: a throw-away user's segment; nothing is written.
                unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
            }
        }
    }
}

fn told(binaries: &Binaries) -> Result<()> {
    let path = format!("/dev/shm/bursar-e2e-{}-sub", std::process::id());
    for (step, place) in [
        (format!("file={path}:80M"), path.as_str()),
        // Not beyond what may be filled beside files: a slow guest counts what is there before the rest is taken.
        ("sysv=70M".to_owned(), "System V segment"),
    ] {
        let leftover = Leftover(path.clone());
        let mut world = World::new(binaries, "subtold", "")?;
        write_subuid(&world, HIS)?;
        world.daemon.start()?;
        world.daemon.limit("60001", "64M")?;
        let mut hog = world.there(&format!("{INSIDE} {step} say=there pause"))?;
        let event = until("being told which", || {
            let told = world.daemon.events_of(EventKind::NoVictim)?;
            Ok(told.into_iter().find(|it| it.files_bytes.is_some()))
        })?;
        ensure!(is_his(&world, &event)?, "{event:?}");
        let largest = event.files.first().context("the largest file")?;
        ensure!(largest.place.starts_with(place), "{largest:?}");
        hog.expect_alive("who filled it")?;
        drop(leftover);
        hog.finish()?;
    }
    Ok(())
}

fn disputed(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subdisputed", "[accounts]\nuid_min = 60000\n")?;
    write_subuid(&world, &format!("{HIS}60002:60500:60\nnobody has it\n"))?;
    world.daemon.start()?;
    for who in ["60001", "60002", "default"] {
        world.daemon.limit(who, "100M")?;
    }
    let mut hog = world.there(&format!("{INSIDE} memfd=40M say=there pause"))?;
    let stays_nobodys = || -> Result<()> {
        std::thread::sleep(Duration::from_millis(1500));
        for who in ["60001", "60002"] {
            let bytes = unmapped(&world, who)?;
            ensure!(bytes < 20 * MIB, "{who} pays for {bytes} bytes");
        }
        Ok(())
    };
    stays_nobodys()?;
    let is_said = |what: &str| -> Result<bool> {
        let remarks = world.daemon.status()?.remarks;
        Ok(remarks.iter().any(|it| it.contains(what)))
    };
    let dispute = "60500 to 60559 (60001 and 60002)";
    ensure!(is_said(dispute)?, "{:?}", world.daemon.status()?.remarks);
    ensure!(is_said("not USER:FIRST:COUNT: lines 3")?);
    // At once, and nobody has to say so.
    write_subuid(&world, HIS)?;
    await_unmapped(&world, "60001", 30 * MIB)?;
    ensure!(!is_said(dispute)?);
    write_subuid(&world, "60002:60500:60\n60001:60560:40\n")?;
    await_unmapped(&world, "60002", 30 * MIB)?;
    // Without the file nobody has any.
    fs::remove_file(world.directory().join("subuid")).context("remove subuid")?;
    until("nobody paying", || {
        Ok((unmapped(&world, "60002")? < 20 * MIB).then_some(()))
    })?;
    // Who has a limit of his own pays for himself, whoever was given his uid.
    write_subuid(&world, HIS)?;
    await_unmapped(&world, "60001", 30 * MIB)?;
    world.daemon.limit("60507", "100M")?;
    await_unmapped(&world, "60507", 30 * MIB)?;
    until("60001 paying no more", || {
        Ok((unmapped(&world, "60001")? < 20 * MIB).then_some(()))
    })?;
    hog.finish()
}

/// A set-uid program that somebody in a user namespace of his has given to one of his uids, run outside.
fn taken(binaries: &Binaries) -> Result<()> {
    let helper = set_uid_hog(binaries, 60_507)?;
    let mut world = World::new(binaries, "subtaken", "")?;
    write_subuid(&world, HIS)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "100M")?;
    let mut other = world.there("uid=60001 hold=30M say=there pause")?;
    let mut taken = world.there(&format!(
        "uid=60001 run={} effective hold=40M say=there wait hold=100M pause",
        helper.0
    ))?;
    let status = fs::read_to_string(format!("/proc/{}/status", taken.pid()))?;
    ensure!(status.contains("Uid:\t60507\t60507"), "{status}");
    until("it being counted for whoever has its uid", || {
        let held = world.daemon.memory("60001")?.held.get();
        Ok((held >= 70 * MIB).then_some(()))
    })?;
    let found = check(&world)?;
    ensure!(
        found.accounts.len() == 1 && found.accounts[0].verdict == Verdict::Within,
        "{found:?}"
    );
    taken.go_on()?;
    taken.expect_killed()?;
    other.expect_alive("his other program")?;
    let kill = world.daemon.await_event(EventKind::Kill, taken.pid())?;
    ensure!(is_his(&world, &kill)?, "{kill:?}");
    // Who has a limit of his own pays for himself.
    world.daemon.limit("60507", "100M")?;
    let mut again = world.there(&format!(
        "uid=60001 run={} effective hold=40M say=there pause",
        helper.0
    ))?;
    until("it being counted for himself", || {
        let held = world.daemon.memory("60507")?.held.get();
        Ok((held >= 40 * MIB).then_some(()))
    })?;
    again.finish()?;
    other.finish()
}

/// A program that becomes the user who owns it, for good, whoever starts it.
fn set_uid_hog(binaries: &Binaries, uid: u32) -> Result<Leftover> {
    use std::os::unix::fs::{PermissionsExt, chown};

    // Not where the stage is: that may be a file system that lets nobody change his uid.
    let name = format!("bursar-e2e-{}-{uid}", std::process::id());
    let helper = Leftover(binaries.path(&name).display().to_string());
    fs::copy(binaries.path("hog"), &helper.0).context("copy hog")?;
    chown(&helper.0, Some(uid), Some(uid)).context("give it away")?;
    fs::set_permissions(&helper.0, fs::Permissions::from_mode(0o4755))
        .context("make it set-uid")?;
    Ok(helper)
}

/// Processes in an account; none where there is no account.
fn processes(world: &World, who: &str) -> Result<u32> {
    Ok(world.daemon.account(who)?.map_or(0, |it| it.processes))
}

fn under_default(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subdefault", "[accounts]\nuid_min = 60000\n")?;
    write_subuid(&world, HIS)?;
    world.daemon.start()?;
    world.daemon.limit("default", "100M")?;
    let helpers = [60_507, 60_508].map(|uid| set_uid_hog(binaries, uid));
    let mut hogs = Vec::new();
    for helper in &helpers {
        let helper = helper
            .as_ref()
            .map_err(|error| anyhow::anyhow!("{error:#}"))?;
        let script = format!(
            "uid=60001 run={} effective hold=40M say=there pause",
            helper.0
        );
        hogs.push(world.there(&script)?);
    }
    let pay_as = |who: &str| {
        until("both paying with whoever has their uids", || {
            Ok((processes(&world, who)? == 2).then_some(()))
        })?;
        for other in ["60001", "60002", "60500", "60507", "60508"] {
            let others = processes(&world, other)?;
            ensure!(other == who || others == 0, "{other} has {others}");
        }
        Ok(())
    };
    pay_as("60001")?;
    // Whose they are nobody knows, but it is one user.
    write_subuid(&world, "60001:60500:100\n60002:60500:100\n")?;
    pay_as("60500")?;
    write_subuid(&world, HIS)?;
    pay_as("60001")?;
    let _own = world.hog("uid=60001 hold=40M pause")?;
    let kill = until("one of the three being killed", || {
        let told = world.daemon.events_of(EventKind::Kill)?;
        Ok(told.into_iter().next())
    })?;
    ensure!(is_his(&world, &kill)?, "{kill:?}");
    Ok(())
}

fn refused(binaries: &Binaries) -> Result<()> {
    let mut world = World::new(binaries, "subrefused", "[gate]\nmode = \"auto\"\n")?;
    write_subuid(&world, HIS)?;
    world.daemon.start()?;
    let gate = world.daemon.status()?.kernel_half.gate;
    ensure!(gate.files.is_none(), "files are not refused: {gate:?}");
    world.daemon.limit("60001", "64M")?;
    let mut hog: Hog = world.hog(&format!("{INSIDE} memfd=80M say=there pause"))?;
    let event = until("a refusal to be told", || {
        let mut events = world.daemon.events()?.into_iter();
        Ok(events.find(|it| it.event == EventKind::Refused))
    })?;
    ensure!(
        event.request == Some(Request::File) && is_his(&world, &event)?,
        "{event:?}"
    );
    hog.end()?;
    let code = hog.exit_code();
    ensure!(code.is_some_and(|it| it != 0), "he ended with {code:?}");
    Ok(())
}
