// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels kept on this machine: `<cache>/kernels/<suite>/`. A kernel's directory appears whole,
//! by a rename, with its manifest inside; what does not match its manifest is fetched again. Outside
//! target/, so that `cargo clean` costs no download.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::archive::{Fetch, Trust, Wanted, mmdebstrap};
use crate::program;
use crate::suite::Suite;

/// Where kernels and images are kept.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What is written beside a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Ours.
    pub suite: Suite,
    /// The archive's suite it came from.
    pub archive_suite: String,
    /// What `uname -r` says.
    pub release: String,
    /// The version of its packages.
    pub version: String,
    /// Whether signatures were checked on the way.
    pub verified: bool,
    // To notice damage: size and hash (as sha256sum prints it) of vmlinuz, count and size of modules.
    vmlinuz_bytes: u64,
    vmlinuz_sha256: String,
    module_files: u64,
    module_bytes: u64,
}

/// A kernel that is there, whole.
#[derive(Clone, Debug)]
pub struct Kernel {
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
    pub(crate) fn work_dir(&self, below: &str) -> Result<tempfile::TempDir> {
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

    /// The suite's kernel: `None` when there is none, an error that says what is wrong when there is a
    /// broken one.
    pub fn kernel(&self, suite: Suite) -> Result<Option<Kernel>> {
        let dir = self.root.join("kernels").join(suite.name());
        if !dir.exists() {
            return Ok(None);
        }
        let path = dir.join("kernel.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        let manifest = toml::from_str(&text).with_context(|| format!("read {path:?}"))?;
        let kernel = Kernel { dir, manifest };
        kernel.check()?;
        Ok(Some(kernel))
    }
}

impl Kernel {
    fn check(&self) -> Result<()> {
        let manifest = &self.manifest;
        let (bytes, sha256) = size_and_hash(&self.vmlinuz())?;
        ensure!(
            (bytes, &sha256) == (manifest.vmlinuz_bytes, &manifest.vmlinuz_sha256),
            "{:?} is not the file that was unpacked",
            self.vmlinuz()
        );
        let (files, bytes) = module_totals(&self.dir.join("lib/modules"))?;
        ensure!(
            (files, bytes) == (manifest.module_files, manifest.module_bytes),
            "{files} module files of {bytes} bytes instead of {} of {}",
            manifest.module_files,
            manifest.module_bytes
        );
        for file in [self.config(), self.modules().join("modules.dep")] {
            let there = fs::metadata(&file).is_ok_and(|meta| meta.len() > 0);
            ensure!(there, "{file:?} is missing or empty");
        }
        Ok(())
    }

    /// What is known of it.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Which suite's kernel it is.
    pub fn suite(&self) -> Suite {
        self.manifest.suite
    }

    /// What `uname -r` says in it.
    pub fn release(&self) -> &str {
        &self.manifest.release
    }

    /// The bootable image.
    pub fn vmlinuz(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// What it was configured with.
    pub fn config(&self) -> PathBuf {
        self.dir.join("config")
    }

    /// `lib/modules/<release>` with `modules.dep`.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules").join(&self.manifest.release)
    }

    /// Bytes on disk.
    pub fn size_bytes(&self) -> u64 {
        self.manifest.vmlinuz_bytes + self.manifest.module_bytes
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

    /// What stories and measurements need of a kernel, and whether it has it.
    pub fn abilities(&self) -> Result<Vec<Ability>> {
        let read =
            |path: PathBuf| fs::read_to_string(&path).with_context(|| format!("read {path:?}"));
        let module_lists = read(self.modules().join("modules.dep"))?
            + &read(self.modules().join("modules.builtin"))?;
        Ok(abilities(&read(self.config())?, &module_lists))
    }
}

/// One thing a kernel has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ability {
    /// A short name.
    pub name: &'static str,
    /// Whether it is there.
    pub present: bool,
    /// Whether guests are of no use without it.
    pub required: bool,
}

fn abilities(config: &str, module_lists: &str) -> Vec<Ability> {
    let value = |key: &str| {
        let value = config
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or("n").trim_matches('"')
    };
    let yes = |key: &str| value(key) == "y";
    let module = |key: &str, file: &str| yes(key) || module_lists.contains(&format!("/{file}.ko"));
    let bpf_lsm = yes("CONFIG_BPF_LSM") && value("CONFIG_LSM").split(',').any(|name| name == "bpf");
    // Off is not the same as absent: before 6.11 nobody was asked, and cgroup v1 memory was there.
    let cgroup_v1 = !config
        .lines()
        .any(|line| line == "# CONFIG_MEMCG_V1 is not set");
    [
        ("BTF", yes("CONFIG_DEBUG_INFO_BTF"), true),
        ("bpf in the LSM list", bpf_lsm, true),
        ("memory cgroup", yes("CONFIG_MEMCG"), true),
        ("PSI", yes("CONFIG_PSI"), true),
        ("tmpfs", yes("CONFIG_TMPFS"), true),
        (
            "null_blk",
            module("CONFIG_BLK_DEV_NULL_BLK", "null_blk"),
            true,
        ),
        ("configfs", module("CONFIG_CONFIGFS_FS", "configfs"), true),
        (
            "virtio_pci",
            module("CONFIG_VIRTIO_PCI", "virtio_pci"),
            true,
        ),
        (
            "virtio_console",
            module("CONFIG_VIRTIO_CONSOLE", "virtio_console"),
            true,
        ),
        ("serial console", yes("CONFIG_SERIAL_8250_CONSOLE"), true),
        (
            "BPF trampolines",
            yes("CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"),
            false,
        ),
        ("kprobes", yes("CONFIG_KPROBES"), false),
        ("module BTF", yes("CONFIG_DEBUG_INFO_BTF_MODULES"), false),
        ("multi-gen LRU", yes("CONFIG_LRU_GEN"), false),
        ("zram", module("CONFIG_ZRAM", "zram"), false),
        ("swap", yes("CONFIG_SWAP"), false),
        ("NUMA", yes("CONFIG_NUMA"), false),
        ("DAMON reclaim", yes("CONFIG_DAMON_RECLAIM"), false),
        ("cgroup v1 memory", yes("CONFIG_MEMCG") && cgroup_v1, false),
        (
            "real-time group scheduling",
            yes("CONFIG_RT_GROUP_SCHED"),
            false,
        ),
    ]
    .map(|(name, present, required)| Ability {
        name,
        present,
        required,
    })
    .to_vec()
}

/// The names of what is missing, among the required or among the useful ones.
pub(crate) fn missing(abilities: &[Ability], required: bool) -> Vec<&'static str> {
    let missing = abilities
        .iter()
        .filter(|ability| ability.required == required && !ability.present);
    missing.map(|ability| ability.name).collect()
}

/// The suite's kernel, downloaded if it is not there or not whole.
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
    for meta in suite.metapackages() {
        let dir = work.path().join(meta.replace('/', "-of-"));
        let Some(kernel) = unpack(suite, meta, how, work.path(), &dir)? else {
            continue;
        };
        let lacking = missing(&kernel.abilities()?, true);
        if !lacking.is_empty() {
            eprintln!(
                "{meta} {} lacks {}",
                kernel.manifest.version,
                lacking.join(", ")
            );
            continue;
        }
        let place = cache.root.join("kernels").join(suite.name());
        if place.exists() {
            rename(&place, &work.path().join("replaced"))?;
        }
        rename(&dir, &place)?;
        return cache
            .kernel(suite)?
            .with_context(|| format!("{place:?} vanished"));
    }
    let tried = suite.metapackages().join(", ");
    bail!("{suite} has no kernel package with all that guests need ({tried})")
}

