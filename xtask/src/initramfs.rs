// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest starts with: pack.sh lays it out and packs it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::kernel::Kernel;
use crate::program;

/// Files for a guest.
pub(crate) struct Initramfs<'a> {
    pub kernel: &'a Kernel,
    /// Process 1, a script for busybox.
    pub init: &'a str,
    /// Host path, guest path; programs come with their libraries.
    pub files: &'a [(PathBuf, PathBuf)],
    /// Kernel modules, `name` or `name parameter=value …`, with what they need.
    pub modules: &'a [&'a str],
    /// What /vm holds besides: name, contents.
    pub settings: &'a [(&'a str, String)],
}

impl Initramfs<'_> {
    /// Packs it all.
    pub(crate) fn pack(&self, archive: &Path) -> Result<()> {
        let work = scratch_dir()?;
        let vm = work.path().join("vm");
        fs::create_dir(&vm).with_context(|| format!("create {vm:?}"))?;
        let write = |name: &str, text: &str| {
            let path = work.path().join(name);
            fs::write(&path, text).with_context(|| format!("write {path:?}"))
        };
        write("vm/init", self.init)?;
        for (name, text) in self.settings {
            write(&format!("vm/{name}"), text)?;
        }
        let mut list = String::new();
        for (host, guest) in self.files {
            let (host, guest) = (host.display().to_string(), guest.display().to_string());
            ensure!(
                !format!("{host}{guest}").contains(['\n', '\t']),
                "{host:?} has no plain name"
            );
            list.push_str(&format!("{host}\t{guest}\n"));
        }
        write("files", &list)?;
        write("modules", &self.modules()?)?;
        program::run(program::script("pack.sh").arg(work.path()).arg(archive))?;
        Ok(())
    }

    /// The files of all modules with their parameters, in the order in which they go in.
    fn modules(&self) -> Result<String> {
        let mut list = String::new();
        for module in self.modules {
            let (name, parameters) = module.split_once(' ').unwrap_or((module, ""));
            for file in self.kernel.module_files(name)? {
                let base = file.rsplit('/').next().unwrap_or(&file);
                let is_asked = base.split(".ko").next().map(plain) == Some(plain(name));
                if !list.contains(&format!("{file}\t")) {
                    list.push_str(&format!(
                        "{file}\t{}\n",
                        if is_asked { parameters } else { "" }
                    ));
                }
            }
        }
        Ok(list)
    }
}

/// The kernel takes - and _ for one.
fn plain(module: &str) -> String {
    module.replace('-', "_")
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// Runs pack.sh for these files and lists what is in the archive, or what it says against it.
    fn pack(files: &[(&Path, &str)]) -> std::result::Result<String, String> {
        let work = tempfile::tempdir().unwrap();
        let at = |name: &str| work.path().join(name);
        fs::create_dir(at("vm")).unwrap();
        let line = |(host, guest): &(&Path, &str)| format!("{}\t{guest}\n", host.display());
        fs::write(at("files"), files.iter().map(line).collect::<String>()).unwrap();
        fs::write(at("modules"), "").unwrap();
        fs::write(at("vm/init"), "#!/bin/sh\n").unwrap();
        let mut sh = program::script("pack.sh");
        sh.args([work.path(), &at("archive")]);
        program::run(&mut sh).map_err(|error| format!("{error:#}"))?;
        let archive = fs::File::open(at("archive")).unwrap();
        Ok(program::text(
            Command::new("cpio")
                .args(["-itvn", "--quiet"])
                .stdin(archive),
        )
        .unwrap())
    }

    #[test]
    fn an_archive_has_files_with_modes_roots_owner_and_their_libraries() {
        let listing = pack(&[
            (Path::new("/bin/ls"), "/usr/bin/ls"),
            (Path::new("/etc/motd"), "/a/b"),
        ])
        .unwrap();
        let line = |end: &str| listing.lines().find(|line| line.ends_with(end)).unwrap();
        let words: Vec<_> = line(" init").split_whitespace().collect();
        assert_eq!((words[0], words[2], words[3]), ("-rwxr-xr-x", "0", "0"));
        assert!(line(" usr/bin/ls").starts_with("-rwxr-xr-x"));
        assert!(line(" a").starts_with("drwxr-xr-x") && line(" a/b").starts_with("-rw-r--r--"));
        assert!(
            line(" lib -> usr/lib").starts_with('l')
                && line("/libc.so.6").starts_with("-rwxr-xr-x")
        );
    }

    #[test]
    fn paths_that_could_not_be_seen_in_the_guest_are_refused() {
        let motd = Path::new("/etc/motd");
        for path in [
            "relative",
            "/../etc/passwd",
            "/tmp/x",
            "/dev/shm/x",
            "/run/x",
            "/proc/x",
            "/etc",
            "/usr/bin",
        ] {
            assert!(pack(&[(motd, path)]).is_err(), "{path}");
        }
        assert!(
            pack(&[(Path::new("/nonexistent"), "/x")])
                .unwrap_err()
                .contains("/nonexistent is not there")
        );
    }

    #[test]
    fn a_link_that_was_brought_leads_nowhere_on_this_machine() {
        let (outside, brought) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("file"), "ours").unwrap();
        symlink(outside.path(), brought.path().join("dir")).unwrap();
        symlink(outside.path().join("file"), brought.path().join("file")).unwrap();
        let motd = Path::new("/etc/motd");
        for path in ["/opt/dir/file", "/opt/dir/new/file"] {
            let said = pack(&[(brought.path(), "/opt"), (motd, path)]).unwrap_err();
            assert!(said.contains("leads out of the guest"), "{said}");
        }
        pack(&[(brought.path(), "/opt"), (motd, "/opt/file")]).unwrap();
        assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"ours");
        assert!(!outside.path().join("new").exists());
    }
}
