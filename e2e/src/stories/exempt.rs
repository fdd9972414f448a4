// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes in control groups that an administrator has named are nobody's, and no user gets in there.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_model::EventKind;

use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "exempt_groups_are_nobodys_as_they_come_and_as_processes_move",
        place: Place::Anywhere,
        tell: come_and_move,
    },
    Story {
        name: "exempt_groups_stay_so_without_bursard",
        place: Place::Anywhere,
        tell: without_bursard,
    },
    Story {
        name: "exempt_groups_are_refused_nothing",
        place: Place::Anywhere,
        tell: refused_nothing,
    },
    Story {
        name: "exempt_groups_are_asked_nothing_by_a_graceful_account",
        place: Place::Anywhere,
        tell: asked_nothing,
    },
    Story {
        name: "exempt_groups_that_are_a_users_are_not_exempt",
        place: Place::Anywhere,
        tell: of_users,
    },
    Story {
        name: "exempt_groups_of_version_1_are_the_memory_controllers",
        // A guest's other stories need the controller in version 2.
        place: Place::Host,
        tell: of_version_1,
    },
    Story {
        name: "exempt_groups_where_bursard_decides",
        place: Place::Anywhere,
        tell: without_kernel_half,
    },
];

/// How long who was asked has to end (docs/reference/configuration.md, `kill`).
const GRACE: Duration = Duration::from_secs(5);

/// Groups of a story below one of root's. They are gone when it is dropped.
struct Groups {
    mount: PathBuf,
    name: String,
    /// What patterns of the hierarchy begin with.
    prefix: &'static str,
}

impl Groups {
    fn new(name: &str) -> Result<Self> {
        // Beside version 1 it is mounted there (systemd's hybrid hierarchy).
        let mount = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
            .map(PathBuf::from)
            .into_iter()
            .find(|it| it.join("cgroup.procs").exists());
        let mount = mount.context("no control groups of version 2 are mounted")?;
        Self::at(mount, "", name)
    }

    /// In the memory controller's hierarchy of version 1, where it is mounted.
    fn of_memory_v1(name: &str) -> Result<Option<Self>> {
        let mount = PathBuf::from("/sys/fs/cgroup/memory");
        let is_there = mount.join("tasks").exists();
        is_there
            .then(|| Self::at(mount, "memory:", name))
            .transpose()
    }

    /// In whichever of both this machine has.
    fn of_either(name: &str) -> Result<Self> {
        Self::of_memory_v1(name)?.map_or_else(|| Self::new(name), Ok)
    }

    fn at(mount: PathBuf, prefix: &'static str, name: &str) -> Result<Self> {
        let groups = Self {
            mount,
            name: format!("bursar-e2e-{}-{name}", std::process::id()),
            prefix,
        };
        fs::create_dir(groups.top()).context("make a group")?;
        Ok(groups)
    }

    fn top(&self) -> PathBuf {
        self.mount.join(&self.name)
    }

    /// One below it.
    fn make(&self, path: &str) -> Result<PathBuf> {
        let path = self.top().join(path);
        fs::create_dir_all(&path).with_context(|| format!("make {path:?}"))?;
        Ok(path)
    }

    /// As it is written in bursar.toml.
    fn config(&self, pattern: &str) -> String {
        let prefix = self.prefix;
        format!(
            "[exempt]\ncgroups = [\"{prefix}/{}/{pattern}\"]\n",
            self.name
        )
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = until("empty groups", || Ok(remove(&self.top()).then_some(())));
    }
}

/// From the bottom up; whether nothing is left.
fn remove(directory: &Path) -> bool {
    let children = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut is_empty = true;
    for child in children.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir())) {
        is_empty &= remove(&child.path());
    }
    is_empty && fs::remove_dir(directory).is_ok()
}

fn move_to(group: &Path, pid: u32) -> Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string()).context("move a process")
}

/// A user with 64 MiB.
fn world(binaries: &Binaries, name: &str, config: &str) -> Result<World> {
    let mut world = World::new(binaries, name, config)?;
    world.daemon.start()?;
    world.daemon.limit("60001", "64M")?;
    Ok(world)
}

fn held_mib(world: &World) -> Result<u64> {
    Ok(world.daemon.memory("60001")?.held.get() >> 20)
}

fn until_held(world: &World, what: &str, is_so: impl Fn(u64) -> bool) -> Result<()> {
    until(what, || Ok(is_so(held_mib(world)?).then_some(())))
        .with_context(|| format!("{:?}", world.daemon.account("60001")))
}

