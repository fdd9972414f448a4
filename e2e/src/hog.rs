// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user's program on the stage: the `hog` binary, or any other.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};

use crate::signal::send_to_group;
use crate::wait::until;

/// Somebody is dead who should live.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongDeath(pub(crate) String);

/// A running program. It and all its descendants are killed when it is dropped: they are a process
/// group of their own.
#[derive(Debug)]
pub struct Hog {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    ended: Option<std::process::ExitStatus>,
}

impl Hog {
    /// Starts `hog` with the steps of `script`, separated by blanks (see src/bin/hog.rs).
    pub(crate) fn start(binary: &Path, script: &str) -> Result<Self> {
        let mut command = Command::new(binary);
        command.args(script.split_whitespace());
        Self::spawn(&mut command).with_context(|| format!("start hog {script}"))
    }

    /// Starts any program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("take its stdout")?);
        Ok(Self {
            child,
            input,
            output,
            ended: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that it, or one of its children, says: others of them may have been killed, and
    /// then nobody closes what we read from.
    ///
    /// # Errors
    /// When it is not said in time.
    pub fn hear_within(&mut self, word: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if self.output.buffer().is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                let left = rustix::time::Timespec::try_from(left).context("a time to wait")?;
                let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
                if poll(&mut fds, Some(&left)).context("wait for a program")? == 0 {
                    bail!("nobody said {word:?} within {limit:?}");
                }
            }
            let mut line = String::new();
            let read = self.output.read_line(&mut line);
            if read.context("listen to a program")? == 0 {
                bail!("program {} ended without saying {word:?}", self.pid());
            }
            if line.trim_end() == word {
                return Ok(());
            }
        }
    }

    /// Waits for a line that it says.
    ///
    /// # Errors
    /// When it ends without saying it.
    pub fn hear(&mut self, word: &str) -> Result<()> {
        loop {
            let mut line = String::new();
            if self
                .output
                .read_line(&mut line)
                .context("listen to a program")?
                == 0
            {
                bail!(
                    "program {} ended before it said {word:?}: {:?}",
                    self.pid(),
                    self.end()?
                );
            }
            if line.trim_end() == word {
                return Ok(());
            }
        }
    }

    /// The next line that it says, with its end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn next_line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.context("listen to a program")?;
        Ok(line)
    }

    /// Lets a waiting one go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn go_on(&mut self) -> Result<()> {
        self.say("").context("let a program go on")
    }

    /// Says a line to it.
    ///
    /// # Errors
    /// When it is gone.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("it has no stdin")?;
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .with_context(|| format!("say {line:?} to a program"))
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn is_alive(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().context("look at a program")?;
        }
        Ok(self.ended.is_none())
    }

    /// Waits for its end and returns the signal that ended it, if one did.
    ///
    /// # Errors
    /// When it does not end.
    pub fn end(&mut self) -> Result<Option<i32>> {
        until("a program's end", || Ok((!self.is_alive()?).then_some(())))?;
        Ok(self.ended.and_then(|status| status.signal()))
    }

    /// The code it exited with, once it has.
    pub fn exit_code(&self) -> Option<i32> {
        self.ended.and_then(|status| status.code())
    }

    /// Waits until it was killed.
    ///
    /// # Errors
    /// When it ended otherwise, or not at all.
    pub fn expect_killed(&mut self) -> Result<()> {
        match self.end()? {
            Some(libc::SIGKILL) => Ok(()),
            other => bail!(
                "program {} ended by {other:?} instead of SIGKILL",
                self.pid()
            ),
        }
    }

    /// Waits until it was killed; its peak resident set in bytes, as the kernel tells its parent.
    ///
    /// # Errors
    /// When it ended otherwise.
    pub(crate) fn into_peak_rss(mut self) -> Result<u64> {
        let pid = i32::try_from(self.child.id()).context("its pid")?;
        // SAFETY: plain data that the call fills.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let mut status = 0;
        // SAFETY: our own child, not waited for yet; both pointers are to live locals.
        if unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } != pid {
            bail!("wait for a program: {}", std::io::Error::last_os_error());
        }
        let status = std::process::ExitStatus::from_raw(status);
        self.ended = Some(status);
        if status.signal() != Some(libc::SIGKILL) {
            bail!("a program ended by {status} instead of SIGKILL");
        }
        Ok(u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024)
    }

    /// Says what is wrong unless it lives.
    ///
    /// # Errors
    /// When it has ended.
    pub fn expect_alive(&mut self, who: &str) -> Result<()> {
        if self.is_alive()? {
            return Ok(());
        }
        Err(WrongDeath(format!(
            "{who} (pid {}) should live and has ended: {:?}",
            self.pid(),
            self.ended
        ))
        .into())
    }

    /// Kills it and everything it started, and waits.
    ///
    /// # Errors
    /// When the system cannot say whether it ended.
    pub fn finish(&mut self) -> Result<()> {
        // Its group outlives it where it left children.
        let _ = send_to_group(self.child.id(), libc::SIGKILL);
        if self.ended.is_none() {
            self.ended = Some(self.child.wait().context("wait for a program")?);
        }
        Ok(())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
