// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four `grower`s of one user at a time, stopped for looks at what all of them have.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::proc::pids_of;
use crate::signal::send_to_group;
use crate::wait::until;
use crate::world::Binaries;

/// A `grower` that does these steps, separated by `|`, and says on stderr what it was answered.
pub(super) fn grower(binaries: &Binaries, uid: u32, steps: &str) -> Command {
    let mut command = Command::new(binaries.path("grower"));
    command
        .arg(format!("uid={uid}"))
        .args(steps.split('|').map(str::trim))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Whether grower answers so on this processor: asking as a 32-bit program does is x86's.
pub(super) fn is_answered(answer: &&str) -> bool {
    cfg!(target_arch = "x86_64") || !answer.starts_with("compat=")
}

/// Four of them, each the leader of a group of its own. Gone when this is.
#[derive(Debug)]
pub(super) struct Growers {
    uid: u32,
    children: Vec<Child>,
}

/// What all processes of a user have, by /proc, in bytes.
#[derive(Debug, Default)]
pub(super) struct Committed {
    /// VmData + VmStk: only what was asked for.
    pub(super) private: u64,
    /// RssShmem: what was touched. In a guest the text of programs is among it.
    pub(super) shared: u64,
    /// Files in memory that they have open.
    pub(super) files: u64,
    processes: Vec<u32>,
}

impl Growers {
    pub(super) fn start(binaries: &Binaries, uid: u32, steps: &str) -> Result<Self> {
        let mut growers = Self {
            uid,
            children: Vec::new(),
        };
        for _ in 0..4 {
            let mut command = grower(binaries, uid, steps);
            let child = command.stdin(Stdio::piped()).process_group(0).spawn();
            growers.children.push(child.context("start a grower")?);
        }
        Ok(growers)
    }

    /// What they say until each waits.
    pub(super) fn hear_until_wait(&mut self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for child in &mut self.children {
            let heard = BufReader::new(child.stderr.take().context("its answers")?);
            for line in heard.lines() {
                let line = line?;
                if line.starts_with("wait") {
                    break;
                }
                said.push(line);
            }
        }
        Ok(said)
    }

    /// Stops them, and lets them go on whatever the look finds.
    pub(super) fn stopped<T>(&self, look: impl FnOnce(Committed) -> Result<T>) -> Result<T> {
        self.signal(libc::SIGSTOP)?;
        let seen = committed_when_stopped(self.uid).and_then(look);
        self.signal(libc::SIGCONT)?;
        seen
    }

    /// The same again and again, for so long; how often.
    pub(super) fn stopped_for(
        &self,
        length: Duration,
        mut look: impl FnMut(Committed) -> Result<()>,
    ) -> Result<u32> {
        let end = Instant::now() + length;
        let mut looks = 0;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(700));
            self.stopped(&mut look)?;
            looks += 1;
        }
        Ok(looks)
    }

    /// Lets those that wait go on, and waits for the end of all; what they had to say.
    pub(super) fn end(mut self) -> Result<Vec<String>> {
        let mut said = Vec::new();
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        while let Some(child) = self.children.pop() {
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "a grower: {}", output.status);
            said.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(said)
    }

    fn signal(&self, signal: i32) -> Result<()> {
        let mut leaders = self.children.iter().map(Child::id);
        leaders.try_for_each(|leader| send_to_group(leader, signal))
    }
}

impl Drop for Growers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = send_to_group(child.id(), libc::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// None while one of them is not stopped.
fn committed_in_proc(uid: u32) -> Result<Option<Committed>> {
    let mut found = Committed::default();
    for pid in pids_of(uid)? {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|rest| rest.split_whitespace().next().unwrap_or("").to_owned())
        };
        match field("State:").as_deref() {
            Some("T") => found.processes.push(pid),
            Some("Z" | "X") => continue,
            _ => return Ok(None),
        }
        let kib = |name| field(name).map_or(Ok(0), |it| it.parse::<u64>());
        found.private += (kib("VmData:")? + kib("VmStk:")?) << 10;
        found.shared += kib("RssShmem:")? << 10;
    }
    found.files = files_in_proc(&found.processes);
    Ok(Some(found))
}

/// The same when all are seen stopped: who was not there in the first look was made before its parent
/// stopped and after /proc was listed.
fn committed_when_stopped(uid: u32) -> Result<Committed> {
    let mut before = Vec::new();
    until("all growers to stop", || {
        let Some(found) = committed_in_proc(uid)? else {
            return Ok(None);
        };
        let are_all = found.processes == before;
        before.clone_from(&found.processes);
        Ok(are_all.then_some(found))
    })
}

/// What the files in memory hold that these processes have open, in bytes.
fn files_in_proc(pids: &[u32]) -> u64 {
    let descriptors = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd"));
    let is_in_memory = |link: std::path::PathBuf| link.to_string_lossy().starts_with("/memfd:");
    pids.iter()
        .filter_map(|pid| descriptors(pid).ok())
        .flatten()
        .flatten()
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(is_in_memory))
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .map(|file| file.blocks() * 512)
        .sum()
}
