// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users with names, and Debian's own programs that act for them: su, sudo, cron, at. All of it in mount
//! and pid namespaces of its own, over a copy of what these programs read; the machine's own /etc,
//! spools and runtime directory are never touched, and nothing outlives the program that was started.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::hog::Hog;
use crate::world::Binaries;

/// Throw-away users: nobody on any machine has these numbers.
pub(crate) const ANN: u32 = 60521;
pub(crate) const BEN: u32 = 60522;

/// Who at(1) and its spool belong to on every Debian.
const DAEMON: u32 = 1;

/// Its directories: under the stage's own.
#[derive(Debug)]
pub(crate) struct TestUsers {
    root: PathBuf,
    programs: PathBuf,
}

/// Covers what is the machine's and runs what it is told. `$1`: the users, `$2`: the programs.
const ENTER: &str = r#"
set -eu
home=$1 programs=$2
shift 2
mount --bind "$home/etc" /etc
mount --bind "$home/spool" /var/spool
mount -t tmpfs -o size=4M,mode=755 tmpfs /run
mount -t tmpfs -o size=1M,mode=755 tmpfs /usr/libexec
mkdir /usr/libexec/sudo
mount --bind "$programs/sudo/usr/libexec/sudo" /usr/libexec/sudo
exec "$@"
"#;

impl TestUsers {
    /// Furnishes it in `stage`, which goes with the story.
    pub(crate) fn furnish(binaries: &Binaries, stage: &Path) -> Result<Self> {
        let users = Self {
            root: stage.join("users"),
            programs: binaries.path("programs"),
        };
        for program in ["cron", "at", "sudo"] {
            let place = users.programs.join(program);
            ensure!(
                place.join(".whole").exists(),
                "{place:?} is not there: xtask/unpack {:?} cron at sudo",
                users.programs
            );
        }
        users.write_etc()?;
        users.make_spools()?;
        Ok(users)
    }

    fn write_etc(&self) -> Result<()> {
        let etc = self.root.join("etc");
        for directory in ["pam.d", "cron.d", "security", "sudoers.d"] {
            fs::create_dir_all(etc.join(directory)).context("make a directory of /etc")?;
        }
        let users = format!(
            "root:x:0:0::/:/bin/sh\ndaemon:x:{DAEMON}:{DAEMON}::/:/bin/sh\nann:x:{ANN}:{ANN}::/:/bin/sh\nben:x:{BEN}:{BEN}::/:/bin/sh\n"
        );
        let groups = format!(
            "root:x:0:\ndaemon:x:{DAEMON}:\ncrontab:x:60520:\nann:x:{ANN}:\nben:x:{BEN}:\n"
        );
        // sudo asks for the address of the machine's name.
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy().into_owned();
        let hosts = format!("127.0.0.1 localhost {name}\n");
        let pam = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_permit.so\n";
        let files = [
            ("passwd", users.as_str(), 0o644),
            ("group", &groups, 0o644),
            (
                "shadow",
                "root:*:1::::::\nann:*:1::::::\nben:*:1::::::\n",
                0o600,
            ),
            (
                "nsswitch.conf",
                "passwd: files\ngroup: files\nshadow: files\n",
                0o644,
            ),
            (
                "sudoers",
                "ann ALL=(ALL) NOPASSWD: ALL\nroot ALL=(ALL) NOPASSWD: ALL\n",
                0o440,
            ),
            ("sudo.conf", "", 0o644),
            ("login.defs", "", 0o644),
            ("environment", "", 0o644),
            ("crontab", "", 0o644),
            ("at.deny", "", 0o644),
            ("hosts", &hosts, 0o644),
        ];
        for (name, text, mode) in files {
            write(&etc.join(name), text, mode)?;
        }
        for service in ["su", "su-l", "sudo", "cron", "atd", "other"] {
            write(&etc.join("pam.d").join(service), pam, 0o644)?;
        }
        fs::copy("/etc/ld.so.cache", etc.join("ld.so.cache")).context("copy ld.so.cache")?;
        Ok(())
    }

    fn make_spools(&self) -> Result<()> {
        let cron = self.root.join("spool/cron");
        for (name, owner, mode) in [
            ("crontabs", 0, 0o1730),
            ("atjobs", DAEMON, 0o1770),
            ("atspool", DAEMON, 0o1770),
        ] {
            let place = cron.join(name);
            fs::create_dir_all(&place).context("make a spool")?;
            fs::set_permissions(&place, fs::Permissions::from_mode(mode))
                .context("open a spool")?;
            chown(&place, Some(owner), Some(owner)).context("give a spool away")?;
        }
        let sequence = cron.join("atjobs/.SEQ");
        write(&sequence, "0", 0o600)?;
        chown(&sequence, Some(DAEMON), Some(DAEMON)).context("give a file away")?;
        // The stage's directories are root's alone otherwise, and at is not root.
        for place in [
            &self.root,
            &self.root.join("spool"),
            &cron,
            &self.root.join("etc"),
        ] {
            fs::set_permissions(place, fs::Permissions::from_mode(0o755))
                .context("open a place")?;
        }
        Ok(())
    }

    /// Ann's crontab.
    pub(crate) fn write_crontab(&self, text: &str) -> Result<()> {
        let path = self.root.join("spool/cron/crontabs/ann");
        write(&path, text, 0o600)?;
        chown(&path, Some(ANN), Some(60520)).context("give a crontab away")
    }

    /// One of Debian's programs that are not installed here.
    pub(crate) fn program(&self, package: &str, path: &str) -> String {
        let place = self.programs.join(package).join(path);
        place.display().to_string()
    }

    /// Starts a program in it, as root. With it everything it started ends.
    pub(crate) fn start(&self, program: &[&str]) -> Result<Hog> {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child=KILL"])
            .args(["/bin/sh", "-c", ENTER, "sh"])
            .args([&self.root, &self.programs])
            .args(program)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        Hog::spawn(&mut command)
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {path:?}"))?;
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, permissions).with_context(|| format!("set the mode of {path:?}"))
}
