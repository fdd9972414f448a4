// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole Debians: systemd, ssh, cron, PAM, users, containers, reboots, with our package installed.
//!
//! `image` makes the disk, `machine` runs it, `terminal` is a line into it, `scenario` is a file of steps,
//! `play` plays them.

mod image;
mod machine;
mod play;
mod scenario;
mod terminal;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use crate::archive::Fetch;
use crate::initramfs::scratch_dir;
use crate::interrupt;
use crate::kernel::Cache;
use crate::program;
use crate::qemu::target_dir;
use crate::suite::{Suite, Suites};
use crate::vm::side_by_side;
use image::Image;
use machine::Machine;
use scenario::Scenario;

/// `cargo xtask debian …`
#[derive(Subcommand)]
pub enum Debian {
    /// Make the disks that are not cached yet
    Build {
        /// trixie, bookworm, or both
        #[arg(long, default_value = BOTH)]
        suite: Suites,
        /// How it is fetched.
        #[command(flatten)]
        how: Fetch,
    },
    /// Play scenarios
    Run(RunArgs),
    /// A machine with the package installed, and how to log in; Ctrl-C ends it
    Up(UpArgs),
}

const BOTH: &str = "trixie,bookworm";

/// What `up` takes.
#[derive(Args)]
pub struct UpArgs {
    /// trixie, bookworm, or both
    #[arg(long, default_value = BOTH)]
    suite: Suites,
    /// The package to install
    #[arg(
        long,
        value_name = "FILE",
        default_value = concat!(
            "target/deb/bursar_",
            env!("CARGO_PKG_VERSION"),
            "_amd64.deb"
        )
    )]
    deb: PathBuf,
}

/// What `run` takes.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    up: UpArgs,
    /// Which of them: ci, or long
    #[arg(long, default_value = "ci")]
    set: String,
    /// Machines at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Parts of file names; these scenarios are played whatever their set
    #[arg(value_name = "SCENARIO")]
    names: Vec<String>,
}

impl Debian {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        interrupt::watch();
        let cache = Cache::open()?;
        match self {
            Self::Build { suite, how } => {
                for &suite in suite.as_slice() {
                    println!("{}", Image::get(&cache, suite, &how)?.disk().display());
                }
                Ok(ExitCode::SUCCESS)
            }
            Self::Run(args) => run(&cache, &args),
            Self::Up(args) => up(&cache, &args),
        }
    }
}

/// Machines of one suite to begin with, saved.
struct Stage {
    suite: Suite,
    image: Image,
    /// The second disk: the package.
    files: PathBuf,
    booted: PathBuf,
    installed: PathBuf,
}

impl Stage {
    /// Boots, installs, saves; each once, as long as what it is made from stays the same.
    fn set(cache: &Cache, suite: Suite, deb: &Path) -> Result<Stage> {
        let image = Image::get(cache, suite, &Fetch::default())?;
        let dir = target_dir().join("debian").join(suite.name());
        fs::create_dir_all(&dir).with_context(|| format!("create {dir:?}"))?;
        let package = fs::read(deb).with_context(|| format!("read {deb:?}; make deb makes it"))?;
        let qemu = program::text(Command::new("qemu-system-x86_64").arg("--version"))?;
        let booted = image::hash((&image.recipe, qemu));
        let installed = image::hash((&booted, package));
        let stage = Stage {
            suite,
            image,
            files: dir.join("files"),
            booted: dir.join("booted"),
            installed: dir.join("installed"),
        };
        if image::is_made_from(&stage.installed, &installed) {
            return Ok(stage);
        }
        image::file_system(deb, &stage.files)?;
        save(&stage.booted, &booted, |work| {
            Machine::start(&stage.image, None, &stage.files, work)
        })?;
        save(&stage.installed, &installed, |work| {
            let mut machine = stage.start(&stage.booted, work)?;
            let install = "apt-get install -q -y /srv/bursar.deb && systemctl is-active bursard";
            machine.command(install, Duration::from_secs(300))?;
            Ok(machine)
        })?;
        Ok(stage)
    }

