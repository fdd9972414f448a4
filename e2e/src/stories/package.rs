// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Debian package: what is in it, and what becomes of limits when it comes, is replaced and goes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::hog::Hog;
use crate::replica::{Replica, text};
use crate::runner::{Place, Story};
use crate::wait::until;
use crate::world::{Binaries, World};

pub(super) const STORIES: &[Story] = &[
    Story {
        name: "the_package_has_what_make_install_puts_there",
        place: Place::Host,
        tell: contents,
    },
    Story {
        name: "the_packages_limits_hold_over_an_upgrade_and_go_with_it",
        place: Place::Host,
        tell: life,
    },
    Story {
        name: "the_package_without_systemd_and_in_other_roots",
        place: Place::Host,
        tell: elsewhere,
    },
];

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a program of this machine's, which has to end well.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {:?}", command.get_program()))?;
    ensure!(output.status.success(), "{command:?}: {}", text(&output));
    Ok(String::from_utf8(output.stdout)?)
}

/// Packs what is built.
fn pack(directory: &Path) -> Result<PathBuf> {
    let mut command = Command::new(Path::new(SOURCES).join("xtask/deb"));
    run(command
        .arg(directory)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none"))?;
    let packages: Vec<_> = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    match packages.as_slice() {
        [one] => Ok(one.clone()),
        other => anyhow::bail!("{other:?} was made, not one package"),
    }
}

/// All files below a directory, with their permissions.
fn files(root: &Path) -> Result<BTreeMap<String, u32>> {
    let list = run(Command::new("find")
        .arg(root)
        .args(["!", "-type", "d", "-printf", "%P\n"]))?;
    list.lines()
        .map(|name| {
            let mode = fs::symlink_metadata(root.join(name))?.permissions().mode();
            Ok((name.to_owned(), mode & 0o7777))
        })
        .collect()
}

fn contents(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "package", "")?;
    let at = |name: &str| world.directory().join(name);
    let package = pack(&at("deb"))?;
    let (packed, installed) = (at("packed"), at("installed"));
    let control = at("control");
    run(Command::new("dpkg-deb").arg("-x").args([&package, &packed]))?;
    run(Command::new("dpkg-deb")
        .arg("-e")
        .args([&package, &control]))?;
    run(Command::new("make")
        .current_dir(SOURCES)
        .args(["-s", "-o", "build", "install"])
        .arg(format!("DESTDIR={}", installed.display())))?;

    let mut extra = files(&packed)?;
    for (name, mode) in files(&installed)? {
        let is_page = name.starts_with("usr/share/man/");
        let theirs = if is_page {
            format!("{name}.gz")
        } else {
            name.clone()
        };
        let found = extra.remove(&theirs).context(theirs.clone())?;
        // What is no program needs no permission to be run.
        ensure!(
            found == mode || name.ends_with(".so"),
            "{name}: {mode:o}, packed {found:o}"
        );
        let (ours, packed) = (fs::read(installed.join(&name))?, packed.join(&theirs));
        let is_stripped = [&b"\x7fELF"[..], b"!<arch>"]
            .iter()
            .any(|it| ours.starts_with(it));
        let same = match (is_page, is_stripped) {
            (true, _) => run(Command::new("gzip").arg("-dc").arg(&packed))?.into_bytes() == ours,
            (_, true) => fs::metadata(&packed)?.len() < ours.len() as u64,
            _ => fs::read(&packed)? == ours,
        };
        ensure!(same, "{name} is another file");
    }
    for name in extra.keys() {
        let is_debians = ["usr/share/doc/bursar/", "usr/share/lintian/overrides/"];
        ensure!(
            is_debians.iter().any(|it| name.starts_with(it)),
            "{name} is not installed by make install"
        );
    }
    for name in ["copyright", "changelog.gz", "CHANGELOG.md.gz", "README.md"] {
        let path = format!("usr/share/doc/bursar/{name}");
        ensure!(extra.contains_key(&path), "{path} is missing: {extra:?}");
    }

    links_lead_somewhere(&packed.join("usr/share/doc/bursar"), &extra)?;

    let version = run(Command::new(packed.join("usr/sbin/bursard")).arg("--version"))?;
    let version = version.trim().trim_start_matches("bursard ");
    let arch = run(Command::new("dpkg").arg("--print-architecture"))?;
    let name = format!("bursar_{version}_{}.deb", arch.trim());
    ensure!(package.ends_with(&name), "{package:?} is not {name}");
    let field = |name: &str| {
        let mut command = Command::new("dpkg-deb");
        run(command.arg("-f").arg(&package).arg(name))
    };
    ensure!(field("Version")?.trim() == version, "{}", field("Version")?);
    let needs = field("Depends")?;
    for library in ["libc6 (>= ", "libelf1", "zlib1g (>= "] {
        ensure!(needs.contains(library), "depends on {needs:?}");
    }
    let conffiles = fs::read_to_string(control.join("conffiles"))?;
    ensure!(conffiles == "/etc/bursar/bursar.toml\n", "{conffiles}");
    run(Command::new("md5sum")
        .args(["--strict", "--quiet", "-c"])
        .arg(control.join("md5sums"))
        .current_dir(&packed))?;
    let owners = run(Command::new("dpkg-deb").arg("-c").arg(&package))?;
    ensure!(
        owners.lines().all(|line| line.contains(" root/root ")),
        "{owners}"
    );

    let again = pack(&at("again"))?;
    ensure!(
        fs::read(&package)? == fs::read(&again)?,
        "packed twice, it is not the same package"
    );
    Ok(())
}

