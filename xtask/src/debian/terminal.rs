// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A terminal with a shell behind it, read as a person reads it: what comes up to the next prompt is what
//! the command printed. The prompt of the guests ends in the status of the last command: `[0]$ `.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::interrupt;

/// A line into a machine.
pub(super) struct Terminal {
    name: String,
    stream: UnixStream,
    /// What came and nobody has looked at.
    unread: Vec<u8>,
    /// Nothing comes any more.
    closed: bool,
    /// Ended with us.
    child: Option<Child>,
}

/// What a command came to.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub text: String,
    /// None where the connection went.
    pub status: Option<u8>,
}

impl Terminal {
    pub(super) fn on_socket(name: &str, stream: UnixStream) -> Result<Terminal> {
        let timeout = Some(Duration::from_millis(200));
        stream.set_read_timeout(timeout).context("set a timeout")?;
        Ok(Terminal {
            name: name.to_owned(),
            stream,
            unread: Vec::new(),
            closed: false,
            child: None,
        })
    }

    pub(super) fn of_command(name: &str, command: &mut Command) -> Result<Terminal> {
        let (ours, theirs) = UnixStream::pair().context("make a socket")?;
        let input = theirs.try_clone().context("share a socket")?;
        command
            .stdin(OwnedFd::from(input))
            .stdout(OwnedFd::from(theirs))
            .stderr(Stdio::null());
        let mut terminal = Terminal::on_socket(name, ours)?;
        let child = command.spawn();
        terminal.child = Some(child.with_context(|| format!("start {command:?}"))?);
        // What it has of the socket is the only end from now on.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(terminal)
    }

    /// Types a line.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        self.type_keys(&format!("{line}\n"))
    }

    /// Types what is not a line, such as Ctrl-C.
    pub(super) fn type_keys(&mut self, keys: &str) -> Result<()> {
        let typed = self.stream.write_all(keys.as_bytes());
        typed.with_context(|| format!("{} takes no input any more", self.name))
    }

    /// Types a command and waits for the next prompt.
    pub(super) fn run(&mut self, command: &str, deadline: Instant) -> Result<Answer> {
        self.forget()?;
        self.send(command)?;
        let answer = self.wait_for_prompt(deadline)?;
        // The first line is the command, as the terminal shows it.
        let text = answer
            .text
            .split_once('\n')
            .map_or("", |(_, output)| output)
            .to_owned();
        Ok(Answer { text, ..answer })
    }

    /// What came up to the next prompt, or all where the connection goes first.
    pub(super) fn wait_for_prompt(&mut self, deadline: Instant) -> Result<Answer> {
        loop {
            let text = readable(&self.unread);
            if let Some((at, end, status)) = prompt(&text) {
                self.unread = text.as_bytes()[end..].to_vec();
                return Ok(Answer {
                    text: text[..at].to_owned(),
                    status: Some(status),
                });
            }
            if self.closed {
                self.unread.clear();
                return Ok(Answer { text, status: None });
            }
            self.wait(deadline, "prompt")?;
        }
    }

    /// Waits until this has been printed, and forgets what came before it.
    pub(super) fn wait_for(&mut self, what: &str, deadline: Instant) -> Result<()> {
        loop {
            let text = readable(&self.unread);
            if let Some(at) = text.find(what) {
                self.unread = text.as_bytes()[at + what.len()..].to_vec();
                return Ok(());
            }
            ensure!(
                !self.closed,
                "{} was closed instead of showing {what:?}: {text}",
                self.name
            );
            self.wait(deadline, what)?;
        }
    }

    /// As if somebody had looked at what has come.
    pub(super) fn forget(&mut self) -> Result<()> {
        self.stream
            .set_nonblocking(true)
            .context("set up a socket")?;
        while self.read() {}
        self.unread.clear();
        self.stream
            .set_nonblocking(false)
            .context("set up a socket")
    }

    /// Takes some of what comes, and says whether something came.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(count @ 1..) => self.unread.extend(&buffer[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return false;
            }
            Ok(_) | Err(_) => self.closed = true,
        }
        !self.closed
    }

    fn wait(&mut self, deadline: Instant, what: &str) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(
            !left.is_zero(),
            "{}: no {what} in time; it shows: {}",
            self.name,
            readable(&self.unread)
        );
        ensure!(!interrupt::came(), "interrupted");
        self.read();
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The first prompt in this text: where it begins and ends, and which status it shows. A prompt is a line
/// `user@host:directory [status]$ `, with # instead of $ for root.
fn prompt(text: &str) -> Option<(usize, usize, u8)> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        for end in ["]$ ", "]# "] {
            let status = line.split_once(end).and_then(|(before, _)| {
                let (place, status) = before.rsplit_once(" [")?;
                let (user, rest) = place.split_once('@')?;
                (rest.contains(':') && !user.contains(' '))
                    .then_some((before.len(), status.parse().ok()?))
            });
            if let Some((len, status)) = status {
                return Some((start, start + len + end.len(), status));
            }
        }
        start += line.len();
    }
    None
}

/// Text as it would be read: without carriage returns, bells and what moves a cursor.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut readable = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                Some('[') => drop(chars.find(|c| c.is_ascii_alphabetic())),
                Some(']') => drop(chars.find(|&c| c == '\u{7}')),
                _ => {}
            },
            '\n' | '\t' => readable.push(c),
            c if c.is_control() => {}
            c => readable.push(c),
        }
    }
    readable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_found_wherever_it_stands_and_says_the_status() {
        for (text, expected) in [
            ("alice@trixie:~ [0]$ ", Some(("", 0))),
            (
                "out\nroot@trixie:/tmp [130]# bursar: told",
                Some(("out\n", 130)),
            ),
            ("mail to bob@example.org:x [0]$ not", None),
            ("see user@host:x [no]$ ", None),
            ("[0]$ ", None),
            ("alice@trixie:~ [0]$", None),
        ] {
            let found = prompt(text).map(|(at, _, status)| (&text[..at], status));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn what_moves_a_cursor_is_not_read() {
        assert_eq!(
            readable(b"\x1b[?2004ha\x1b[1;31mb\r\n\x1b]0;title\x07c\x07\td"),
            "ab\nc\td"
        );
    }
}
