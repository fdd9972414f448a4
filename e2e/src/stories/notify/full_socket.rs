// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everybody may come to the socket of requests, and that takes no place at that of events.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::stage::{Stage, recording_script};
use crate::world::Binaries;

/// As many users as fill all places at the socket of requests, and one more finds none.
const FILL: &str = r#"
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
def come(uid):
    os.seteuid(uid)
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    os.seteuid(0)
    return s
kept = [come(60100 + at // 16) for at in range(4096)]
said = come(60500)
said.settimeout(60)
print(said.recv(4096).decode().strip(), flush=True)
sys.stdin.read()
"#;

struct Connections(Child);

impl Connections {
    /// All of them, and what it was told who came last.
    fn gather(stage: &Stage) -> Result<(Self, String)> {
        let mut command = Command::new("python3");
        command
            .args(["-c", FILL])
            .arg(stage.world.daemon.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut its = Self(command.spawn().context("start python3")?);
        let out = its.0.stdout.take().context("its output")?;
        let mut said = String::new();
        BufReader::new(out).read_line(&mut said)?;
        Ok((its, said))
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn at_the_other_socket(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "crowd")?;
    let tell = stage.script("tell", &recording_script(&stage.at("got"), "told"))?;
    stage.configure(&format!(
        "[[rule]]\nname = \"tell\"\nkinds = [\"limit_changed\"]\nvia = \"exec\"\ncommand = [{tell:?}]\n"
    ))?;
    stage.start_and_follow()?;
    stage.kill()?;
    let (_connections, said) = Connections::gather(&stage)?;
    ensure!(said.contains("too many connections"), "{said}");
    stage.world.daemon.limit("60737", "64M")?;
    stage.start()?;
    let status = stage.settle(stage.newest()?)?;
    ensure!(
        status["rules"]["tell"]["delivered"] == 1 && status["missed"] == 0,
        "{status:#}"
    );
    Ok(())
}