/// Of the documents that are packed.
fn links_lead_somewhere(doc: &Path, extra: &BTreeMap<String, u32>) -> Result<()> {
    const DOC: &str = "usr/share/doc/bursar/";
    for name in extra.keys().filter(|it| it.ends_with(".md")) {
        let Some(name) = name.strip_prefix(DOC) else {
            continue;
        };
        let path = doc.join(name);
        let text = fs::read_to_string(&path)?;
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#', ' ']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let target = path.with_file_name("").join(target);
            ensure!(
                target.exists(),
                "{name}: {} is not packed",
                target.display()
            );
        }
    }
    Ok(())
}

/// The same package as an older version, which had less in bursar.toml.
fn older(package: &Path, directory: &Path) -> Result<PathBuf> {
    let (tree, older) = (directory.join("tree"), directory.join("older.deb"));
    run(Command::new("dpkg-deb").arg("-R").args([package, &tree]))?;
    let edit = |name: &str, change: &dyn Fn(&str) -> String| -> Result<()> {
        let path = tree.join(name);
        let old = fs::read_to_string(&path)?;
        let new = change(&old);
        ensure!(old != new, "{name} is as it was");
        Ok(fs::write(&path, new)?)
    };
    edit("DEBIAN/control", &|it| {
        it.replace("\nVersion: ", "\nVersion: 0.0.0~before.")
    })?;
    edit("etc/bursar/bursar.toml", &|it| {
        it.replace("\n[tell]\n", "\n\n[tell]\n")
    })?;
    run(Command::new("dpkg-deb")
        .args(["-Znone", "--root-owner-group", "--build"])
        .args([&tree, &older]))?;
    Ok(older)
}

/// Puts a package where the replica finds it.
fn bring(replica: &Replica, package: &Path, name: &str) -> Result<()> {
    fs::copy(package, replica.path(name)).with_context(|| format!("bring {package:?}"))?;
    Ok(())
}

/// One who holds more than his limit.
fn over(world: &World) -> Result<Hog> {
    world.hog("uid=60001 hold=200M say=there pause")
}

fn dpkg(replica: &Replica, words: &[&str]) -> Result<String> {
    // Triggers would look at all libraries and man pages of the machine.
    let words = [&["--no-triggers", "--force-confold"], words].concat();
    replica.run("dpkg", &words)
}

