// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disk of a whole Debian: made once by image.sh, kept in the cache, and made again when its recipe or
//! its kernel is another.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::archive::Fetch;
use crate::initramfs::Initramfs;
use crate::kernel::{Cache, Kernel, fetch};
use crate::program;
use crate::suite::Suite;

const INITRD: &str = include_str!("initrd.sh");
/// What else the disk is made from.
const RECIPE: [&str; 3] = [
    include_str!("image.sh"),
    include_str!("customize.sh"),
    INITRD,
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
        ensure!(
            !suite.archive_suites().contains(',') && !suite.is_arm64(),
            "no whole Debian of {suite}: it is a kernel only"
        );
        program::provide("debian")?;
        let kernel = Fetch {
            refresh: false,
            ..how.clone()
        };
        let kernel = fetch(cache, suite, &kernel)?;
        let recipe = hash((RECIPE, kernel.release()));
        let dir = cache.root().join("debian").join(suite.name());
        let image = Image {
            kernel,
            dir,
            recipe,
        };
        if how.refresh || !is_made_from(&image.dir, &image.recipe) {
            let _lock = cache.lock()?;
            // Somebody else may have made it in the meantime.
            if how.refresh || !is_made_from(&image.dir, &image.recipe) {
                let work = cache.work_dir("debian")?;
                image.make(suite, how, work.path())?;
                cache.put(&work, "debian", suite)?;
            }
        }
        Ok(image)
    }

    fn make(&self, suite: Suite, how: &Fetch, work: &Path) -> Result<()> {
        eprintln!("making a Debian, {suite}");
        let modules = self.kernel.modules();
        let mut script = program::script("debian/image.sh");
        script
            .arg(suite.archive_suites())
            .arg(modules.parent().unwrap_or(&modules))
            .arg(&how.apt_dir)
            .current_dir(work);
        program::run(&mut script)?;
        let made = work.join("made");
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

/// A file system with this package as bursar.deb, for a guest to mount.
pub(super) fn file_system(deb: &Path, image: &Path) -> Result<()> {
    let dir = tempfile::tempdir().context("create a directory")?;
    fs::copy(deb, dir.path().join("bursar.deb")).with_context(|| format!("copy {deb:?}"))?;
    // Always of one size: a guest that is restored believes in the disk that it knew.
    let file = File::create(image).with_context(|| format!("create {image:?}"))?;
    file.set_len(256 << 20)
        .with_context(|| format!("size {image:?}"))?;
    let mut mke2fs = Command::new(program::find("mke2fs")?);
    mke2fs.args(["-q", "-F", "-t", "ext2", "-d"]);
    program::run(mke2fs.arg(dir.path()).arg(image))?;
    Ok(())
}

/// Whether what lies in a directory was made from this.
pub(super) fn is_made_from(dir: &Path, recipe: &str) -> bool {
    fs::read_to_string(dir.join("recipe")).is_ok_and(|made| made == recipe)
}

/// A word for what these are: it has to notice a change, not an attack.
pub(super) fn hash(parts: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