/// Downloads a kernel and lays its files out in `dir` as the cache has them; `None` where there is
/// no such package.
fn unpack(
    suite: Suite,
    meta: &str,
    how: &Fetch,
    work: &Path,
    dir: &Path,
) -> Result<Option<Kernel>> {
    fs::create_dir_all(dir).with_context(|| format!("create {dir:?}"))?;
    // Which version it is apt says as long as it has its lists.
    let name = meta.split('/').next().unwrap_or(meta);
    let ask =
        format!("APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-cache madison {name} >\"$1/versions\"");
    let tar = dir.join("root.tar").display().to_string();
    let wanted = Wanted {
        suites: suite.archive_suites(),
        packages: &[meta],
        architectures: if suite.is_arm64() { "arm64" } else { "amd64" },
        arguments: &[
            "--variant=extract",
            &format!("--extract-hook={ask}"),
            "",
            &tar,
        ],
    };
    let trust = match mmdebstrap(&wanted, how, work) {
        Err(error) if format!("{error:#}").contains("Unable to locate package") => return Ok(None),
        other => other?,
    };
    program::run(
        Command::new("sh")
            .args(["-c", include_str!("fetch.sh")])
            .current_dir(dir),
    )?;
    let said = |name: &str| -> Result<String> {
        let text = fs::read_to_string(dir.join(name)).with_context(|| format!("read {name}"))?;
        ensure!(!text.trim().is_empty(), "{meta} has no {name}");
        fs::remove_file(dir.join(name)).with_context(|| format!("remove {name}"))?;
        Ok(text.trim().to_owned())
    };
    let (vmlinuz_bytes, vmlinuz_sha256) = size_and_hash(&dir.join("vmlinuz"))?;
    let (module_files, module_bytes) = module_totals(&dir.join("lib/modules"))?;
    let manifest = Manifest {
        suite,
        archive_suite: said("archive_suite")?,
        release: said("release")?,
        version: said("version")?,
        verified: trust != Trust::Unverified,
        vmlinuz_bytes,
        vmlinuz_sha256,
        module_files,
        module_bytes,
    };
    let text = toml::to_string(&manifest).context("write the manifest")?;
    fs::write(dir.join("kernel.toml"), text).with_context(|| format!("write in {dir:?}"))?;
    let dir = dir.to_owned();
    Ok(Some(Kernel { dir, manifest }))
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("move {from:?} to {to:?}"))
}

