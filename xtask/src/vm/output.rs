// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's output, line by line as it comes, up to its end.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::interrupt;
use crate::qemu::Qemu;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The command's standard output.
    Out,
    /// Its standard error.
    Err,
}

/// A command's output, kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its standard output.
    pub out: Vec<u8>,
    /// Its standard error.
    pub err: Vec<u8>,
}

/// A line longer than this is handed on in pieces: memory stays bounded whatever a guest prints.
const LONGEST_LINE: u64 = 64 * 1024;

/// Lines on their way to the sink; a guest that prints faster than they are taken has to wait.
const QUEUED: usize = 1024;

/// After its command has ended, a guest has this long to power off by itself.
const POWER_OFF: Duration = Duration::from_secs(10);

/// What comes from the guest.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Line(Stream, Vec<u8>),
    /// Before the guest was ready QEMU alone speaks.
    Qemu(Vec<u8>),
    Ready,
    Exit(u8),
}

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited(u8),
    TimedOut,
    Interrupted,
    /// QEMU ended before the command did.
    Gone(Option<ExitStatus>),
}

pub(super) struct Followed {
    pub(super) end: End,
    /// From QEMU's start to the start of the command.
    pub(super) boot: Option<Duration>,
}

/// Follows a guest to its end.
pub(super) fn follow(
    mut qemu: Qemu,
    token: &str,
    deadline: Instant,
    qemu_log: &Path,
    sink: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Followed> {
    let (tell, events) = mpsc::sync_channel(QUEUED);
    let out = qemu.0.stdout.take().context("QEMU has no pipe")?;
    let err = qemu.0.stderr.take().context("QEMU has no pipe")?;
    let (tell_err, token_err) = (tell.clone(), token.to_owned());
    thread::spawn(move || read_lines(Stream::Err, err, &token_err, &tell_err));
    let token_out = token.to_owned();
    thread::spawn(move || read_lines(Stream::Out, out, &token_out, &tell));
    let mut log = File::create(qemu_log).with_context(|| format!("create {qemu_log:?}"))?;
    let mut followed = listen(&events, deadline, sink, &mut log)?;
    match followed.end {
        End::Exited(_) => drop(qemu.wait_until((Instant::now() + POWER_OFF).min(deadline))),
        End::Gone(_) => {
            followed.end = End::Gone(qemu.wait_until(Instant::now() + Duration::from_secs(1)))
        }
        End::TimedOut | End::Interrupted => {}
    }
    Ok(followed)
}

fn listen(
    events: &Receiver<Event>,
    deadline: Instant,
    sink: &mut dyn FnMut(Stream, &[u8]),
    log: &mut impl Write,
) -> Result<Followed> {
    let (started, mut boot) = (Instant::now(), None);
    let end = loop {
        if interrupt::came() {
            break End::Interrupted;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break End::TimedOut;
        }
        match events.recv_timeout(left.min(Duration::from_millis(100))) {
            Ok(Event::Line(stream, line)) => sink(stream, &line),
            Ok(Event::Qemu(line)) => log.write_all(&line).context("write qemu.log")?,
            Ok(Event::Ready) => {
                boot.get_or_insert(started.elapsed());
            }
            // The readers of both streams had ended in the guest before it said so; what standard error
            // still holds comes with its end, and QEMU's.
            Ok(Event::Exit(status)) => {
                let until = (Instant::now() + POWER_OFF).min(deadline);
                while let Ok(event) =
                    events.recv_timeout(until.saturating_duration_since(Instant::now()))
                {
                    if let Event::Line(stream, line) = event {
                        sink(stream, &line);
                    }
                }
                break End::Exited(status);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break End::Gone(None),
        }
    };
    Ok(Followed { end, boot })
}

/// Cuts a stream into lines and marks, up to its end.
fn read_lines(stream: Stream, pipe: impl Read, token: &str, tell: &SyncSender<Event>) {
    let mut reader = BufReader::new(pipe);
    let mut ready = false;
    loop {
        let mut line = Vec::new();
        let mut piece = (&mut reader).take(LONGEST_LINE);
        if !matches!(piece.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let mut events = Vec::new();
        let at = line
            .windows(token.len())
            .position(|window| window == token.as_bytes());
        // A mark comes alone on a line, or after an unfinished one.
        let rest = at.map(|at| line.split_off(at));
        if !line.is_empty() {
            events.push(if ready {
                Event::Line(stream, line)
            } else {
                Event::Qemu(line)
            });
        }
        if let Some(mark) = rest {
            let mark = String::from_utf8_lossy(&mark).into_owned();
            match mark.split_whitespace().collect::<Vec<_>>().as_slice() {
                [_, "ready"] => {
                    ready = true;
                    events.push(Event::Ready);
                }
                [_, "exit", status] => events.extend(status.parse().ok().map(Event::Exit)),
                _ => {}
            }
        }
        for event in events {
            if tell.send(event).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &[u8]) -> Vec<Event> {
        let (tell, events) = mpsc::sync_channel(QUEUED);
        read_lines(Stream::Out, text, "TOKEN", &tell);
        drop(tell);
        events.iter().collect()
    }

    #[test]
    fn lines_and_marks_are_told_apart() {
        let line = |text: &str| Event::Line(Stream::Out, text.into());
        assert_eq!(
            events(b"qemu: warning\nTOKEN ready\na\nunfinishedTOKEN exit 7\n"),
            [
                Event::Qemu("qemu: warning\n".into()),
                Event::Ready,
                line("a\n"),
                line("unfinished"),
                Event::Exit(7)
            ]
        );
        // What breaks off is not lost, an endless line comes in pieces.
        assert_eq!(events(b"TOKEN ready\nhalf")[1], line("half"));
        let mut endless = b"TOKEN ready\n".to_vec();
        endless.extend(vec![b'x'; LONGEST_LINE as usize + 1]);
        assert_eq!(events(&endless).len(), 3);
    }

    fn heard(events: Vec<Event>) -> (End, Vec<u8>) {
        let (tell, receiver) = mpsc::sync_channel(QUEUED);
        for event in events {
            tell.send(event).unwrap();
        }
        drop(tell);
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut sink = |_, line: &[u8]| seen.extend_from_slice(line);
        let followed = listen(&receiver, deadline, &mut sink, &mut Vec::new()).unwrap();
        (followed.end, seen)
    }

    #[test]
    fn the_status_counts_when_all_output_has_come() {
        let late = Event::Line(Stream::Err, b"late\n".to_vec());
        assert_eq!(
            heard(vec![Event::Ready, Event::Exit(7), late]),
            (End::Exited(7), b"late\n".to_vec())
        );
        assert_eq!(heard(vec![Event::Ready]), (End::Gone(None), Vec::new()));
    }
}
