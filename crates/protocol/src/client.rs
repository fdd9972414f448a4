// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The asking side, blocking.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_model::Event;

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
        let unreachable = |source| ClientError::Unreachable {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(root_socket(path))
            .or_else(|_| UnixStream::connect(path))
            .map_err(unreachable)?;
        Self::over(stream, path).map_err(unreachable)
    }

    /// Connects to what listens at `path` itself.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect_to(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path);
        stream
            .and_then(|stream| Self::over(stream, path))
            .map_err(|source| ClientError::Unreachable {
                path: path.to_owned(),
                source,
            })
    }

    fn over(stream: UnixStream, path: &Path) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream,
            lines: LineBuffer::new(MAX_REPLY),
            path: path.to_owned(),
        })
    }

    /// The same, with a daemon taken for dead that does not answer within `timeout`, above 0,
    /// instead of half a minute.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn with_timeout(self, timeout: Duration) -> Result<Self, ClientError> {
        let set = self
            .stream
            .set_read_timeout(Some(timeout))
            .and_then(|()| self.stream.set_write_timeout(Some(timeout)));
        set.map_err(|source| self.broken(source))?;
        Ok(self)
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
        let line = line.map_err(|error| match error {
            ClientError::Broken { source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
                self.broken(io::ErrorKind::TimedOut.into())
            }
            error => error,
        })?;
        line.map(|line| serde_json::from_slice(&line).map_err(|error| self.foreign(&error)))
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
            source,
        }
    }

    fn foreign(&self, reason: &dyn std::fmt::Display) -> ClientError {
        ClientError::Foreign {
            path: self.path.clone(),
            reason: reason.to_string(),
        }
    }
}
