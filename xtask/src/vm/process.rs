// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The QEMU process: started so that it ends with us, whatever ends us.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::interrupt;

/// QEMU; it does not outlive this value, nor the thread that made it.
pub(super) struct Qemu(Child);

impl Qemu {
    /// Starts it in a process group of its own, so that a terminal's Ctrl-C reaches us alone and
    /// we end it in order; should we be killed, the kernel kills it (`--pdeathsig`).
    pub(super) fn start(arguments: &[OsString], errors: &Path) -> Result<Qemu> {
        let errors = File::create(errors).with_context(|| format!("create {errors:?}"))?;
        let mut command = command(arguments);
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        Ok(Qemu(command.spawn().context("start qemu-system-x86_64")?))
    }

    /// Starts it on our terminal.
    pub(super) fn start_on_terminal(arguments: &[OsString]) -> Result<Qemu> {
        Ok(Qemu(
            command(arguments)
                .spawn()
                .context("start qemu-system-x86_64")?,
        ))
    }

    /// Waits for its end.
    pub(super) fn wait(mut self) -> Result<ExitStatus> {
        self.0.wait().context("wait for QEMU")
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits for its end, but no longer than this.
    pub(super) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= deadline || interrupt::came() {
                return None;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Fails where it has ended already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(arguments: &[OsString]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
        .args(arguments);
    command
}