    /// A machine that begins where another one was saved, with the package in /srv.
    fn start(&self, saved: &Path, dir: &Path) -> Result<Machine> {
        let mut machine = Machine::start(&self.image, Some(saved), &self.files, dir)?;
        let mount =
            "mountpoint -q /srv || { blockdev --flushbufs /dev/vdb; mount -o ro /dev/vdb /srv; }";
        machine.command(mount, machine::TIMEOUT)?;
        Ok(machine)
    }
}

/// Saves in `dir` the machine that is made in a directory below, unless one of this recipe is there.
fn save(dir: &Path, recipe: &str, make: impl FnOnce(&Path) -> Result<Machine>) -> Result<()> {
    if image::is_made_from(dir, recipe) {
        return Ok(());
    }
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("remove {dir:?}"))?;
    }
    let since = Instant::now();
    let work = dir.join("work");
    fs::create_dir_all(&work).with_context(|| format!("create {work:?}"))?;
    make(&work)?.save(dir)?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {work:?}"))?;
    let seconds = since.elapsed().as_secs();
    eprintln!("{}: saved after {seconds} s", dir.display());
    fs::write(dir.join("recipe"), recipe).with_context(|| format!("write in {dir:?}"))
}

fn run(cache: &Cache, args: &RunArgs) -> Result<ExitCode> {
    let scenarios = read(args)?;
    ensure!(!scenarios.is_empty(), "no such scenario");
    let stages = args.up.suite.as_slice().iter();
    let stages: Vec<Stage> = stages
        .map(|&suite| Stage::set(cache, suite, &args.up.deb))
        .collect::<Result<_>>()?;
    let mut plays = Vec::new();
    for (name, scenario) in &scenarios {
        for stage in &stages {
            let suite = stage.suite.name();
            if scenario.suites.is_empty() || scenario.suites.contains(&suite) {
                plays.push(move || Ok(play_one(stage, name, scenario)));
            }
        }
    }
    let passed = side_by_side(plays, args.jobs)?;
    let failed = passed.iter().filter(|passed| !**passed).count();
    println!("{} played, {failed} failed", passed.len());
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// The scenarios asked for, with the names of their files.
fn read(args: &RunArgs) -> Result<Vec<(String, Scenario)>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut scenarios = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("read {dir:?}"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        let scenario = Scenario::parse(&text).with_context(|| format!("read {path:?}"))?;
        let is_named = args.names.iter().any(|part| name.contains(part));
        if is_named || args.names.is_empty() && scenario.set == args.set {
            scenarios.push((name, scenario));
        }
    }
    scenarios.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(scenarios)
}

/// Plays one and says how it went.
fn play_one(stage: &Stage, name: &str, scenario: &Scenario) -> bool {
    let since = Instant::now();
    let (suite, title) = (stage.suite, &scenario.title);
    let logs = target_dir().join(format!("debian/{suite}/protocols"));
    let protocol = logs.join(format!("{name}.txt"));
    let play = || -> Result<()> {
        fs::create_dir_all(&logs).with_context(|| format!("create {logs:?}"))?;
        let dir = scratch_dir()?;
        let mut machine = stage.start(&stage.installed, dir.path())?;
        play::play(scenario, &mut machine, &protocol)
    };
    let played = play();
    let seconds = since.elapsed().as_secs();
    match &played {
        Ok(()) => println!("ok      {suite}: {title} ({name}, {seconds} s)"),
        Err(error) => {
            println!("FAILED  {suite}: {title} ({name}): {error:#}");
            println!("        {}", protocol.display());
        }
    }
    played.is_ok()
}

/// A machine for somebody to log in to.
fn up(cache: &Cache, args: &UpArgs) -> Result<ExitCode> {
    let [suite] = args.suite.as_slice() else {
        bail!("one suite: --suite trixie");
    };
    let stage = Stage::set(cache, *suite, &args.deb)?;
    let dir = scratch_dir()?;
    let machine = stage.start(&stage.installed, dir.path())?;
    println!("root, alice, bob and carol; Ctrl-C here ends the machine:");
    println!("{}", machine.ssh_command("alice"));
    while !interrupt::came() {
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(ExitCode::SUCCESS)
}
