// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels kept on this machine: `<cache>/kernels/<suite>/`. A kernel's directory appears whole,
//! by a rename, with its manifest inside. Outside target/, so that `cargo clean` costs no download.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use tempfile::TempDir;

use crate::archive::{Fetch, mmdebstrap};
use crate::program;
use crate::suite::Suite;

/// Where kernels and images are kept.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What is written beside a kernel.
#[derive(Clone, Debug, Deserialize)]
struct Manifest {
    /// The archive's suite it came from.
    archive_suite: String,
    /// What `uname -r` says.
    release: String,
    /// The version of its packages.
    version: String,
}

/// A kernel that is there.
#[derive(Clone, Debug)]
pub struct Kernel {
    suite: Suite,
    dir: PathBuf,
    manifest: Manifest,
}

impl Cache {
    /// `$BURSAR_VM_CACHE`, or root's `/var/cache/bursar-vm`, or `~/.cache/bursar-vm`.
    pub fn open() -> Result<Cache> {
        let set = std::env::var_os("BURSAR_VM_CACHE").filter(|dir| !dir.is_empty());
        let root = match set {
            Some(dir) => std::path::absolute(dir).context("read BURSAR_VM_CACHE")?,
            None if rustix::process::geteuid().is_root() => PathBuf::from("/var/cache/bursar-vm"),
            None => {
                let home = std::env::var_os("HOME");
                let home =
                    home.context("neither BURSAR_VM_CACHE nor HOME says where the cache is")?;
                Path::new(&home).join(".cache/bursar-vm")
            }
        };
        Ok(Cache { root })
    }

    /// The directory of everything.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Keeps others who fetch out until dropped.
    pub(crate) fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.root).with_context(|| format!("create {:?}", self.root))?;
        let path = self.root.join("lock");
        let lock = File::create(&path).with_context(|| format!("create {path:?}"))?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for somebody else who fetches");
            lock.lock().with_context(|| format!("lock {path:?}"))?;
        }
        Ok(lock)
    }

    /// A directory to make something in, which then moves to its place in the cache. It goes when it
    /// is dropped; what somebody who was killed left behind goes now. Only with the lock.
    pub(crate) fn work_dir(&self, below: &str) -> Result<TempDir> {
        const HALF: &str = ".half-";
        let dir = self.root.join(below);
        fs::create_dir_all(&dir).with_context(|| format!("create {dir:?}"))?;
        for entry in fs::read_dir(&dir).with_context(|| format!("read {dir:?}"))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(HALF) {
                eprintln!("removing what is half made, {:?}", entry.path());
                fs::remove_dir_all(entry.path())
                    .with_context(|| format!("remove {:?}", entry.path()))?;
            }
        }
        let made = tempfile::Builder::new().prefix(HALF).tempdir_in(&dir);
        made.with_context(|| format!("create a directory in {dir:?}"))
    }

    /// Puts what was made in `work` where it belongs, in the place of what was there.
    pub(crate) fn put(&self, work: &TempDir, below: &str, suite: Suite) -> Result<()> {
        let place = self.root.join(below).join(suite.name());
        if place.exists() {
            rename(&place, &work.path().join("replaced"))?;
        }
        rename(&work.path().join("made"), &place)
    }

    /// The suite's kernel, if it is there.
    pub fn kernel(&self, suite: Suite) -> Result<Option<Kernel>> {
        let dir = self.root.join("kernels").join(suite.name());
        if !dir.exists() {
            return Ok(None);
        }
        let path = dir.join("kernel.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        let manifest = toml::from_str(&text).with_context(|| format!("read {path:?}"))?;
        Ok(Some(Kernel {
            suite,
            dir,
            manifest,
        }))
    }
}

impl Kernel {
    /// Which suite's kernel it is.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// What `uname -r` says in it.
    pub fn release(&self) -> &str {
        &self.manifest.release
    }

    /// The bootable image.
    pub fn vmlinuz(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// `lib/modules/<release>` with `modules.dep`.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules").join(&self.manifest.release)
    }

    /// The files to insert for this module, it last. What is built in needs none.
    pub(crate) fn module_files(&self, name: &str) -> Result<Vec<String>> {
        let mut modprobe = Command::new(program::find("modprobe")?);
        modprobe.args([
            "-C",
            "/dev/null",
            "--show-depends",
            "-S",
            self.release(),
            "-d",
        ]);
        let listed = program::text(modprobe.arg(&self.dir).arg(name));
        let listed = listed.with_context(|| format!("kernel {} and {name:?}", self.release()))?;
        let files = listed
            .lines()
            .filter_map(|line| line.strip_prefix("insmod "));
        Ok(files.map(|file| file.trim().to_owned()).collect())
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (suite, made) = (self.suite, &self.manifest);
        let (release, from, version) = (&made.release, &made.archive_suite, &made.version);
        write!(f, "{suite:9} {release} from {from} ({version})")
    }
}

/// The suite's kernel, downloaded if it is not there.
pub fn fetch(cache: &Cache, suite: Suite, how: &Fetch) -> Result<Kernel> {
    // Nothing to do and nothing to wait for: the usual case.
    if let (Ok(Some(kernel)), false) = (cache.kernel(suite), how.refresh) {
        return Ok(kernel);
    }
    let _lock = cache.lock()?;
    match cache.kernel(suite) {
        Ok(Some(kernel)) if !how.refresh => return Ok(kernel),
        Ok(_) => {}
        Err(error) => eprintln!("the cached kernel of {suite} is damaged: {error:#}"),
    }
    program::provide("guests")?;
    let work = cache.work_dir("kernels")?;
    let made = work.path().join("made");
    unpack(suite, how, work.path(), &made)?;
    cache.put(&work, "kernels", suite)?;
    let kernel = cache.kernel(suite)?;
    kernel.with_context(|| format!("the kernel of {suite} vanished"))
}

/// Downloads a kernel and lays its files out in `dir` as the cache has them.
fn unpack(suite: Suite, how: &Fetch, work: &Path, dir: &Path) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("create {dir:?}"))?;
    let meta = suite.metapackage();
    // Which version it is apt says as long as it has its lists.
    let name = meta.split('/').next().unwrap_or(meta);
    let ask =
        format!("APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache madison {name} >\"$1/versions\"");
    let tar = dir.join("root.tar").display().to_string();
    let hook = format!("--extract-hook={ask}");
    let architecture = if suite.is_arm64() { "arm64" } else { "amd64" };
    let suites = suite.archive_suites();
    eprintln!("fetching from {suites}: {meta}");
    let variant = "--variant=extract";
    let arguments = [architecture, suites, meta, variant, &hook, "", &tar];
    mmdebstrap(how, work, &arguments)?;
    program::run(program::script("fetch.sh").current_dir(dir))?;
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("move {from:?} to {to:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_an_absent_one_is_no_error_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let cache = Cache { root };
        assert!(cache.kernel(Suite::Trixie).unwrap().is_none());
        let place = dir.path().join("kernels/trixie");
        fs::create_dir_all(&place).unwrap();
        assert!(cache.kernel(Suite::Trixie).is_err());
        let text =
            "archive_suite = \"trixie-security\"\nrelease = \"6.12-x\"\nversion = \"6.12-1\"\n";
        fs::write(place.join("kernel.toml"), text).unwrap();
        let kernel = cache.kernel(Suite::Trixie).unwrap().unwrap();
        assert_eq!(
            kernel.to_string(),
            "trixie    6.12-x from trixie-security (6.12-1)"
        );
    }
}