fn state(replica: &Replica) -> Result<String> {
    let output = replica
        .command("dpkg-query")
        .args(["-W", "-f", "${Status} ${Version}", "bursar"])
        .output()?;
    Ok(String::from_utf8(output.stdout)?)
}

fn life(binaries: &Binaries) -> Result<()> {
    const TOML: &str = "/etc/bursar/bursar.toml";
    const LIMITS: &str = "/etc/bursar/limits.toml";
    let world = World::new(binaries, "package-life", "")?;
    let package = pack(&world.directory().join("deb"))?;
    let older = older(&package, world.directory())?;
    let replica = Replica::new(&world.directory().join("replica"))?;
    replica.have_services()?;
    replica.be_the_machine()?;
    bring(&replica, &package, "/tmp/new.deb")?;
    bring(&replica, &older, "/tmp/old.deb")?;

    // It comes: enabled and started, and nobody has a limit.
    dpkg(&replica, &["-i", "/tmp/old.deb"])?;
    ensure!(
        state(&replica)?.starts_with("install ok installed 0.0.0~before."),
        "{}",
        state(&replica)?
    );
    let first = replica.served().context("bursard was not started")?;
    ensure!(replica.path("/etc/bursar/limits.toml.d").is_dir());
    over(&world)?.hear("there")?;
    replica.run("bursar", &["limit", "set", "60001", "64M"])?;
    over(&world)?.expect_killed()?;
    let limits = replica.read(LIMITS);

    // Another version, with other options: another kernel half. Who comes meanwhile is killed, too.
    let edited = replica
        .read(TOML)
        .replace("max_processes = 32768", "max_processes = 2048");
    fs::write(replica.path(TOML), &edited)?;
    let before = replica.halves();
    let mut upgrade = replica
        .command("dpkg")
        .args(["--no-triggers", "--force-confold", "-i", "/tmp/new.deb"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let status = loop {
        over(&world)?.expect_killed()?;
        if let Some(status) = upgrade.try_wait()? {
            break status;
        }
    };
    ensure!(status.success(), "the upgrade: {status}");
    over(&world)?.expect_killed()?;
    let second = replica.served().context("bursard does not run")?;
    let (old, new) = (before, replica.halves());
    ensure!(second != first, "bursard is the old one");
    ensure!(new.len() == 1 && new != old, "pinned {old:?}, then {new:?}");
    ensure!(replica.read(TOML) == edited, "bursar.toml is not as it was");
    ensure!(replica.path("/etc/bursar/bursar.toml.dpkg-dist").exists());
    ensure!(
        replica.read(LIMITS) == limits,
        "limits.toml is not as it was"
    );
    let asked = replica.read("/run/asked");
    ensure!(
        asked.contains("restart bursard.service") && !asked.contains("stop bursard.service"),
        "{asked}"
    );

    // One that would not start does not take the place of one that runs; nor is the upgrade left halfway.
    fs::write(replica.path(TOML), "trigger = \"none\"\n")?;
    let said = dpkg(&replica, &["-i", "/tmp/new.deb"])?;
    ensure!(said.contains("the old bursard goes on"), "{said}");
    ensure!(replica.served() == Some(second), "bursard was restarted");
    fs::write(replica.path(TOML), &edited)?;

    // Back: of this build and these options is the kernel half already.
    dpkg(&replica, &["-i", "/tmp/old.deb"])?;
    let third = replica.served().context("bursard does not run")?;
    ensure!(third != second && replica.halves() == new, "not adopted");
    over(&world)?.expect_killed()?;

    // Limits that cannot be lifted keep the package; here bursard may not be stopped.
    replica.program("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")?;
    let kept = replica.command("dpkg").args(["-r", "bursar"]).output()?;
    ensure!(
        !kept.status.success() && text(&kept).contains("not removed: limits are in force"),
        "{}",
        text(&kept)
    );
    ensure!(
        state(&replica)?.contains(" ok installed "),
        "{}",
        state(&replica)?
    );
    over(&world)?.expect_killed()?;
    fs::remove_file(replica.path("/usr/sbin/policy-rc.d"))?;

    // It goes, with the limits that are in force, not with what was written.
    dpkg(&replica, &["-r", "bursar"])?;
    ensure!(replica.served().is_none(), "bursard still runs");
    ensure!(
        replica.halves().is_empty(),
        "{:?} are left",
        replica.halves()
    );
    ensure!(!replica.path("/sys/fs/bpf/bursar").exists());
    ensure!(!replica.path("/run/bursar").exists());
    ensure!(!replica.path("/usr/sbin/bursard").exists());
    over(&world)?.hear("there")?;
    ensure!(replica.read(TOML) == edited && replica.read(LIMITS) == limits);

    // And back: what was written is in force again.
    dpkg(&replica, &["-i", "/tmp/new.deb"])?;
    over(&world)?.expect_killed()?;

    dpkg(&replica, &["-P", "bursar"])?;
    for gone in ["/etc/bursar", "/var/lib/bursar", "/sys/fs/bpf/bursar"] {
        ensure!(!replica.path(gone).exists(), "{gone} is left");
    }
    ensure!(!state(&replica)?.contains("ok"), "{}", state(&replica)?);
    Ok(())
}

fn elsewhere(binaries: &Binaries) -> Result<()> {
    let world = World::new(binaries, "package-root", "")?;
    let package = pack(&world.directory().join("deb"))?;
    let replica = Replica::new(&world.directory().join("replica"))?;
    bring(&replica, &package, "/tmp/new.deb")?;
    dpkg(&replica, &["-i", "/tmp/new.deb"])?;

    // Started by hand, and killed: the limits hold.
    let mut bursard = replica.command("/usr/sbin/bursard");
    let mut bursard = bursard.stderr(Stdio::null()).spawn()?;
    until("bursard's answer", || {
        let asked = replica.command("bursar").arg("status").output()?;
        Ok(asked.status.success().then_some(()))
    })?;
    replica.run("bursar", &["limit", "set", "60001", "64M"])?;
    bursard.kill()?;
    bursard.wait()?;
    let limits = replica.read("/etc/bursar/limits.toml");
    over(&world)?.expect_killed()?;

    // In another root the limits that are seen are not its own: a chroot's, or a directory's.
    let halves = replica.halves();
    ensure!(halves.len() == 1, "{halves:?}");
    let root = [
        "--root=/tmp/root",
        "--force-script-chrootless",
        "--force-depends",
    ];
    fs::create_dir_all(replica.path("/tmp/root/var/lib/dpkg"))?;
    for words in [["-i", "/tmp/new.deb"], ["-r", "bursar"], ["-P", "bursar"]] {
        dpkg(&replica, &[&root, words.as_slice()].concat())?;
    }
    ensure!(!replica.path("/tmp/root/etc/bursar").exists());
    dpkg(&replica, &["-r", "bursar"])?;
    ensure!(!replica.path("/usr/sbin/bursard").exists());
    ensure!(replica.halves() == halves, "{:?}", replica.halves());
    ensure!(replica.read("/etc/bursar/limits.toml") == limits);
    over(&world)?.expect_killed()?;

    // Not so in its own.
    dpkg(&replica, &["-i", "/tmp/new.deb"])?;
    replica.be_the_machine()?;
    dpkg(&replica, &["-r", "bursar"])?;
    ensure!(replica.halves().is_empty(), "{:?}", replica.halves());
    over(&world)?.hear("there")?;

    // What is wrong and harms nobody does not keep it.
    dpkg(&replica, &["-i", "/tmp/new.deb"])?;
    fs::write(replica.path("/etc/bursar/bursar.toml"), "trigger = 1\n")?;
    let said = dpkg(&replica, &["-P", "bursar"])?;
    ensure!(said.contains("no limit is in force"), "{said}");
    ensure!(!replica.path("/etc/bursar").exists());
    Ok(())
}
