// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A terminal with a shell behind it, read as a person reads it: what comes up to the next prompt is what
//! the command printed. The prompt of the guests ends in the status of the last command: `[0]$ `.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::interrupt;

/// A line into a machine.
pub(super) struct Terminal {
    name: String,
    input: Box<dyn Write + Send>,
    output: Receiver<Vec<u8>>,
    /// What came and nobody has looked at.
    unread: Vec<u8>,
    /// Nothing comes any more.
    pub closed: bool,
    /// Ended with us.
    child: Option<Child>,
}

/// What a command came to.
#[derive(Debug)]
pub(super) struct Answer {
    pub text: String,
    /// None where the connection went.
    pub status: Option<u8>,
}

impl Terminal {
    fn new(
        name: &str,
        input: Box<dyn Write + Send>,
        mut from: impl Read + Send + 'static,
        child: Option<Child>,
    ) -> Terminal {
        let (tell, output) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                if tell.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal {
            name: name.to_owned(),
            input,
            output,
            unread: Vec::new(),
            closed: false,
            child,
        }
    }

    pub(super) fn on_socket(name: &str, stream: UnixStream) -> Result<Terminal> {
        let input = Box::new(stream.try_clone().context("share a socket")?);
        Ok(Terminal::new(name, input, stream, None))
    }

    pub(super) fn of_command(name: &str, command: &mut Command) -> Result<Terminal> {
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        let input = child.stdin.take().context("no input")?;
        let output = child.stdout.take().context("no output")?;
        Ok(Terminal::new(name, Box::new(input), output, Some(child)))
    }

    /// Types a line.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        self.type_keys(&format!("{line}\n"))
    }

    /// Types what is not a line, such as Ctrl-C.
    pub(super) fn type_keys(&mut self, keys: &str) -> Result<()> {
        let typed = self
            .input
            .write_all(keys.as_bytes())
            .and_then(|()| self.input.flush());
        typed.with_context(|| format!("{} takes no input any more", self.name))
    }

    /// Types a command and waits for the next prompt.
    pub(super) fn run(&mut self, command: &str, deadline: Instant) -> Result<Answer> {
        self.poll();
        self.forget();
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
                self.forget();
                return Ok(Answer { text, status: None });
            }
            self.wait(deadline, "a prompt")?;
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

    /// What came and nobody has looked at.
    pub(super) fn unread(&mut self) -> String {
        self.poll();
        readable(&self.unread)
    }

    /// As if somebody had looked.
    pub(super) fn forget(&mut self) {
        self.unread.clear();
    }

    /// Takes what has come.
    fn poll(&mut self) {
        while let Ok(bytes) = self.output.try_recv() {
            self.unread.extend(bytes);
        }
    }

    fn wait(&mut self, deadline: Instant, what: &str) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!(
                "{}: no {what} in time; it shows: {}",
                self.name,
                readable(&self.unread)
            );
        }
        ensure!(!interrupt::came(), "interrupted");
        match self
            .output
            .recv_timeout(left.min(Duration::from_millis(200)))
        {
            Ok(bytes) => self.unread.extend(bytes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.closed = true,
        }
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
