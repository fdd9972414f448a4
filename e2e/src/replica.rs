// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A replica of this machine's files with a BPF file system of its own: what is installed and removed in it
//! is gone with it, and nothing of the machine itself has changed. Processes, users and the kernel are the
//! machine's. Packages are installed there as they would be here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

use crate::signal::send;
use crate::wait::until;

/// In a mount namespace of its own, which goes with its last process. What is written goes to memory.
const SETUP: &str = r#"
mount -t tmpfs -o mode=755 bursar-e2e "$1"
cd "$1"
mkdir upper work root
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work bursar-e2e root
cd root
for place in proc sys dev; do mount --rbind /$place $place; done
mount -t bpf bursar-e2e sys/fs/bpf
mount -t tmpfs -o mode=755 bursar-e2e run
mount -t tmpfs bursar-e2e tmp
# What a container says of services, and what this machine says of bursar, is not the package's doing.
rm -rf usr/sbin/policy-rc.d etc/bursar var/lib/bursar
exec chroot . sh -c 'touch /run/whole; exec cat'
"#;

/// What the package's scripts ask of systemd, done without one.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>/run/asked
while case $1 in -*) true ;; *) false ;; esac; do shift; done
# Who has ended and is not waited for has no program.
lives() { readlink "/proc/$(cat /run/bursard.pid)/exe" >/dev/null; }
stop() {
	lives && kill "$(cat /run/bursard.pid)"
	while lives; do sleep 0.01; done
}
start() {
	said=$(grep -c '^bursard: ready' /run/log)
	setsid /usr/sbin/bursard </dev/null >/dev/null 2>>/run/log &
	echo $! >/run/bursard.pid
	while [ "$(grep -c '^bursard: ready' /run/log)" = "$said" ]; do
		lives || exit 1
		sleep 0.01
	done
}
touch /run/log /run/bursard.pid
wants=/etc/systemd/system/multi-user.target.wants
case $1 in
preset) mkdir -p $wants && ln -sf "/usr/lib/systemd/system/$2" $wants ;;
is-enabled) [ -L $wants/bursard.service ] && echo enabled ;;
is-active) lives ;;
stop) stop ;;
start) lives || start ;;
restart) stop && start ;;
esac
"#;

/// The replica; what runs in it ends with it.
#[derive(Debug)]
pub(crate) struct Replica {
    /// Its end of file is the replica's end.
    holder: Child,
}

impl Replica {
    /// Made below an empty directory.
    ///
    /// # Errors
    /// When something cannot be mounted.
    pub(crate) fn new(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("make {directory:?}"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-euc", SETUP]);
        command
            .args(["sh".as_ref(), directory.as_os_str()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let mut replica = Self {
            holder: command.spawn().context("run unshare")?,
        };
        until("a replica of the machine", || {
            if let Some(status) = replica.holder.try_wait()? {
                anyhow::bail!("it could not be made: {status}");
            }
            let is_whole = replica.path("/run/whole").exists();
            Ok(is_whole.then_some(()))
        })?;
        Ok(replica)
    }

    /// From outside, what is `inside` there.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.holder.id()))
    }

    /// A program there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--target={}", self.holder.id()))
            .args(["--mount", "--root", "--wd=/", "--", program])
            .stdin(Stdio::null())
            .env("NO_COLOR", "1")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env_remove("JOURNAL_STREAM");
        command
    }

    /// Runs a program there, which has to end well.
    ///
    /// # Errors
    /// When it does not: with all that it said.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self.command(program).args(arguments).output()?;
        ensure!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            text(&output)
        );
        Ok(text(&output))
    }

    /// From now on there is a service manager, which does what is asked of it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn have_services(&self) -> Result<()> {
        fs::create_dir_all(self.path("/run/systemd/system"))?;
        self.program("/usr/bin/systemctl", SYSTEMCTL)
    }

    /// From now on it takes itself for the machine, not for a chroot.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn be_the_machine(&self) -> Result<()> {
        self.program("/usr/bin/ischroot", "#!/bin/sh\nexit 1\n")
    }

    /// Puts a script there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn program(&self, inside: &str, script: &str) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(inside);
        let _ = fs::remove_file(&path);
        fs::write(&path, script).with_context(|| format!("write {path:?}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// What a file there says; empty where there is none.
    pub(crate) fn read(&self, inside: &str) -> String {
        fs::read_to_string(self.path(inside)).unwrap_or_default()
    }

    /// The bursard that the service manager has started; `None` when it does not run.
    pub(crate) fn served(&self) -> Option<u32> {
        let pid = self.read("/run/bursard.pid").trim().parse().ok()?;
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        // Named from our root; perhaps of the version before.
        let name = program.to_str()?.trim_end_matches(" (deleted)");
        name.ends_with("/usr/sbin/bursard").then_some(pid)
    }

    /// The kernel halves that are pinned there.
    pub(crate) fn halves(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("/sys/fs/bpf/bursar"));
        let names = entries.into_iter().flatten().flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(pid) = self.served() {
            let _ = send(pid, libc::SIGTERM);
            let _ = until("its bursard's end", || {
                Ok(self.served().is_none().then_some(()))
            });
        }
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// All that a program said.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
