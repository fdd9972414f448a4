// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who asks, which daemon, and in which form they want the answer.

use std::path::PathBuf;
use std::time::Duration;

use bursar_model::Uid;
use bursar_protocol::{Client, Operation, Reply};
use serde::Serialize;

use crate::arguments::Globals;
use crate::clock::Clock;
use crate::failure::Failure;
use crate::output;
use crate::style::Style;

/// Who asks.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) socket: PathBuf,
    pub(crate) form: Form,
    pub(crate) style: Style,
    pub(crate) clock: Clock,
    pub(crate) role: Role,
    pub(crate) uid: Uid,
}

/// For whom the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    People,
    Json,
}

/// What the caller may do: only for the choice of words, the daemon asks the kernel itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Root,
    User,
}

impl Caller {
    /// The one who started this process.
    pub(crate) fn here(globals: Globals) -> Self {
        let uid = Uid::new(rustix::process::geteuid().as_raw());
        Self {
            socket: globals.socket,
            form: if globals.json {
                Form::Json
            } else {
                Form::People
            },
            style: Style::here(),
            clock: Clock::here(),
            role: if uid.get() == 0 {
                Role::Root
            } else {
                Role::User
            },
            uid,
        }
    }

    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.socket)?)
    }

    /// For who waits no longer than this to be let in, and then for each answer.
    pub(crate) fn connect_within(&self, timeout: Duration) -> Result<Client, Failure> {
        Ok(Client::connect_within(&self.socket, timeout)?)
    }

    /// The daemon's answer; its refusal is a failure.
    pub(crate) fn ask(&self, ask: Operation) -> Result<Reply, Failure> {
        heard(self.connect()?.ask(ask)?)
    }

    /// Says `value` as one line of JSON, or what `people` makes of it.
    pub(crate) fn answer<T: Serialize>(
        &self,
        value: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.form {
            Form::People => output::say(&people(value)),
            Form::Json => output::say(&json(value)?),
        }
    }
}

/// `reply`, unless it is a refusal.
pub(crate) fn heard(reply: Reply) -> Result<Reply, Failure> {
    match reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        reply => Ok(reply),
    }
}

/// `value` as one line.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|error| Failure::failed(format!("cannot write the answer as JSON: {error}")))
}
