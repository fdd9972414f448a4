// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bursard, and a bursar-notify that is a user of its own with a group and a directory, as its unit makes it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bursar_protocol::{Client, Operation, Reply, events_socket};

use crate::proc::children_of;
use crate::signal::send;
use crate::wait::{until, within};
use crate::world::{Binaries, World};

pub(super) const ANN: u32 = 60731;
pub(super) const TELLER: u32 = 60732;
/// Users who have names here, too.
pub(super) const MANY: std::ops::Range<u32> = 60100..60300;
/// A group that each Debian has and nobody is in.
pub(super) const GROUP: (&str, u32) = ("nogroup", 65534);

/// bursard, and what bursar-notify has: a user of its own, a group, a directory.
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) binaries: Binaries,
    teller: Option<Child>,
    /// Whether it may make no file in memory that could be executed.
    pub(super) has_noexec_memfds: bool,
}

impl Stage {
    pub(super) fn new(binaries: &Binaries, name: &str) -> Result<Self> {
        let mut world = World::new(
            binaries,
            name,
            &format!("[events]\ngroup = {:?}\n", GROUP.0),
        )?;
        world.let_users_in()?;
        for directory in ["state-of-notify", "got"] {
            let path = world.directory().join(directory);
            fs::create_dir(&path)?;
            chown(&path, Some(TELLER), Some(GROUP.1))?;
        }
        // Names that this machine does not have.
        let mut passwd = fs::read_to_string("/etc/passwd")?;
        passwd.push_str(&format!("ann:x:{ANN}:{ANN}::/:/bin/sh\n"));
        for uid in MANY {
            passwd.push_str(&format!("u{uid}:x:{uid}:{uid}::/:/bin/sh\n"));
        }
        fs::write(world.directory().join("passwd"), passwd)?;
        world.daemon.start()?;
        Ok(Self {
            world,
            binaries: binaries.clone(),
            teller: None,
            has_noexec_memfds: false,
        })
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.world.directory().join(name)
    }

    pub(super) fn script(&self, name: &str, text: &str) -> Result<String> {
        let path = self.at(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path.display().to_string())
    }

    pub(super) fn configure(&self, rules: &str) -> Result<()> {
        let socket = events_socket(&self.world.daemon.socket());
        let state = self.at("state-of-notify");
        let text = format!("socket = {socket:?}\nstate = {state:?}\n{rules}");
        fs::write(self.at("notify.toml"), text).context("write notify.toml")
    }

    /// bursar-notify by its own user, where /etc/passwd has ann.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        let strict = "[ ! -e /proc/sys/vm/memfd_noexec ] || echo 2 >/proc/sys/vm/memfd_noexec; ";
        let strict = match self.has_noexec_memfds {
            true => {
                command.args(["--pid", "--fork"]);
                strict
            }
            false => "",
        };
        let enter = "mount --bind \"$1\" /etc/passwd; shift; exec setpriv --reuid \"$1\" --regid \"$2\" \
                     --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- \"$3\" --config \"$4\" \"${@:5}\"";
        command
            .args(["--mount", "bash", "-euc"])
            .arg(format!("{strict}{enter}"))
            .arg("bash")
            .arg(self.at("passwd"))
            .args([TELLER.to_string(), GROUP.1.to_string()])
            .arg(self.binaries.path("bursar-notify"))
            .arg(self.at("notify.toml"))
            .args(arguments);
        command
    }

    pub(super) fn start(&mut self) -> Result<()> {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.at("notify.log"))?;
        let mut command = self.command(&[]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.teller = Some(command.spawn().context("start bursar-notify")?);
        Ok(())
    }

    /// The same, and it has connected.
    pub(super) fn start_and_follow(&mut self) -> Result<()> {
        self.start()?;
        until("bursar-notify to read events", || {
            Ok(self
                .log()?
                .contains("reading bursard's events")
                .then_some(()))
        })
        .with_context(|| self.log().unwrap_or_default())
    }

    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.at("notify.log"))?)
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(mut teller) = self.teller.take() {
            // Where it is in a number space of its own it is the child of who made that.
            let pid = teller.id();
            let children = match self.has_noexec_memfds {
                true => children_of(pid)?,
                false => Vec::new(),
            };
            for child in children {
                let _ = send(child, libc::SIGKILL);
            }
            teller.kill()?;
            teller.wait()?;
        }
        Ok(())
    }

    pub(super) fn status(&self) -> Result<serde_json::Value> {
        let said = self.command(&["--status"]).output()?;
        ensure!(
            said.status.success(),
            "{}",
            String::from_utf8_lossy(&said.stderr)
        );
        Ok(serde_json::from_slice(&said.stdout)?)
    }

    /// Waits until nothing waits any more and everything is read up to that number.
    pub(super) fn settle(&self, newest: u64) -> Result<serde_json::Value> {
        let mut last = serde_json::Value::Null;
        let settled = within(Duration::from_secs(120), "everything to be told", || {
            last = self.status()?;
            let rules = last["rules"].as_object().context("rules")?;
            let is_done = rules.values().all(|it| it["waiting"] == 0);
            Ok((is_done && last["read_up_to"].as_u64() >= Some(newest)).then(|| last.clone()))
        });
        settled.with_context(|| format!("{last:#}\n{}", self.log().unwrap_or_default()))
    }

    pub(super) fn newest(&self) -> Result<u64> {
        let socket = events_socket(&self.world.daemon.socket());
        match Client::connect_to(&socket)?.ask(Operation::Stream { after: None })? {
            Reply::Stream(page) => Ok(page.newest),
            other => anyhow::bail!("{other:?}"),
        }
    }

    /// What programs have put there.
    pub(super) fn got(&self, beginning: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.at("got"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(beginning) && !name.ends_with(".part") {
                found.push(fs::read_to_string(entry.path())?);
            }
        }
        Ok(found)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A program that keeps its arguments and its stdin.
pub(super) fn recording_script(directory: &std::path::Path, name: &str) -> String {
    let at = directory.join(name).display().to_string();
    format!(
        "#!/bin/sh\n{{ for it; do echo \"argument: $it\"; done; cat; }} >{at}.$$.part && mv {at}.$$.part {at}.$$\n"
    )
}
