// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernels kept on this machine: `<cache>/kernels/<suite>/`. A kernel's directory appears
//! whole, by a rename, with its manifest inside; what does not match its manifest is not a kernel.
//! Outside target/, so that `cargo clean` costs no download.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::ability::{Ability, abilities};
use super::module::ModuleIndex;
use super::program;
use super::suite::Suite;

/// Where kernels are kept.
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
    /// Size and hash of vmlinuz, count and size of the module files: to notice damage.
    pub vmlinuz_bytes: u64,
    /// As `sha256sum` prints it.
    pub vmlinuz_sha256: String,
    /// How many module files there are.
    pub module_files: u64,
    /// Their size together.
    pub module_bytes: u64,
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
        let root =
            if let Some(dir) = std::env::var_os("BURSAR_VM_CACHE").filter(|dir| !dir.is_empty()) {
                std::path::absolute(dir).context("read BURSAR_VM_CACHE")?
            } else if rustix::process::geteuid().is_root() {
                PathBuf::from("/var/cache/bursar-vm")
            } else {
                let home = std::env::var_os("HOME").ok_or_else(|| {
                    anyhow!("neither BURSAR_VM_CACHE nor HOME says where the cache is")
                })?;
                Path::new(&home).join(".cache/bursar-vm")
            };
        Ok(Cache { root })
    }

    /// The directory of everything.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a suite's kernel is, or would be.
    pub fn kernel_dir(&self, suite: Suite) -> PathBuf {
        self.root.join("kernels").join(suite.name())
    }

    /// Keeps other fetches out until dropped.
    pub fn lock(&self) -> Result<File> {
        fs::create_dir_all(&self.root).with_context(|| format!("create {:?}", self.root))?;
        let path = self.root.join("lock");
        let lock = File::create(&path).with_context(|| format!("create {path:?}"))?;
        if lock.try_lock().is_err() {
            eprintln!("vm: waiting for another fetch");
            lock.lock().with_context(|| format!("lock {path:?}"))?;
        }
        Ok(lock)
    }

    /// The suite's kernel: `None` when there is none, an error that says what is wrong when there
    /// is a broken one.
    pub fn kernel(&self, suite: Suite) -> Result<Option<Kernel>> {
        let dir = self.kernel_dir(suite);
        if !dir.exists() {
            return Ok(None);
        }
        let kernel = Kernel::read(&dir)?;
        kernel.check_sizes()?;
        Ok(Some(kernel))
    }
}

impl Kernel {
    /// Describes and keeps a kernel whose files have just been laid out in `dir`.
    pub fn describe(
        dir: &Path,
        describe: impl FnOnce(u64, String, u64, u64) -> Manifest,
    ) -> Result<Kernel> {
        let vmlinuz = dir.join("vmlinuz");
        let bytes = fs::metadata(&vmlinuz)
            .with_context(|| format!("look at {vmlinuz:?}"))?
            .len();
        let (files, module_bytes) = module_totals(&dir.join("lib/modules"))?;
        let manifest = describe(bytes, sha256(&vmlinuz)?, files, module_bytes);
        let text = toml::to_string(&manifest).context("write the manifest")?;
        fs::write(dir.join("kernel.toml"), text)
            .with_context(|| format!("write {dir:?}/kernel.toml"))?;
        Ok(Kernel {
            dir: dir.to_owned(),
            manifest,
        })
    }

