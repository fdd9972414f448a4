// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conversation with a guest (init.sh is the other end).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::interrupt;
use super::lines::Lines;
use super::process::Qemu;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// The command's standard output.
    Out,
    /// Its standard error.
    Err,
}

/// What the guest tells.
enum Event {
    Line(Stream, Vec<u8>),
    /// A stream ended with the token.
    End,
    Ready,
    Missing(usize),
    Exit(u8),
    /// The conversation does not follow the rules, or a file could not be written.
    Broken(String),
}

/// How the conversation went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// The command ended with this status.
    Exited(u8),
    /// The deadline came first.
    TimedOut,
    /// A signal came first.
    Interrupted,
    /// QEMU ended first.
    Gone(Option<ExitStatus>),
    /// The guest said something it must not say.
    Broken(String),
}

/// What is known when a session is over.
pub(super) struct Ended {
    pub course: Course,
    /// From QEMU's start to the start of the command.
    pub boot: Option<Duration>,
    /// Numbers of the files that the guest does not have.
    pub missing: Vec<usize>,
}

/// Sockets for the guest's ports, listened on before QEMU starts and connects.
pub(super) struct Ports {
    listeners: [UnixListener; 3],
    paths: [(&'static str, PathBuf); 3],
}

impl Ports {
    /// Listens in this directory.
    pub(super) fn listen(dir: &Path) -> Result<Ports> {
        let paths = ["out", "err", "control"].map(|name| (name, dir.join(name)));
        let listen = |path: &Path| -> Result<UnixListener> {
            let listener =
                UnixListener::bind(path).with_context(|| format!("listen on {path:?}"))?;
            listener.set_nonblocking(true).context("set up a socket")?;
            Ok(listener)
        };
        let listeners = [
            listen(&paths[0].1)?,
            listen(&paths[1].1)?,
            listen(&paths[2].1)?,
        ];
        Ok(Ports { listeners, paths })
    }

    /// What to tell QEMU.
    pub(super) fn wiring(&self) -> Vec<(&'static str, PathBuf)> {
        self.paths.to_vec()
    }

    /// Takes QEMU's connections; `None` when it ended before it made them.
    fn accept(&self, qemu: &mut Qemu, deadline: Instant) -> Result<Option<[UnixStream; 3]>> {
        let mut streams = Vec::new();
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false).context("set up a socket")?;
                        streams.push(stream);
                        break;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("accept QEMU's connection"),
                }
                if qemu.ended().is_some() || interrupt::came() {
                    return Ok(None);
                }
                if Instant::now() >= deadline {
                    bail!("QEMU did not connect in time");
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        streams
            .try_into()
            .map(Some)
            .map_err(|_| anyhow!("QEMU made too few connections"))
    }
}

/// Lines on their way to the sink; a guest that prints faster than they are taken has to wait.
const QUEUED: usize = 1024;

/// After its command has ended, a guest has this long to power off by itself.
const POWER_OFF: Duration = Duration::from_secs(10);

/// Follows a guest to its end. `files` are where files 0, 1, … go on the host.
pub(super) fn follow(
    mut qemu: Qemu,
    ports: Ports,
    token: &str,
    files: Vec<PathBuf>,
    deadline: Instant,
    sink: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Ended> {
    let started = Instant::now();
    let mut ended = Ended {
        course: Course::Gone(None),
        boot: None,
        missing: Vec::new(),
    };
    let Some([out, err, control]) = ports.accept(&mut qemu, deadline)? else {
        ended.course = if interrupt::came() {
            Course::Interrupted
        } else {
            Course::Gone(qemu.ended())
        };
        return Ok(ended);
    };
    let mut answer = control.try_clone().context("share a socket")?;
    let (tell, events) = mpsc::sync_channel(QUEUED);
    for (stream, socket) in [(Stream::Out, out), (Stream::Err, err)] {
        let (tell, lines) = (tell.clone(), Lines::until(token));
        thread::spawn(move || read_lines(stream, socket, lines, &tell));
    }
    thread::spawn(move || {
        if let Err(error) = read_control(control, &files, &tell) {
            // Nobody listens any more only when the session is over.
            let _ = tell.send(Event::Broken(format!("{error:#}")));
        }
    });
    ended.course = converse(
        &events,
        deadline,
        &mut ended.boot,
        &mut ended.missing,
        started,
        sink,
    );
    match ended.course {
        Course::Exited(_) => {
            // The guest may be gone already, which is as well.
            let _ = answer.write_all(b"ok\n");
            qemu.wait_until((Instant::now() + POWER_OFF).min(deadline));
        }
        Course::Gone(_) => {
            ended.course = Course::Gone(qemu.wait_until(Instant::now() + Duration::from_secs(1)));
        }
        Course::TimedOut | Course::Interrupted | Course::Broken(_) => {}
    }
    Ok(ended)
}

fn converse(
    events: &Receiver<Event>,
    deadline: Instant,
    boot: &mut Option<Duration>,
    missing: &mut Vec<usize>,
    started: Instant,
    sink: &mut dyn FnMut(Stream, &[u8]),
) -> Course {
    let (mut open_streams, mut exited) = (2, None);
    loop {
        if let (0, Some(status)) = (open_streams, exited) {
            return Course::Exited(status);
        }
        if interrupt::came() {
            return Course::Interrupted;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Course::TimedOut;
        }
        match events.recv_timeout(left.min(Duration::from_millis(100))) {
            Ok(Event::Line(stream, line)) => sink(stream, &line),
            Ok(Event::End) => open_streams -= 1,
            Ok(Event::Ready) => *boot = Some(started.elapsed()),
            Ok(Event::Missing(number)) => missing.push(number),
            Ok(Event::Exit(status)) => exited = Some(status),
            Ok(Event::Broken(why)) => return Course::Broken(why),
            Err(RecvTimeoutError::Timeout) => {}
            // All sockets are closed: QEMU has gone.
            Err(RecvTimeoutError::Disconnected) => return Course::Gone(None),
        }
    }
}

fn read_lines(stream: Stream, mut socket: UnixStream, mut lines: Lines, tell: &SyncSender<Event>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = socket.read(&mut buffer) {
        for line in lines.push(&buffer[..count]) {
            if tell.send(Event::Line(stream, line)).is_err() {
                return;
            }
        }
        if lines.ended() {
            let _ = tell.send(Event::End);
            return;
        }
    }
    if let Some(rest) = lines.take() {
        let _ = tell.send(Event::Line(stream, rest));
    }
}

/// Reads until the exit status or the end of the connection.
fn read_control(socket: UnixStream, files: &[PathBuf], tell: &SyncSender<Event>) -> Result<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = String::new();
        if (&mut reader).take(256).read_line(&mut line).unwrap_or(0) == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let event = match words.as_slice() {
            ["ready", _uptime] => Event::Ready,
            ["missing", number] => Event::Missing(number.parse().context("read a file's number")?),
            ["file", number, size] => {
                let number: usize = number.parse().context("read a file's number")?;
                let size: u64 = size.parse().context("read a file's size")?;
                let path = files
                    .get(number)
                    .ok_or_else(|| anyhow!("the guest sent a file {number}"))?;
                receive(&mut reader, size, path)?;
                continue;
            }
            ["exit", status] => Event::Exit(status.parse().context("read the exit status")?),
            _ => bail!("the guest said {line:?}"),
        };
        let over = matches!(event, Event::Exit(_));
        if tell.send(event).is_err() || over {
            return Ok(());
        }
    }
}

