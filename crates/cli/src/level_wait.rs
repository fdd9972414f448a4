// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for a level of the caller's account, also over a restart of bursard.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bursar_model::WatchLevel;
use bursar_protocol::{Client, ClientError, ErrorKind, Operation, Reached, Reply};

use crate::caller::heard;
use crate::failure::Failure;

/// A bursard that is restarted is back within this.
const RESTART: Duration = Duration::from_secs(30);
/// Between two tries to reach it.
const RETRY: Duration = Duration::from_millis(200);

/// One who waits.
#[derive(Debug)]
pub(crate) struct LevelWait {
    socket: PathBuf,
    at: WatchLevel,
    /// Told more than once.
    follow: bool,
    client: Client,
    /// Until then it asks again when it is turned away.
    give_up: Instant,
}

impl LevelWait {
    /// Asks; a refusal comes with the first answer. Where many of a user begin at once some are turned away before
    /// they have asked: they ask again.
    pub(crate) fn begin(socket: PathBuf, at: WatchLevel, follow: bool) -> Result<Self, Failure> {
        let give_up = Instant::now() + RESTART;
        loop {
            match Self::ask(&socket, at, follow) {
                Ok(client) => {
                    return Ok(Self {
                        socket,
                        at,
                        follow,
                        client,
                        give_up,
                    });
                }
                Err(ClientError::Broken { .. }) if Instant::now() < give_up => {
                    thread::sleep(RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn ask(socket: &Path, at: WatchLevel, follow: bool) -> Result<Client, ClientError> {
        let mut client = Client::connect(socket)?;
        client.send(Operation::Wait { at, follow })?;
        Ok(client)
    }

    /// The next time that the account is there; `None` when it is not until then.
    pub(crate) fn next(&mut self, until: Option<Instant>) -> Result<Option<Reached>, Failure> {
        loop {
            match self.client.next_reply(until) {
                Ok(Some(Reply::Refused(refusal)))
                    if refusal.kind == ErrorKind::Failed && Instant::now() < self.give_up =>
                {
                    thread::sleep(RETRY);
                    let give_up = self.give_up;
                    *self = Self::begin(self.socket.clone(), self.at, self.follow)?;
                    self.give_up = give_up;
                    continue;
                }
                Ok(Some(reply)) => match heard(reply)? {
                    Reply::Reached(reached) => return Ok(Some(*reached)),
                    _ => return Err(Failure::off_topic()),
                },
                Ok(None) => {}
                Err(ClientError::Broken { source, .. })
                    if source.kind() == io::ErrorKind::TimedOut =>
                {
                    return Ok(None);
                }
                Err(ClientError::Broken { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if !self.return_to_it(until)? {
                return Ok(None);
            }
        }
    }

    /// bursard has closed the connection: it ended, or is being restarted. `false`: no time is left.
    fn return_to_it(&mut self, until: Option<Instant>) -> Result<bool, Failure> {
        let give_up = Instant::now() + RESTART;
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(false);
            }
            match Self::begin(self.socket.clone(), self.at, self.follow) {
                Ok(fresh) => {
                    *self = fresh;
                    return Ok(true);
                }
                Err(failure) if Instant::now() >= give_up => return Err(failure),
                Err(_) => {
                    let left = until.map(|it| it.saturating_duration_since(Instant::now()));
                    thread::sleep(left.map_or(RETRY, |left| left.min(RETRY)));
                }
            }
        }
    }
}
