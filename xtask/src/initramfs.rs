// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files a guest starts with: laid out in a directory of this machine, then packed by cpio. The
//! archive is not compressed: QEMU copies it into the guest's memory faster than TCG could unpack it.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::Kernel;
use crate::program;

/// Directories that a guest mounts something over: what stood there would not be seen.
const HIDDEN: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

/// A tree of files for a guest; gone when it is dropped.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
    /// Files of this machine that may need libraries.
    programs: Vec<PathBuf>,
}

impl Tree {
    /// The bare root, with Debian's merged /usr: a program and its loader find each other by either name.
    pub(crate) fn new() -> Result<Tree> {
        let tree = Tree {
            dir: scratch_dir()?,
            programs: Vec::new(),
        };
        for name in HIDDEN.iter().chain(&["root", "etc", "home", "var", "vm"]) {
            create_dir(&tree.dir.path().join(name))?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            create_dir(&tree.dir.path().join("usr").join(name))?;
            let link = tree.dir.path().join(name);
            symlink(Path::new("usr").join(name), &link)
                .with_context(|| format!("link {link:?}"))?;
        }
        Ok(tree)
    }

    /// Adds a file with these contents.
    pub(crate) fn bytes(
        &self,
        guest: impl AsRef<Path>,
        mode: u32,
        bytes: impl AsRef<[u8]>,
    ) -> Result<()> {
        let place = self.place(guest.as_ref())?;
        fs::write(&place, bytes)
            .and_then(|()| fs::set_permissions(&place, Permissions::from_mode(mode)))
            .with_context(|| format!("write {place:?}"))
    }

    /// Adds a file of this machine, or a whole directory, as it is.
    pub(crate) fn host(&mut self, host: &Path, guest: &Path) -> Result<()> {
        let kind = fs::metadata(host).with_context(|| format!("look at {host:?}"))?;
        if kind.is_dir() {
            self.place(&guest.join("its directory"))?;
            for entry in fs::read_dir(host).with_context(|| format!("read {host:?}"))? {
                let entry = entry?;
                let (from, to) = (entry.path(), guest.join(entry.file_name()));
                let kind = entry.file_type()?;
                if kind.is_symlink() {
                    let place = self.place(&to)?;
                    let target =
                        fs::read_link(&from).with_context(|| format!("read link {from:?}"))?;
                    symlink(target, &place).with_context(|| format!("link {place:?}"))?;
                } else if kind.is_dir() || kind.is_file() {
                    self.host(&from, &to)?;
                }
            }
            return Ok(());
        }
        ensure!(kind.is_file(), "{host:?} is neither a file nor a directory");
        let place = self.place(guest)?;
        fs::copy(host, &place).with_context(|| format!("copy {host:?} to {place:?}"))?;
        let mut magic = Vec::new();
        let file = File::open(host).with_context(|| format!("open {host:?}"))?;
        file.take(4)
            .read_to_end(&mut magic)
            .with_context(|| format!("read {host:?}"))?;
        if magic == b"\x7fELF" {
            self.programs.push(host.to_owned());
        }
        Ok(())
    }

    /// Adds the libraries that the files need, at the paths where they are looked for. What a program
    /// opens by itself while it runs (plugins, libgcc_s for thread cancellation) ldd cannot know.
    pub(crate) fn libraries(&mut self) -> Result<()> {
        let programs = std::mem::take(&mut self.programs);
        // A few hundred at a time: a whole Python fits, the length of a command line is not reached.
        for some in programs.chunks(200) {
            // ldd fails where a file is linked statically; what it prints decides.
            let output = Command::new("ldd")
                .args(some)
                .env("LC_ALL", "C")
                .output()
                .context("run ldd")?;
            for library in parse_ldd(&String::from_utf8_lossy(&output.stdout))? {
                if !self
                    .dir
                    .path()
                    .join(library.strip_prefix("/").unwrap_or(&library))
                    .exists()
                {
                    self.host(&library, &library)?;
                }
            }
        }
        self.programs.clear();
        Ok(())
    }

    /// busybox, and its applets where nothing else has the name.
    pub(crate) fn busybox(&mut self) -> Result<()> {
        let busybox = program::find("busybox")?;
        self.host(&busybox, Path::new("/usr/bin/busybox"))?;
        for applet in program::text(Command::new(&busybox).arg("--list"))?.lines() {
            let link = self.dir.path().join("usr/bin").join(applet);
            if !link.exists() {
                symlink("busybox", &link).with_context(|| format!("link {link:?}"))?;
            }
        }
        Ok(())
    }

