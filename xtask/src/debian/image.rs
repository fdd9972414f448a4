// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disk of a whole Debian: made once by mmdebstrap and customize.sh, kept in the cache, and made
//! again when its recipe or its kernel is another.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::archive::{Fetch, Wanted, mmdebstrap};
use crate::initramfs::Initramfs;
use crate::kernel::{Cache, Kernel, fetch};
use crate::program;
use crate::suite::Suite;

const CUSTOMIZE: &str = include_str!("customize.sh");
const INITRD: &str = include_str!("initrd.sh");

/// What an administrator's Debian has; each by a name that both releases know.
const PACKAGES: &[&str] = &[
    "systemd-sysv",
    "dbus",
    "dbus-user-session",
    "libpam-systemd",
    "udev",
    "kmod",
    "openssh-server",
    "cron",
    "at",
    "exim4-daemon-light",
    "sudo",
    "tmux",
    "procps",
    "psmisc",
    "iproute2",
    "less",
    "man-db",
    "bash-completion",
    "python3-minimal",
    "python3-apt",
    "ansible-core",
    "e2fsprogs",
    "crun",
    "podman",
    "uidmap",
    "fuse-overlayfs",
    "libelf1",
    "zlib1g",
    "ca-certificates",
];

/// What has to be there before the disk is.
const MODULES: [&str; 5] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "ext4",
];

/// A disk, with what is needed to boot it.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub kernel: Kernel,
    pub dir: PathBuf,
    /// A word for all that the disk was made from.
    pub recipe: String,
}

impl Image {
    /// The suite's image, made if it is not there.
    pub(super) fn get(cache: &Cache, suite: Suite, how: &Fetch) -> Result<Image> {
        let [archive_suite] = suite.archive_suites() else {
            bail!("no whole Debian of {suite}: it is a kernel only");
        };
        program::provide("debian")?;
        let kernel = fetch(
            cache,
            suite,
            &Fetch {
                refresh: false,
                ..how.clone()
            },
        )?;
        let parts = [CUSTOMIZE, INITRD, &PACKAGES.join(","), kernel.release()];
        let recipe = hash(&parts.map(str::as_bytes));
        let dir = cache.root().join("debian").join(suite.name());
        let image = Image {
            kernel,
            dir,
            recipe,
        };
        let is_fresh =
            || fs::read_to_string(image.dir.join("recipe")).is_ok_and(|made| made == image.recipe);
        if is_fresh() && !how.refresh {
            return Ok(image);
        }
        let _lock = cache.lock()?;
        if !is_fresh() || how.refresh {
            let work = cache.work_dir("debian")?;
            image.make(archive_suite, how, work.path())?;
            if image.dir.exists() {
                fs::rename(&image.dir, work.path().join("replaced"))
                    .context("move the old image")?;
            }
            let made = work.path().join("made");
            fs::rename(&made, &image.dir).with_context(|| format!("move {made:?}"))?;
        }
        Ok(image)
    }

    fn make(&self, suite: &str, how: &Fetch, work: &Path) -> Result<()> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a Debian is made by root only"
        );
        let made = work.join("made");
        fs::create_dir(&made).with_context(|| format!("create {made:?}"))?;
        let write = |name: &str, text: &str| {
            fs::write(work.join(name), text).with_context(|| format!("write {name}"))
        };
        write("customize.sh", CUSTOMIZE)?;
        let key = made.join("key");
        program::run(
            Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(&key),
        )?;
        fs::rename(made.join("key.pub"), work.join("key.pub")).context("move the public key")?;
        let modules = self.kernel.modules();
        let modules = modules.parent().unwrap_or(&modules);
        program::run(
            Command::new("cp")
                .arg("-a")
                .arg(modules)
                .arg(work.join("modules")),
        )?;
        let customize = work.join("customize.sh");
        let hook = format!(
            "--customize-hook=sh '{}' \"$1\" {suite}",
            customize.display()
        );
        let root = work.join("root").display().to_string();
        let wanted = Wanted {
            suites: &[suite],
            packages: PACKAGES,
            architectures: "amd64",
            arguments: &[
                "--variant=minbase",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                &hook,
                suite,
                &root,
            ],
        };
        mmdebstrap(&wanted, how, work)?;
        let disk = made.join("disk");
        let file = File::create(&disk).with_context(|| format!("create {disk:?}"))?;
        file.set_len(3 << 30)
            .with_context(|| format!("size {disk:?}"))?;
        let ext4 = ["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"];
        program::run(
            Command::new("mke2fs")
                .args(ext4)
                .args([Path::new(&root), &disk]),
        )?;
        let initramfs = Initramfs {
            kernel: &self.kernel,
            init: INITRD,
            files: &[],
            modules: &MODULES,
            settings: &[],
        };
        initramfs.pack(&made.join("initrd"))?;
        fs::write(made.join("recipe"), &self.recipe).context("write the recipe")
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    pub(super) fn initrd(&self) -> PathBuf {
        self.dir.join("initrd")
    }

    /// The key that every user of the machine accepts.
    pub(super) fn key(&self) -> PathBuf {
        self.dir.join("key")
    }
}

/// A file system of these files, for a guest to mount: `name` in it, from where.
pub(super) fn file_system(files: &[(&str, &Path)], image: &Path) -> Result<()> {
    let dir = tempfile::tempdir().context("create a directory")?;
    for (name, from) in files {
        fs::copy(from, dir.path().join(name)).with_context(|| format!("copy {from:?}"))?;
    }
    // Always of one size: a guest that is restored believes in the disk that it knew.
    let file = File::create(image).with_context(|| format!("create {image:?}"))?;
    file.set_len(256 << 20)
        .with_context(|| format!("size {image:?}"))?;
    program::run(
        Command::new("mke2fs")
            .args(["-q", "-F", "-t", "ext2", "-d"])
            .arg(dir.path())
            .arg(image),
    )?;
    Ok(())
}

/// A word for what these are (FNV-1a): it has to notice a change, not an attack.
pub(super) fn hash(parts: &[&[u8]]) -> String {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.iter().chain(b"\0")) {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{sum:016x}")
}