    fn read(dir: &Path) -> Result<Kernel> {
        let path = dir.join("kernel.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        let manifest = toml::from_str(&text).with_context(|| format!("read {path:?}"))?;
        Ok(Kernel {
            dir: dir.to_owned(),
            manifest,
        })
    }

    /// Cheap: before every boot.
    fn check_sizes(&self) -> Result<()> {
        let bytes = fs::metadata(self.vmlinuz())
            .with_context(|| format!("look at {:?}", self.vmlinuz()))?
            .len();
        if bytes != self.manifest.vmlinuz_bytes {
            bail!(
                "{:?} has {bytes} bytes instead of {}",
                self.vmlinuz(),
                self.manifest.vmlinuz_bytes
            );
        }
        for file in [self.config(), self.modules().join("modules.dep")] {
            if fs::metadata(&file).map_or(0, |meta| meta.len()) == 0 {
                bail!("{file:?} is missing or empty");
            }
        }
        Ok(())
    }

    /// Thorough: at every fetch.
    pub fn check_contents(&self) -> Result<()> {
        self.check_sizes()?;
        if sha256(&self.vmlinuz())? != self.manifest.vmlinuz_sha256 {
            bail!("{:?} is not the file that was unpacked", self.vmlinuz());
        }
        let totals = module_totals(&self.dir.join("lib/modules"))?;
        let expected = (self.manifest.module_files, self.manifest.module_bytes);
        if totals != expected {
            bail!(
                "{} module files of {} bytes instead of {} of {}",
                totals.0,
                totals.1,
                expected.0,
                expected.1
            );
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

    /// Where `vm btf` puts the kernel's raw BTF.
    pub fn btf(&self) -> PathBuf {
        self.dir.join("vmlinux.btf")
    }

    /// Its modules and their needs.
    pub fn module_index(&self) -> Result<ModuleIndex> {
        let read = |name: &str| {
            let path = self.modules().join(name);
            fs::read_to_string(&path).with_context(|| format!("read {path:?}"))
        };
        Ok(ModuleIndex::parse(
            &read("modules.dep")?,
            &read("modules.builtin")?,
        ))
    }

    /// What it was built with.
    pub fn abilities(&self) -> Result<Vec<Ability>> {
        let path = self.config();
        let config = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
        Ok(abilities(&config, &self.module_index()?))
    }

    /// Bytes on disk.
    pub fn size_bytes(&self) -> u64 {
        let btf = fs::metadata(self.btf()).map_or(0, |meta| meta.len());
        self.manifest.vmlinuz_bytes + self.manifest.module_bytes + btf
    }
}

fn module_totals(dir: &Path) -> Result<(u64, u64)> {
    let mut totals = (0, 0);
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("read {dir:?}"))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() && entry.file_name().to_string_lossy().contains(".ko") {
                totals.0 += 1;
                totals.1 += entry.metadata()?.len();
            }
        }
    }
    Ok(totals)
}

fn sha256(path: &Path) -> Result<String> {
    let output = program::run(Command::new("sha256sum").arg(path))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .trim_start_matches('\\')
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(root: &Path) -> Cache {
        let cache = Cache {
            root: root.to_owned(),
        };
        let dir = cache.kernel_dir(Suite::Trixie);
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
        Kernel::describe(
            &dir,
            |vmlinuz_bytes, vmlinuz_sha256, module_files, module_bytes| Manifest {
                suite: Suite::Trixie,
                archive_suite: "trixie".to_owned(),
                release: "6.12-x".to_owned(),
                version: "6.12-1".to_owned(),
                verified: true,
                vmlinuz_bytes,
                vmlinuz_sha256,
                module_files,
                module_bytes,
            },
        )
        .unwrap();
        cache
    }

    #[test]
    fn a_whole_kernel_is_found_and_an_absent_one_is_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let cache = kernel(dir.path());
        let found = cache.kernel(Suite::Trixie).unwrap().unwrap();
        found.check_contents().unwrap();
        assert_eq!(found.release(), "6.12-x");
        assert!(cache.kernel(Suite::Newest).unwrap().is_none());
    }

    #[test]
    fn damage_is_noticed() {
        type Damage = fn(&Path);
        let damages: [(&str, Damage); 5] = [
            ("cut short", |dir| {
                fs::write(dir.join("vmlinuz"), "ker").unwrap()
            }),
            ("another kernel", |dir| {
                fs::write(dir.join("vmlinuz"), "KERNEL").unwrap()
            }),
            ("no manifest", |dir| {
                fs::remove_file(dir.join("kernel.toml")).unwrap()
            }),
            ("a module gone", |dir| {
                fs::remove_file(dir.join("lib/modules/6.12-x/a.ko")).unwrap()
            }),
            ("no module list", |dir| {
                fs::write(dir.join("lib/modules/6.12-x/modules.dep"), "").unwrap()
            }),
        ];
        for (name, damage) in damages {
            let dir = tempfile::tempdir().unwrap();
            let cache = kernel(dir.path());
            damage(&cache.kernel_dir(Suite::Trixie));
            let checked = cache
                .kernel(Suite::Trixie)
                .and_then(|kernel| kernel.map_or(Ok(()), |kernel| kernel.check_contents()));
            assert!(checked.is_err(), "{name} was not noticed");
        }
    }
}