    /// Kernel modules `name` or `name parameter=value …` with what they need, ready for insmod:
    /// /vm/modules.list says in which order and with which parameters.
    pub(crate) fn modules(&self, kernel: &Kernel, modules: &[impl AsRef<str>]) -> Result<()> {
        let asked: Vec<(&str, &str)> = modules
            .iter()
            .map(|module| {
                module
                    .as_ref()
                    .split_once(char::is_whitespace)
                    .unwrap_or((module.as_ref(), ""))
            })
            .collect();
        let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
        let mut list = String::new();
        for file in kernel.module_files(&names)? {
            let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let name = name.split(".ko").next().unwrap_or(name).replace('-', "_");
            let parameters = asked
                .iter()
                .find(|(asked, _)| asked.replace('-', "_") == name);
            self.bytes(format!("/vm/modules/{name}.ko"), 0o644, unpacked(&file)?)?;
            list.push_str(&format!(
                "{name} {}\n",
                parameters.map_or("", |(_, parameters)| parameters)
            ));
        }
        self.bytes("/vm/modules.list", 0o644, list)
    }

    /// How much memory the files take in the guest.
    pub(crate) fn size_bytes(&self) -> Result<u64> {
        let size = program::text(
            Command::new("du")
                .args(["-s", "--apparent-size", "-B1"])
                .arg(self.dir.path()),
        )?;
        size.split_whitespace()
            .next()
            .unwrap_or_default()
            .parse()
            .context("read what du says")
    }

