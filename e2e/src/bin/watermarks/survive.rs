// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real bursard in a guest, acting in a storm that two users make: it names them, it is killed with
//! SIGKILL and its successor puts the originals back, and at its end everything is as it was.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

const SCALE: &str = "/proc/sys/vm/watermark_scale_factor";
/// Who reads, and who starts the bursts.
const READER: u32 = 60600;
const BURSTER: u32 = 60601;

/// The story.
#[derive(Debug, Args)]
pub(crate) struct Survive {
    /// Where bursard and bursar are
    #[arg(long, default_value = "/usr/local/bin")]
    binaries: PathBuf,
    /// Only observe: stalls happen, and are attributed
    #[arg(long)]
    observe: bool,
}

fn scale() -> Result<u32> {
    let text = fs::read_to_string(SCALE).with_context(|| format!("read {SCALE}"))?;
    text.trim().parse().with_context(|| format!("read {SCALE}"))
}

fn until(what: &str, seconds: u64, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        if is_so()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bail!("waited {seconds} s in vain until {what}")
}

impl Survive {
    fn start(&self) -> Result<Child> {
        Command::new(self.binaries.join("bursard"))
            .args(["--config", "/root/bursar.toml"])
            .stdout(Stdio::null())
            .spawn()
            .context("start bursard")
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(self.binaries.join("bursar"))
            .args(words)
            .output()
            .context("start bursar")?;
        ensure!(
            output.status.success(),
            "bursar {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn report(&self) -> Result<serde_json::Value> {
        let text = self.ask(&["watermarks", "status", "--json"])?;
        serde_json::from_str(&text).context("read the report")
    }
}

/// The load of one user: this program again, as that user.
fn load(uid: u32, seconds: u64, readers: u32, bursters: u32) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("load")
        .args(["--seconds", &seconds.to_string()])
        .args(["--readers", &readers.to_string()])
        .args(["--bursters", &bursters.to_string()])
        .stdout(Stdio::null())
        .uid(uid)
        .gid(uid);
    command.spawn().context("start the load")
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(child), signal).context("send a signal")
}

pub(crate) fn run(survive: &Survive) -> Result<()> {
    if std::env::var_os("BURSAR_VM").is_none() {
        bail!("this starves the machine of memory: run it in a guest (cargo xtask vm run)");
    }
    let mode = if survive.observe { "observe" } else { "act" };
    let config = format!("[watermarks]\nmode = \"{mode}\"\n");
    fs::write("/root/bursar.toml", config).context("write bursar.toml")?;
    let _devices: Vec<fs::File> = (0..4)
        .map(|number| {
            let path = format!("/dev/nullb{number}");
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            fs::File::open(path)
        })
        .collect::<std::io::Result<_>>()
        .context("open the null_blk devices")?;
    let original = scale()?;
    let mut daemon = survive.start()?;
    until("bursard answers", 30, || {
        Ok(Path::new("/run/bursar/bursar.sock").exists() && survive.report().is_ok())
    })?;
    let mut storm = [load(READER, 50, 2, 0)?, load(BURSTER, 50, 0, 3)?];
    if survive.observe {
        std::thread::sleep(Duration::from_secs(45));
        println!("{}", survive.ask(&["watermarks", "status"])?);
        println!("{}", survive.ask(&["watermarks", "explain"])?);
        let report = survive.report()?;
        let users = report["users"].as_array().cloned().unwrap_or_default();
        let of = |uid: u32| users.iter().find(|it| it["uid"] == uid).cloned();
        let (reader, burster) = (of(READER), of(BURSTER));
        let measured = report["stalls"]["measured"]["reclaims"]
            .as_u64()
            .unwrap_or(0);
        ensure!(measured > 20, "{measured} stalls in an untouched storm");
        let waited: u64 = [&reader, &burster]
            .iter()
            .filter_map(|it| it.as_ref()?["reclaims"].as_u64())
            .sum();
        ensure!(
            waited * 10 >= measured * 9,
            "{waited} of {measured} stalls were attributed"
        );
        ensure!(scale()? == original, "observing changed the factor");
    } else {
        until("the factor is raised", 40, || Ok(scale()? > original))?;
        let raised = scale()?;
        signal(&daemon, Signal::KILL)?;
        daemon.wait().context("wait for bursard")?;
        ensure!(scale()? >= raised / 2, "nobody put anything back yet");
        println!("killed in the storm at factor {}", scale()?);
        daemon = survive.start()?;
        until("the original is back", 20, || Ok(scale()? == original))?;
        println!("put back by the next start");
        until("the factor is raised again", 60, || Ok(scale()? > original))?;
        println!("{}", survive.ask(&["watermarks", "explain"])?);
    }
    for child in &mut storm {
        child.wait().context("wait for the load")?;
    }
    signal(&daemon, Signal::TERM)?;
    let status = daemon.wait().context("wait for bursard")?;
    ensure!(status.success(), "bursard ended with {status}");
    ensure!(
        scale()? == original,
        "the factor is {} at the end",
        scale()?
    );
    println!("at the end the factor is {original} again");
    Ok(())
}
