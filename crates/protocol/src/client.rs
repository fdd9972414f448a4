// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The asking side, blocking.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_model::Event;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::{LineBuffer, MAX_REPLY, Operation, Reply, Request, VERSION};

/// A daemon that does not answer within this is taken for dead.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where only root may connect, beside the socket of everybody: no crowd that presses there is in his way.
pub fn root_socket(everybodys: &Path) -> PathBuf {
    everybodys.with_file_name("root.sock")
}

/// Where whoever is in the group of `events.group` may connect, and hears events and nothing else.
pub fn events_socket(everybodys: &Path) -> PathBuf {
    everybodys.with_file_name("events.sock")
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    lines: LineBuffer,
    path: PathBuf,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error(
        "cannot reach bursard at {path:?}: {source}; is it running? (systemctl status bursard)"
    )]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It went away, or took too long.
    #[error("bursard at {path:?} stopped answering: {source}")]
    Broken {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It speaks another language.
    #[error(
        "bursard at {path:?} answered something else than bursar understands: {reason}; are bursar and bursard of the same version?"
    )]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Client {
    /// Connects to the daemon that listens at `path`; root by [`root_socket`], if that is there.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_within(path, TIMEOUT)
    }

    /// The same, with a daemon taken for dead that does not let us in, or does not answer, within `timeout`, above 0,
    /// instead of half a minute.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect_within(path: &Path, timeout: Duration) -> Result<Self, ClientError> {
        let stream = stream(&root_socket(path), timeout).or_else(|error| match timed_out(&error) {
            // It is the same daemon.
            true => Err(error),
            false => stream(path, timeout),
        });
        Self::over(stream, path)
    }

    /// Connects to what listens at `path` itself.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect_to(path: &Path) -> Result<Self, ClientError> {
        Self::over(stream(path, TIMEOUT), path)
    }

    fn over(stream: io::Result<UnixStream>, path: &Path) -> Result<Self, ClientError> {
        let path = path.to_owned();
        match stream {
            Ok(stream) => Ok(Self {
                stream,
                lines: LineBuffer::new(MAX_REPLY),
                path,
            }),
            Err(source) => Err(ClientError::Unreachable {
                path,
                source: told(source),
            }),
        }
    }

    /// Asks, and leaves the answer to [`Self::next_reply`].
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn send(&mut self, ask: Operation) -> Result<(), ClientError> {
        let line = self.line_of(ask)?;
        self.stream
            .write_all(&line)
            .map_err(|source| self.broken(source))
    }

    /// The next answer to what was sent; waits for it until then, or as long as it takes. `None` when the daemon
    /// closes.
    ///
    /// # Errors
    /// [`ClientError::Broken`], of kind `TimedOut` when there is none by then; [`ClientError::Foreign`].
    pub fn next_reply(&mut self, until: Option<Instant>) -> Result<Option<Reply>, ClientError> {
        let left = until.map(|it| it.saturating_duration_since(Instant::now()));
        let line = if left.is_some_and(|it| it.is_zero()) {
            Err(self.broken(io::ErrorKind::TimedOut.into()))
        } else {
            self.stream
                .set_read_timeout(left)
                .map_err(|source| self.broken(source))?;
            self.read_line()
        };
        line?
            .map(|line| serde_json::from_slice(&line).map_err(|error| self.foreign(&error)))
            .transpose()
    }

    fn line_of(&self, ask: Operation) -> Result<Vec<u8>, ClientError> {
        let request = Request {
            version: VERSION,
            ask,
        };
        let mut line = serde_json::to_vec(&request).map_err(|error| self.foreign(&error))?;
        line.push(b'\n');
        Ok(line)
    }

    /// The connection itself, for who reads its answers without this.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Broken`], [`ClientError::Foreign`].
    pub fn ask(&mut self, ask: Operation) -> Result<Reply, ClientError> {
        let line = self.line_of(ask)?;
        // A daemon that refuses us at the door may have answered and closed before we wrote: its
        // answer is worth more than our EPIPE.
        let sent = self.stream.write_all(&line);
        match (self.read_line(), sent) {
            (Ok(Some(reply)), _) => {
                serde_json::from_slice(&reply).map_err(|error| self.foreign(&error))
            }
            (Err(error), Ok(())) => Err(error),
            (Ok(None), Ok(())) => Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
            (_, Err(source)) => Err(self.broken(source)),
        }
    }

    /// The next event after `follow`; waits as long as it takes. `None` when the daemon closes.
    ///
    /// # Errors
    /// [`ClientError::Broken`], [`ClientError::Foreign`].
    pub fn next_event(&mut self) -> Result<Option<Event>, ClientError> {
        self.stream
            .set_read_timeout(None)
            .map_err(|source| self.broken(source))?;
        let Some(line) = self.read_line()? else {
            return Ok(None);
        };
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| self.foreign(&error))
    }

    fn read_line(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut piece = [0; 16 << 10];
        loop {
            if let Some(line) = self
                .lines
                .next_line()
                .map_err(|error| self.foreign(&error))?
            {
                return Ok(Some(line));
            }
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(count) => self.lines.push(piece.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        ClientError::Broken {
            path: self.path.clone(),
            source: told(source),
        }
    }

    fn foreign(&self, reason: &dyn std::fmt::Display) -> ClientError {
        ClientError::Foreign {
            path: self.path.clone(),
            reason: reason.to_string(),
        }
    }
}

/// Connects. With the time-outs set before: where many wait to be let in, connect(2) waits as a write does.
fn stream(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = UnixStream::from(socket);
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match connect(&stream, &address) {
            Err(Errno::INTR) => {}
            connected => return connected.map(|()| stream).map_err(io::Error::from),
        }
    }
}

/// The kernel says of a time-out that it would have had to wait.
fn timed_out(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn told(error: io::Error) -> io::Error {
    match timed_out(&error) {
        true => io::ErrorKind::TimedOut.into(),
        false => error,
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen};

    use super::*;

    /// Who has let nobody in, and has no room for more who wait.
    fn full(path: &Path) -> (UnixStream, UnixStream) {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&socket, 0).unwrap();
        (UnixStream::from(socket), UnixStream::connect(path).unwrap())
    }

    #[test]
    fn a_daemon_that_lets_nobody_in_is_waited_for_no_longer_than_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bursar.sock");
        let _full = full(&path);
        let begun = Instant::now();
        let error = Client::connect_within(&path, Duration::from_millis(20)).unwrap_err();
        assert!(
            matches!(&error, ClientError::Unreachable { source, .. } if source.kind() == io::ErrorKind::TimedOut),
            "{error}"
        );
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_told_to_take_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bursar.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut client = Client::connect_within(&path, Duration::from_millis(20)).unwrap();
        let error = client.ask(Operation::Quota).unwrap_err();
        assert!(
            matches!(&error, ClientError::Broken { source, .. } if source.kind() == io::ErrorKind::TimedOut),
            "{error}"
        );
    }
}