/// A file appears whole or not at all.
fn receive(reader: &mut impl Read, size: u64, path: &Path) -> Result<()> {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    fs::create_dir_all(dir).with_context(|| format!("create {dir:?}"))?;
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(|| format!("create a file in {dir:?}"))?;
    let copied = std::io::copy(&mut reader.take(size), &mut file)
        .with_context(|| format!("write {path:?}"))?;
    if copied != size {
        bail!("the guest sent {copied} of {size} bytes for {path:?}");
    }
    file.persist(path)
        .with_context(|| format!("write {path:?}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &[u8], files: &[PathBuf]) -> (Result<()>, Vec<Event>) {
        let (mut guest, host) = UnixStream::pair().unwrap();
        guest.write_all(text).unwrap();
        drop(guest);
        let (tell, events) = mpsc::sync_channel(QUEUED);
        let result = read_control(host, files, &tell);
        drop(tell);
        (result, events.iter().collect())
    }

    #[test]
    fn files_arrive_whole_whatever_is_in_them() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("dmesg"), dir.path().join("sub/one")];
        let (result, events) = said(
            b"ready 1.5\nfile 1 9\n\0exit 3\n\xffmissing 0\nexit 7\n",
            &files,
        );
        result.unwrap();
        assert_eq!(fs::read(&files[1]).unwrap(), b"\0exit 3\n\xff");
        assert!(matches!(
            events.as_slice(),
            [Event::Ready, Event::Missing(0), Event::Exit(7)]
        ));
    }

    #[test]
    fn a_file_cut_short_is_an_error_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (result, _) = said(b"file 0 100\nonly this", &[dir.path().join("x")]);
        assert!(result.unwrap_err().to_string().contains("9 of 100 bytes"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_guest_that_talks_nonsense_is_not_believed() {
        for text in ["hello\n", "exit 300\n", "file 9 1\nx", "file 0 -1\n"] {
            assert!(
                said(text.as_bytes(), &[PathBuf::from("/nonexistent")])
                    .0
                    .is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_status_counts_only_when_all_output_has_come() {
        let (tell, events) = mpsc::sync_channel(QUEUED);
        for event in [
            Event::Exit(7),
            Event::End,
            Event::Line(Stream::Err, b"late\n".to_vec()),
            Event::End,
        ] {
            tell.send(event).unwrap();
        }
        let (mut seen, mut boot, mut missing) = (Vec::new(), None, Vec::new());
        let deadline = Instant::now() + Duration::from_secs(5);
        let course = converse(
            &events,
            deadline,
            &mut boot,
            &mut missing,
            Instant::now(),
            &mut |_, line| {
                seen.extend_from_slice(line);
            },
        );
        assert_eq!(
            (course, seen.as_slice()),
            (Course::Exited(7), &b"late\n"[..])
        );
    }

    #[test]
    fn a_guest_that_goes_without_a_word_is_gone() {
        let (tell, events) = mpsc::sync_channel::<Event>(QUEUED);
        drop(tell);
        let deadline = Instant::now() + Duration::from_secs(5);
        let course = converse(
            &events,
            deadline,
            &mut None,
            &mut Vec::new(),
            Instant::now(),
            &mut |_, _| {},
        );
        assert_eq!(course, Course::Gone(None));
    }
}
