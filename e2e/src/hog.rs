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

/// Nothing that goes well takes so long, emulated machines included: a story fails and says what it waited
/// for, where it would wait for ever.
const LONGEST: Duration = Duration::from_secs(120);

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
    /// When it is not said in time, or whoever could say it has ended.
    pub fn hear_within(&mut self, word: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut last = None;
        while let Some(line) = self.line_until(deadline)? {
            if line.trim_end() == word {
                return Ok(());
            }
            if line.is_empty() {
                let pid = self.pid();
                let end = self
                    .end()
                    .map_or_else(|why| format!("{why:#}"), |by| format!("{by:?}"));
                bail!("program {pid} ended before it said {word:?}: {end}");
            }
            last = Some(line.trim_end().to_owned());
        }
        let state = match self.is_alive()? {
            true => "lives".to_owned(),
            false => format!("has ended ({:?})", self.ended),
        };
        bail!(
            "nobody said {word:?} within {limit:?}; program {} {state}, its last words: {last:?}",
            self.pid()
        )
    }

    /// Waits for a line that it says.
    ///
    /// # Errors
    /// When it ends without saying it, or does neither for [`LONGEST`].
    pub fn hear(&mut self, word: &str) -> Result<()> {
        self.hear_within(word, LONGEST)
    }

    /// The next line that it says, with its end; empty where nobody can say anything any more.
    ///
    /// # Errors
    /// When it cannot be read, or does not come for [`LONGEST`].
    pub fn next_line(&mut self) -> Result<String> {
        let line = self.line_until(Instant::now() + LONGEST)?;
        let pid = self.pid();
        line.with_context(|| format!("program {pid} has said nothing for {LONGEST:?}"))
    }

    /// `None`: it does not come in time. Lines are written as a whole.
    fn line_until(&mut self, deadline: Instant) -> Result<Option<String>> {
        if self.output.buffer().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = rustix::time::Timespec::try_from(left).context("a time to wait")?;
            let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            if poll(&mut fds, Some(&left)).context("wait for a program")? == 0 {
                return Ok(None);
            }
        }
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.context("listen to a program")?;
        Ok(Some(line))
    }

    /// Lets a waiting one go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn go_on(&mut self) -> Result<()> {
        self.say("").context("let a program go on")
    }

    /// Kills it and its group, which outlives it where it left children; waits for nobody.
    pub fn kill(&self) {
        let _ = send_to_group(self.child.id(), libc::SIGKILL);
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
        self.kill();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Hog {
        Hog::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn who_never_says_it_is_not_waited_for_for_ever() {
        let mut hog = shell("echo; echo other; sleep 60");
        let why = hog.hear_within("word", Duration::from_millis(500));
        let why = why.unwrap_err().to_string();
        assert!(why.contains("\"word\" within 500ms"), "{why}");
        assert!(
            why.contains("lives") && why.contains("Some(\"other\")"),
            "{why}"
        );
    }

    #[test]
    fn who_ends_before_he_says_it_is_told_with_his_end() {
        for wait in [Hog::hear, |hog: &mut Hog, word: &str| {
            hog.hear_within(word, LONGEST)
        }] {
            let mut hog = shell("echo other; kill -KILL $$");
            let why = wait(&mut hog, "word").unwrap_err().to_string();
            assert!(why.contains("ended before it said \"word\""), "{why}");
            assert!(why.ends_with("Some(9)"), "{why}");
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        let mut hog = shell("echo one; echo two; echo three");
        hog.hear("two").unwrap();
        assert_eq!(hog.next_line().unwrap(), "three\n");
        assert_eq!(hog.next_line().unwrap(), "");
    }
}
