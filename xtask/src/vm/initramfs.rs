// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tree of files a guest starts with, and the cpio archive made of it. The archive is not
//! compressed: QEMU copies it into the guest's memory faster than TCG could unpack it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use super::library::{is_elf, libraries_of};

/// Directories that /init mounts something over: what stood there would not be seen.
const HIDDEN: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

/// Debian's merged /usr: a program and its loader find each other by either name.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Files for a guest, by guest path.
pub(super) struct Tree {
    /// Relative to the root; a parent sorts before its children.
    entries: BTreeMap<PathBuf, Entry>,
}

enum Entry {
    Directory,
    Bytes {
        bytes: Vec<u8>,
        mode: u32,
    },
    /// Copied with its mode.
    File(PathBuf),
    Link(PathBuf),
}

impl Tree {
    /// The bare root.
    pub(super) fn new() -> Tree {
        let mut tree = Tree {
            entries: BTreeMap::new(),
        };
        for name in MERGED {
            tree.entries
                .insert(PathBuf::from("usr").join(name), Entry::Directory);
            tree.entries.insert(
                PathBuf::from(name),
                Entry::Link(PathBuf::from("usr").join(name)),
            );
        }
        tree.entries.insert(PathBuf::from("usr"), Entry::Directory);
        for name in HIDDEN.iter().chain(&["root", "etc", "home", "var"]) {
            tree.entries.insert(PathBuf::from(name), Entry::Directory);
        }
        tree
    }

    /// Adds a file with these contents.
    pub(super) fn bytes(
        &mut self,
        path: impl AsRef<Path>,
        mode: u32,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<()> {
        self.insert(
            path.as_ref(),
            Entry::Bytes {
                bytes: bytes.into(),
                mode,
            },
        )
    }

    /// Adds a symbolic link.
    pub(super) fn link(
        &mut self,
        path: impl AsRef<Path>,
        target: impl Into<PathBuf>,
    ) -> Result<()> {
        self.insert(path.as_ref(), Entry::Link(target.into()))
    }

    /// Adds a symbolic link unless something is there already.
    pub(super) fn link_if_free(
        &mut self,
        path: impl AsRef<Path>,
        target: impl Into<PathBuf>,
    ) -> Result<()> {
        if self.entries.contains_key(&place(path.as_ref())?) {
            return Ok(());
        }
        self.link(path, target)
    }

    /// Adds host files, or whole directories, and the libraries of every ELF file among them.
    pub(super) fn host_files(&mut self, files: &[(PathBuf, PathBuf)]) -> Result<()> {
        let mut programs = Vec::new();
        for (host, guest) in files {
            self.host_file(host, guest, &mut programs)?;
        }
        for library in libraries_of(&programs)? {
            self.insert(&library, Entry::File(library.clone()))?;
        }
        Ok(())
    }

    fn host_file(&mut self, host: &Path, guest: &Path, programs: &mut Vec<PathBuf>) -> Result<()> {
        let meta = fs::metadata(host).with_context(|| format!("look at {host:?}"))?;
        if meta.is_dir() {
            self.insert(guest, Entry::Directory)?;
            for entry in fs::read_dir(host).with_context(|| format!("read {host:?}"))? {
                let entry = entry?;
                let (from, to) = (entry.path(), guest.join(entry.file_name()));
                let kind = entry.file_type()?;
                if kind.is_symlink() {
                    let target =
                        fs::read_link(&from).with_context(|| format!("read link {from:?}"))?;
                    self.link(to, target)?;
                } else if kind.is_dir() || kind.is_file() {
                    self.host_file(&from, &to, programs)?;
                }
            }
        } else if meta.is_file() {
            if is_elf(host)? {
                programs.push(host.to_owned());
            }
            self.insert(guest, Entry::File(host.to_owned()))?;
        } else {
            bail!("{host:?} is neither a file nor a directory");
        }
        Ok(())
    }

    fn insert(&mut self, path: &Path, entry: Entry) -> Result<()> {
        let place = place(path)?;
        if let Some(Component::Normal(top)) = place.components().next()
            && HIDDEN.iter().any(|name| top == OsStr::new(name))
        {
            bail!(
                "{path:?} would be hidden: the guest mounts a file system over /{}",
                top.display()
            );
        }
        for parent in place
            .ancestors()
            .skip(1)
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            self.entries
                .entry(parent.to_owned())
                .or_insert(Entry::Directory);
        }
        match (&entry, self.entries.get(&place)) {
            (Entry::Directory, Some(Entry::Directory)) => {}
            (_, Some(Entry::Directory)) => bail!("{path:?} is a directory in the guest"),
            _ => {
                self.entries.insert(place, entry);
            }
        }
        Ok(())
    }

    /// Every path, parents before children: what cpio is told to pack.
    pub(super) fn list(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().map(PathBuf::as_path)
    }

    /// How much memory the files take in the guest.
    pub(super) fn size_bytes(&self) -> Result<u64> {
        let mut sum = 0;
        for entry in self.entries.values() {
            sum += match entry {
                Entry::Bytes { bytes, .. } => bytes.len() as u64,
                Entry::File(host) => fs::metadata(host)
                    .with_context(|| format!("look at {host:?}"))?
                    .len(),
                Entry::Directory | Entry::Link(_) => 0,
            };
        }
        Ok(sum)
    }

