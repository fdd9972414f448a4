// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stage of one story.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::daemon::Daemon;
use crate::hog::Hog;

/// Where the programs under test are.
#[derive(Debug, Clone)]
pub struct Binaries {
    directory: PathBuf,
    under_unit: bool,
}

impl Binaries {
    /// Beside the running program.
    ///
    /// # Errors
    /// When the system does not say where that is.
    pub fn beside_us() -> Result<Self> {
        let own = std::env::current_exe().context("find our own program")?;
        let directory = own.parent().context("find our own directory")?.to_owned();
        Ok(Self {
            directory,
            under_unit: false,
        })
    }

    /// The same, and every bursard has only the capabilities that the unit that is shipped leaves it.
    #[must_use]
    pub fn under_unit(&self) -> Self {
        Self {
            under_unit: true,
            ..self.clone()
        }
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// A daemon with paths of its own and room for programs; all of it is gone when it is dropped.
#[derive(Debug)]
pub struct World {
    /// The daemon, not yet started.
    pub daemon: Daemon,
    binaries: Binaries,
    /// After the daemon, which still needs them when it ends.
    paths: Paths,
}

const BPFFS: &str = "/sys/fs/bpf";
const PREFIX: &str = "bursar-e2e-";

/// Removes the directories and pins of runs that were killed: a kernel half left running would make
/// whatever is measured next look dear, and whoever is told next be killed twice.
pub fn sweep() {
    for place in [std::env::temp_dir(), PathBuf::from(BPFFS)] {
        let left = fs::read_dir(place).into_iter().flatten().flatten();
        for entry in left {
            let name = entry.file_name();
            let owner = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
            let is_gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
            if owner.is_some_and(is_gone) && fs::remove_dir_all(entry.path()).is_ok() {
                println!("removed {:?}, left by a run that was killed", entry.path());
            }
        }
    }
}

/// Directories that go with the stage.
#[derive(Debug)]
struct Paths {
    directory: PathBuf,
    pins: PathBuf,
}

impl World {
    /// Sets the stage, with `config` as further lines of bursar.toml.
    ///
    /// # Errors
    /// When directories cannot be made.
    pub fn new(binaries: &Binaries, name: &str, config: &str) -> Result<Self> {
        let unique = format!("{PREFIX}{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(&unique);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).with_context(|| format!("make {directory:?}"))?;
        let pins = Path::new(BPFFS).join(&unique);
        let daemon = Daemon::new(&binaries.path("bursard"), &directory, binaries.under_unit);
        let paths = Paths { directory, pins };
        let world = Self {
            daemon,
            binaries: binaries.clone(),
            paths,
        };
        world.configure(config)?;
        Ok(world)
    }

    /// Writes bursar.toml anew.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn configure(&self, config: &str) -> Result<()> {
        let at = |name: &str| self.paths.directory.join(name).display().to_string();
        // Hogs must come to their limit: where nothing else is said, nothing refuses them before.
        let gate = if config.contains("[gate]") {
            ""
        } else {
            "[gate]\nmode = \"off\"\n"
        };
        let text = format!(
            "{config}\n{gate}[paths]\nlimits = {:?}\nruntime = {:?}\nstate = {:?}\npins = {:?}\nsubuid = {:?}\n",
            at("limits.toml"),
            at("run"),
            at("state"),
            self.paths.pins.display().to_string(),
            at("subuid"),
        );
        fs::write(self.daemon.config_path(), text).context("write bursar.toml")
    }

    /// Where the kernel half is pinned.
    pub fn pins(&self) -> &Path {
        &self.paths.pins
    }

    /// Users ask bursard and read the story's files, as they do on a machine.
    pub(crate) fn let_users_in(&self) -> Result<()> {
        for path in [self.directory().to_owned(), self.directory().join("run")] {
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// A directory for the story's own files.
    pub fn directory(&self) -> &Path {
        &self.paths.directory
    }

    /// Starts a `hog` (see src/bin/hog.rs).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn hog(&self, script: &str) -> Result<Hog> {
        Hog::start(&self.binaries.path("hog"), script)
    }

    /// The same of one with the step `say=there`, which has said so.
    ///
    /// # Errors
    /// When it cannot be started, or ends before.
    pub fn there(&self, script: &str) -> Result<Hog> {
        let mut hog = self.hog(script)?;
        hog.hear("there")?;
        Ok(hog)
    }

    /// A `hog` whose steps may contain blanks.
    pub fn hog_command(&self) -> Command {
        Command::new(self.binaries.path("hog"))
    }

    /// The command line, talking to this daemon.
    pub fn bursar(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.path("bursar"));
        command
            .arg("--socket")
            .arg(self.daemon.socket())
            .args(arguments)
            .env("NO_COLOR", "1");
        command
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir(&self.pins);
    }
}