fn come_and_move(binaries: &Binaries) -> Result<()> {
    let groups = Groups::new("exempt")?;
    let world = world(binaries, "exempt", &groups.config("jobs/*"))?;
    // Nothing of it was there when bursard started.
    let job = groups.make("jobs/job_1/step_0")?;
    // bursard hears of it a moment later; a batch system's first process is small, too.
    let first = world.there(&format!(
        "cgroup={} uid=60001 hold=20M say=there pause",
        job.display()
    ))?;
    until_held(&world, "a job that has come being nobody's", |it| it < 8)?;
    let mut inside = world.there(&format!(
        "cgroup={} uid=60001 hold=100M say=there leave=2 hold=40M say=there pause",
        job.display()
    ))?;
    inside.hear("there")?;
    until_held(&world, "processes of a job being nobody's", |it| it < 8)?;
    // What is not named counts, the group above the jobs too.
    for counted in [groups.make("jobs")?, groups.make("other")?] {
        let script = format!("cgroup={} uid=60001 hold=100M pause", counted.display());
        world.hog(&script)?.expect_killed()?;
    }
    inside.expect_alive("a job")?;

    // Who is moved there by root counts no more, and counts again when it is moved back.
    let mut moved = world.there("uid=60001 hold=40M say=there pause")?;
    until_held(&world, "one that is in no job counting", |it| it >= 40)?;
    move_to(&job, moved.pid())?;
    until_held(&world, "one that was moved counting no more", |it| it < 8)?;
    move_to(&groups.make("other")?, moved.pid())?;
    until_held(&world, "one that was moved back counting again", |it| {
        it >= 40
    })?;
    moved.finish()?;

    // Nobody gets there by himself.
    let script = format!("echo $$ > {}/cgroup.procs", job.display());
    let tried = Command::new("/bin/sh")
        .args(["-c", &script])
        .uid(60001)
        .gid(60001)
        .current_dir("/")
        .output()?;
    ensure!(
        !tried.status.success(),
        "a user has moved to a job: {tried:?}"
    );

    // The ledger and /proc agree, and a job that ends leaves nothing.
    inside.finish()?;
    drop(first);
    world.daemon.until_empty(60001)?;
    let kills = world.daemon.events_of(EventKind::Kill)?;
    ensure!(kills.len() == 2, "{kills:#?}");
    Ok(())
}

/// Neither as the user's largest process nor, having been asked, once it is in a job.
fn asked_nothing(binaries: &Binaries) -> Result<()> {
    let groups = Groups::of_either("asked")?;
    let job = groups.make("jobs/job_1")?;
    let mut world = World::new(binaries, "exempt-asked", &groups.config("jobs/*"))?;
    fs::write(
        world.daemon.limits_path(),
        "[limits]\n60001 = { memory = { limit = \"200M\", notice = \"50M\" }, kill = \"graceful\" }\n",
    )?;
    world.daemon.start()?;
    let script = format!(
        "cgroup={} uid=60001 hold=90M say=there pause",
        job.display()
    );
    let mut inside = world.there(&script)?;
    let mut outside = world.hog("uid=60001 hold=60M pause")?;
    ensure!(
        outside.end()? == Some(libc::SIGTERM),
        "the one outside was not asked"
    );
    inside.expect_alive("the larger one in a job")?;
    until_held(&world, "no notice", |it| it < 40)?;
    // A notice a second.
    std::thread::sleep(Duration::from_secs(1));
    let mut moved = world.there("uid=60001 deaf hold=60M say=there pause")?;
    world.daemon.await_event(EventKind::Asked, moved.pid())?;
    move_to(&job, moved.pid())?;
    // The account is above its notice all the same.
    let mut other = world.there("uid=60001 hold=60M say=there pause")?;
    std::thread::sleep(GRACE + Duration::from_secs(2));
    ensure!(
        held_mib(&world)? >= 50,
        "{:?}",
        world.daemon.account("60001")
    );
    moved.expect_alive("the one that was asked and is in a job since")?;
    other.expect_alive("one that nobody asked")
}

fn of_version_1(binaries: &Binaries) -> Result<()> {
    let Some(groups) = Groups::of_memory_v1("v1")? else {
        println!("        this machine has no memory controller of version 1");
        return Ok(());
    };
    let job = groups.make("jobs/job_1")?;
    let open = groups.make("jobs/job_2")?;
    chown(open.join("tasks"), Some(60001), None)?;
    let mut world = world(binaries, "exempt-v1", &groups.config("jobs/*"))?;
    let script = |group: &Path| {
        let group = group.display();
        format!("cgroup={group} uid=60001 hold=100M say=there pause")
    };
    let mut inside = world.there(&script(&job))?;
    until_held(&world, "a job being nobody's", |it| it < 8)?;
    // What is not named counts; so does a group to which a user may move his processes.
    for counted in [groups.make("jobs")?, groups.make("other")?, open] {
        world.hog(&script(&counted))?.expect_killed()?;
    }
    let remarks = world.daemon.status()?.remarks;
    let is_said = |it: &String| it.contains("jobs/job_2 is not exempt: others than root may write");
    ensure!(remarks.iter().any(is_said), "{remarks:?}");
    let mut moved = world.there("uid=60001 hold=40M say=there pause")?;
    until_held(&world, "one that is in no job counting", |it| it >= 40)?;
    move_to(&job, moved.pid())?;
    until_held(&world, "one that was moved counting no more", |it| it < 8)?;
    move_to(&groups.make("other")?, moved.pid())?;
    until_held(&world, "one that was moved back counting", |it| it >= 40)?;
    moved.finish()?;
    // A job that begins while bursard is dead is one as well.
    world.daemon.end(libc::SIGKILL)?;
    let mut fresh = world.there(&script(&groups.make("jobs/job_3/step_0")?))?;
    world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    world.daemon.start()?;
    until_held(&world, "jobs being nobody's", |it| it < 8)?;
    inside.expect_alive("a job")?;
    fresh.expect_alive("a job that has begun without bursard")?;
    inside.finish()?;
    fresh.finish()
}