    /// Packs the tree into `archive`, by way of copies in `stage`.
    pub(super) fn pack(&self, stage: &Path, archive: &Path) -> Result<()> {
        for (place, entry) in &self.entries {
            let to = stage.join(place);
            match entry {
                // Whatever our umask is, other users are to see the guest's directories.
                Entry::Directory => fs::create_dir_all(&to)
                    .and_then(|()| fs::set_permissions(&to, fs::Permissions::from_mode(0o755))),
                Entry::Bytes { bytes, mode } => fs::write(&to, bytes)
                    .and_then(|()| fs::set_permissions(&to, fs::Permissions::from_mode(*mode))),
                Entry::File(host) => fs::copy(host, &to).map(|_| ()),
                Entry::Link(target) => symlink(target, &to),
            }
            .with_context(|| format!("lay out {to:?}"))?;
        }
        let output = File::create(archive).with_context(|| format!("create {archive:?}"))?;
        let mut cpio = Command::new("cpio")
            .args(["-o", "-H", "newc", "-0", "--quiet", "-R", "+0:+0"])
            .current_dir(stage)
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .context("run cpio")?;
        let mut names = cpio
            .stdin
            .take()
            .ok_or_else(|| anyhow!("cpio has no input"))?;
        for path in self.list() {
            names
                .write_all(path.as_os_str().as_bytes())
                .and_then(|()| names.write_all(b"\0"))
                .context("tell cpio")?;
        }
        drop(names);
        let status = cpio.wait().context("wait for cpio")?;
        if !status.success() {
            bail!("cpio: {status}");
        }
        Ok(())
    }
}

impl Default for Tree {
    fn default() -> Tree {
        Tree::new()
    }
}

/// Where a guest path is kept: without the leading /, through the merged /usr.
fn place(path: &Path) -> Result<PathBuf> {
    let mut place = PathBuf::new();
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        bail!("guest path {path:?} is not absolute");
    }
    for component in components {
        match component {
            Component::Normal(name) => {
                if place.as_os_str().is_empty()
                    && MERGED.iter().any(|merged| name == OsStr::new(merged))
                {
                    place.push("usr");
                }
                place.push(name);
            }
            _ => bail!("guest path {path:?} must not contain .."),
        }
    }
    if place.as_os_str().is_empty() {
        bail!("guest path {path:?} is the root itself");
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(tree: &Tree) -> Vec<String> {
        tree.list().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn parents_are_made_and_listed_before_their_children() {
        let mut tree = Tree::new();
        tree.bytes("/opt/a/b/file", 0o644, "x").unwrap();
        let paths = paths(&tree);
        let at = |path: &str| paths.iter().position(|have| have == path).unwrap();
        assert!(
            at("opt") < at("opt/a")
                && at("opt/a") < at("opt/a/b")
                && at("opt/a/b") < at("opt/a/b/file")
        );
    }

    #[test]
    fn both_names_of_the_merged_usr_are_one_place() {
        let mut tree = Tree::new();
        tree.bytes("/lib/x.so", 0o755, "old").unwrap();
        tree.bytes("/usr/lib/x.so", 0o755, "new").unwrap();
        let paths = paths(&tree);
        assert_eq!(
            paths
                .iter()
                .filter(|path| path.ends_with("x.so"))
                .collect::<Vec<_>>(),
            ["usr/lib/x.so"]
        );
        assert!(paths.contains(&"lib".to_owned()));
    }

    #[test]
    fn paths_that_could_not_be_seen_in_the_guest_are_refused() {
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
            assert!(Tree::new().bytes(path, 0o644, "x").is_err(), "{path}");
        }
    }

    #[test]
    fn a_file_given_is_not_replaced_by_an_applet() {
        let mut tree = Tree::new();
        tree.bytes("/usr/bin/ps", 0o755, "procps").unwrap();
        tree.link_if_free("/bin/ps", "busybox").unwrap();
        tree.link_if_free("/bin/ls", "busybox").unwrap();
        assert!(matches!(
            tree.entries[Path::new("usr/bin/ps")],
            Entry::Bytes { .. }
        ));
        assert!(matches!(
            tree.entries[Path::new("usr/bin/ls")],
            Entry::Link(_)
        ));
    }

    #[test]
    fn the_archive_holds_what_the_list_says_with_modes_and_roots_owner() {
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::new();
        tree.bytes("/init", 0o755, "#!/bin/sh\n").unwrap();
        tree.link("/usr/bin/sh", "busybox").unwrap();
        let (stage, archive) = (dir.path().join("stage"), dir.path().join("archive"));
        fs::create_dir(&stage).unwrap();
        tree.pack(&stage, &archive).unwrap();
        let listing = Command::new("cpio")
            .args(["-itvn", "--quiet"])
            .stdin(File::open(&archive).unwrap())
            .output()
            .unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        assert_eq!(listing.lines().count(), tree.list().count(), "{listing}");
        let init = listing
            .lines()
            .find(|line| line.ends_with(" init"))
            .unwrap();
        assert!(init.starts_with("-rwxr-xr-x"), "{init}");
        assert_eq!(
            init.split_whitespace().skip(2).take(2).collect::<Vec<_>>(),
            ["0", "0"],
            "{init}"
        );
        assert!(listing.contains("usr/bin/sh -> busybox"), "{listing}");
    }
}