fn size_and_hash(path: &Path) -> Result<(u64, String)> {
    let bytes = fs::metadata(path)
        .with_context(|| format!("look at {path:?}"))?
        .len();
    let sum = program::text(Command::new("sha256sum").arg("--").arg(path))?;
    let sum = sum
        .trim_start_matches('\\')
        .split_whitespace()
        .next()
        .unwrap_or_default();
    Ok((bytes, sum.to_owned()))
}

fn module_totals(dir: &Path) -> Result<(u64, u64)> {
    let mut totals = (0, 0);
    for entry in fs::read_dir(dir).with_context(|| format!("read {dir:?}"))? {
        let entry = entry?;
        let (files, bytes) = if entry.file_type()?.is_dir() {
            module_totals(&entry.path())?
        } else if entry.file_name().to_string_lossy().contains(".ko") {
            (1, entry.metadata()?.len())
        } else {
            (0, 0)
        };
        totals = (totals.0 + files, totals.1 + bytes);
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with one kernel of a few bytes.
    fn cache(root: &Path) -> Cache {
        let cache = Cache {
            root: root.to_owned(),
        };
        let dir = root.join("kernels/trixie");
        let modules = dir.join("lib/modules/6.12-x");
        fs::create_dir_all(&modules).unwrap();
        for (file, text) in [
            ("a.ko", "module"),
            ("modules.dep", "a.ko:\n"),
            ("modules.builtin", ""),
        ] {
            fs::write(modules.join(file), text).unwrap();
        }
        fs::write(dir.join("vmlinuz"), "kernel").unwrap();
        fs::write(dir.join("config"), "CONFIG_X=y\n").unwrap();
        let (vmlinuz_bytes, vmlinuz_sha256) = size_and_hash(&dir.join("vmlinuz")).unwrap();
        let manifest = Manifest {
            suite: Suite::Trixie,
            archive_suite: "trixie".to_owned(),
            release: "6.12-x".to_owned(),
            version: "6.12-1".to_owned(),
            verified: true,
            vmlinuz_bytes,
            vmlinuz_sha256,
            module_files: 1,
            module_bytes: 6,
        };
        fs::write(dir.join("kernel.toml"), toml::to_string(&manifest).unwrap()).unwrap();
        cache
    }

    #[test]
    fn a_whole_kernel_is_found_and_an_absent_one_is_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        assert_eq!(
            cache.kernel(Suite::Trixie).unwrap().unwrap().release(),
            "6.12-x"
        );
        assert!(cache.kernel(Suite::Newest).unwrap().is_none());
    }

    #[test]
    fn damage_is_noticed() {
        let modules = "lib/modules/6.12-x";
        for (file, left) in [
            ("vmlinuz".to_owned(), Some("ker")),
            ("vmlinuz".to_owned(), Some("KERNEL")),
            ("kernel.toml".to_owned(), None),
            (format!("{modules}/a.ko"), None),
            (format!("{modules}/modules.dep"), Some("")),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let cache = cache(dir.path());
            let path = dir.path().join("kernels/trixie").join(&file);
            match left {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert!(
                cache.kernel(Suite::Trixie).is_err(),
                "{file} {left:?} was not noticed"
            );
        }
    }

    #[test]
    fn what_a_kernel_lacks_is_named() {
        let config = "CONFIG_BPF_LSM=y\nCONFIG_LSM=\"landlock,lockdown,bpf\"\nCONFIG_DEBUG_INFO_BTF=y\n\
                      CONFIG_MEMCG=y\n# CONFIG_MEMCG_V1 is not set\nCONFIG_PSI=y\nCONFIG_TMPFS=y\n\
                      CONFIG_VIRTIO_PCI=y\nCONFIG_SERIAL_8250_CONSOLE=y\n";
        let lists = "a/null_blk.ko.xz: b/configfs.ko.xz\nb/configfs.ko.xz:\nc/virtio_console.ko:\n";
        assert_eq!(missing(&abilities(config, lists), true), Vec::<&str>::new());
        assert!(missing(&abilities(config, lists), false).contains(&"cgroup v1 memory"));
        let config = config
            .replace(",bpf", ",bpfilter")
            .replace("CONFIG_DEBUG_INFO_BTF=y\n", "");
        assert_eq!(
            missing(&abilities(&config, ""), true),
            [
                "BTF",
                "bpf in the LSM list",
                "null_blk",
                "configfs",
                "virtio_console"
            ]
        );
    }
}