fn without_bursard(binaries: &Binaries) -> Result<()> {
    let groups = Groups::new("alone")?;
    let first = groups.make("jobs/job_1")?;
    let mut world = world(binaries, "alone", &groups.config("jobs/*"))?;
    let mut job = world.there(&format!(
        "cgroup={} uid=60001 hold=100M say=there pause",
        first.display()
    ))?;
    world.daemon.end(libc::SIGKILL)?;
    // A job that begins meanwhile is one as well; what is no job is limited.
    let second = groups.make("jobs/job_2")?;
    let mut fresh = world.there(&format!(
        "cgroup={} uid=60001 hold=100M say=there pause",
        second.display()
    ))?;
    world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    std::thread::sleep(Duration::from_millis(600));
    world.daemon.start()?;
    until_held(&world, "jobs being nobody's", |it| it < 8)?;
    job.expect_alive("a job")?;
    fresh.expect_alive("a job that has begun without bursard")?;
    Ok(())
}

/// Where there is a gate.
fn refused_nothing(binaries: &Binaries) -> Result<()> {
    let groups = Groups::new("gated")?;
    let job = groups.make("jobs/job_1")?;
    let config = format!("{}[gate]\nmode = \"auto\"\n", groups.config("jobs"));
    let world = world(binaries, "gated", &config)?;
    let mut inside = world.there(&format!(
        "cgroup={} uid=60001 hold=100M say=there pause",
        job.display()
    ))?;
    inside.expect_alive("a job")?;
    ensure!(world.daemon.events_of(EventKind::Refused)?.is_empty());
    until_held(&world, "a job being nobody's", |it| it < 8)
}

fn of_users(binaries: &Binaries) -> Result<()> {
    let groups = Groups::new("users")?;
    let (named, below) = (groups.make("named")?, groups.make("jobs/his")?);
    for group in [&named, &below] {
        chown(group, Some(60001), Some(60001))?;
        chown(group.join("cgroup.procs"), Some(60001), Some(60001))?;
    }
    let config = format!(
        "[exempt]\ncgroups = [\"/{0}/named\", \"/{0}/jobs/*\"]\n",
        groups.name
    );
    let world = world(binaries, "users", &config)?;
    for group in [&named, &below] {
        // Also in one below it, which is root's.
        let deeper = group.join("deeper");
        fs::create_dir(&deeper)?;
        for group in [group, &deeper] {
            let script = format!("cgroup={} uid=60001 hold=100M pause", group.display());
            world.hog(&script)?.expect_killed()?;
        }
        let remark = format!(
            "exempt.cgroups: /{} is not exempt: it, or one above it, belongs to the user 60001; name a directory of root's",
            group.strip_prefix(&groups.mount)?.display()
        );
        let remarks = world.daemon.status()?.remarks;
        ensure!(remarks.contains(&remark), "{remark}\n{remarks:?}");
        let check = Command::new(binaries.path("bursar"))
            .arg("check")
            .arg(world.daemon.config_path())
            .output()?;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();
        ensure!(check.contains(&remark), "{remark}\n{check}");
    }
    // Given to a user while a job is in it: from then on it counts.
    let job = groups.make("jobs/job_1")?;
    let mut inside = world.there(&format!(
        "cgroup={} uid=60001 hold=40M say=there pause",
        job.display()
    ))?;
    until_held(&world, "a job being nobody's", |it| it < 8)?;
    chown(&job, Some(60001), None)?;
    until_held(&world, "what is a user's counting", |it| it >= 40)?;
    inside.finish()
}

fn without_kernel_half(binaries: &Binaries) -> Result<()> {
    let groups = Groups::new("polled")?;
    let job = groups.make("jobs/job_1")?;
    let config = format!("trigger = \"poll\"\n{}", groups.config("jobs/*"));
    let world = world(binaries, "exempt-polled", &config)?;
    let mut inside = world.there(&format!(
        "cgroup={} uid=60001 hold=100M say=there pause",
        job.display()
    ))?;
    world.hog("uid=60001 hold=100M pause")?.expect_killed()?;
    inside.expect_alive("a job")?;
    Ok(())
}