    /// Packs the tree.
    pub(crate) fn pack(self, archive: &Path) -> Result<()> {
        let file = File::create(archive).with_context(|| format!("create {archive:?}"))?;
        let mut find = Command::new("find")
            .args([".", "-mindepth", "1", "-print0"])
            .current_dir(self.dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .context("run find")?;
        let names = find.stdout.take().context("find has no output")?;
        let packed = Command::new("cpio")
            .args(["-o", "-H", "newc", "-0", "--quiet", "-R", "+0:+0"])
            .current_dir(self.dir.path())
            .stdin(names)
            .stdout(file)
            .status()
            .context("run cpio")?;
        ensure!(packed.success() && find.wait()?.success(), "cpio: {packed}");
        Ok(())
    }

    /// Where a guest path is kept, with its parents made and nothing in its place.
    fn place(&self, guest: &Path) -> Result<PathBuf> {
        let mut components = guest.components();
        ensure!(
            components.next() == Some(Component::RootDir),
            "guest path {guest:?} is not absolute"
        );
        let mut place = self.dir.path().to_owned();
        for component in components.as_path().components() {
            match component {
                Component::Normal(name) => place.push(name),
                _ => bail!("guest path {guest:?} must not contain .."),
            }
        }
        match components.next() {
            Some(Component::Normal(top)) if HIDDEN.iter().any(|name| top == OsStr::new(name)) => {
                bail!(
                    "{guest:?} would be hidden: the guest mounts a file system over /{}",
                    top.display()
                )
            }
            Some(_) => {}
            None => bail!("guest path {guest:?} is the root itself"),
        }
        // A link in what was brought must not lead to this machine's own files.
        let root = fs::canonicalize(self.dir.path()).context("find the tree")?;
        let parent = place.parent().unwrap_or(&place);
        let there = parent
            .ancestors()
            .find_map(|ancestor| fs::canonicalize(ancestor).ok());
        let inside = there.is_some_and(|there| there.starts_with(&root));
        ensure!(inside, "{guest:?} leads out of the guest by a link");
        create_dir(parent)?;
        match fs::symlink_metadata(&place) {
            Ok(meta) if meta.is_dir() => bail!("{guest:?} is a directory in the guest"),
            Ok(_) => fs::remove_file(&place).with_context(|| format!("replace {place:?}"))?,
            Err(_) => {}
        }
        Ok(place)
    }
}

/// A directory that goes when it is dropped. What runs that were killed with SIGKILL left goes now.
pub(crate) fn scratch_dir() -> Result<tempfile::TempDir> {
    const PREFIX: &str = "bursar-vm-";
    for entry in fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        if let Some((pid, _)) = owner
            && pid.bytes().all(|byte| byte.is_ascii_digit())
            && !Path::new("/proc").join(pid).exists()
        {
            // Another run may be removing it too, or it is another user's.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .context("create a directory")
}

/// Whatever our umask is, other users are to see the guest's directories.
fn create_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .with_context(|| format!("create {path:?}"))
}

/// A module as insmod takes it.
fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let unpack = match file.extension().and_then(OsStr::to_str) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(file).with_context(|| format!("read {file:?}")),
    };
    Ok(program::run(Command::new(unpack).arg("-dc").arg(file))?.stdout)
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.starts_with('\t'))
        .map(str::trim)
    {
        let path = match line.split_once(" => ") {
            Some((name, "not found")) => bail!("library {name:?} is not on this machine"),
            Some((_, found)) => found,
            None => line, // the loader, linux-vdso.so.1, or "statically linked"
        };
        let path = path.split(" (0x").next().unwrap_or(path);
        if path.starts_with('/') {
            // Without `..`, as a RUNPATH of `$ORIGIN/../lib` leaves it.
            let mut straight = PathBuf::new();
            for part in Path::new(path).components() {
                match part {
                    Component::ParentDir => drop(straight.pop()),
                    part => straight.push(part),
                }
            }
            libraries.push(straight);
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inside(tree: &Tree, path: &str) -> PathBuf {
        tree.dir.path().join(path)
    }

    #[test]
    fn both_names_of_the_merged_usr_are_one_place() {
        let tree = Tree::new().unwrap();
        tree.bytes("/lib/x.so", 0o755, "old").unwrap();
        tree.bytes("/usr/lib/x.so", 0o755, "new").unwrap();
        assert_eq!(fs::read(inside(&tree, "lib/x.so")).unwrap(), b"new");
    }

    #[test]
    fn paths_that_could_not_be_seen_in_the_guest_are_refused() {
        let tree = Tree::new().unwrap();
        for path in [
            "relative",
            "/",
            "/../etc/passwd",
            "/tmp/x",
            "/dev/shm/x",
            "/run/x",
            "/proc/x",
            "/etc",
            "/usr/bin",
        ] {
            assert!(tree.bytes(path, 0o644, "x").is_err(), "{path}");
        }
    }

    #[test]
    fn a_link_that_was_brought_leads_nowhere_on_this_machine() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "ours").unwrap();
        let brought = tempfile::tempdir().unwrap();
        symlink(outside.path(), brought.path().join("dir")).unwrap();
        symlink(outside.path().join("file"), brought.path().join("file")).unwrap();
        let mut tree = Tree::new().unwrap();
        tree.host(brought.path(), Path::new("/opt")).unwrap();
        assert!(tree.bytes("/opt/dir/file", 0o644, "theirs").is_err());
        assert!(tree.bytes("/opt/dir/new/file", 0o644, "theirs").is_err());
        tree.bytes("/opt/file", 0o644, "theirs").unwrap();
        assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"ours");
        assert!(!outside.path().join("new").exists());
    }

    #[test]
    fn a_file_given_is_not_replaced_by_an_applet() {
        let mut tree = Tree::new().unwrap();
        tree.bytes("/usr/bin/ps", 0o755, "procps").unwrap();
        tree.busybox().unwrap();
        assert_eq!(fs::read(inside(&tree, "bin/ps")).unwrap(), b"procps");
        assert!(
            fs::symlink_metadata(inside(&tree, "bin/ls"))
                .unwrap()
                .is_symlink()
        );
    }

    #[test]
    fn the_archive_holds_the_tree_with_modes_and_roots_owner() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new().unwrap();
        tree.bytes("/init", 0o755, "#!/bin/sh\n").unwrap();
        tree.bytes("/opt/a/b/file", 0o644, "x").unwrap();
        let archive = dir.path().join("archive");
        tree.pack(&archive).unwrap();
        let mut listing = Command::new("cpio");
        listing
            .args(["-itvn", "--quiet"])
            .stdin(File::open(&archive).unwrap());
        let listing = program::text(&mut listing).unwrap();
        let line = |end: &str| listing.lines().find(|line| line.ends_with(end)).unwrap();
        let words: Vec<_> = line(" init").split_whitespace().collect();
        assert_eq!((words[0], words[2], words[3]), ("-rwxr-xr-x", "0", "0"));
        assert!(
            line(" opt/a").starts_with("drwxr-xr-x")
                && line(" opt/a/b/file").starts_with("-rw-r--r--")
        );
        assert!(line(" lib -> usr/lib").starts_with('l'));
    }

    #[test]
    fn ldd_of_several_files_gives_their_libraries_and_the_loader() {
        let text = "\
/usr/bin/a:
\tlinux-vdso.so.1 (0x00007ffd2e5f2000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f2)
\tlibjli.so => /jvm/bin/../lib/libjli.so (0x00007f1)
/usr/bin/b:
\tstatically linked
/usr/bin/c:
\tnot a dynamic executable
";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
            "/jvm/lib/libjli.so",
        ];
        assert_eq!(parse_ldd(text).unwrap(), expected.map(PathBuf::from));
        let error = parse_ldd("\tlibelf.so.1 => not found\n")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "library \"libelf.so.1\" is not on this machine");
    }
}
