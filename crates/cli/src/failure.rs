// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends a command early, and its exit code (docs/reference/commands.md).
//!
//! Not `anyhow`: scripts rely on the exit code, so every way to fail has to choose one.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use bursar_protocol::{ClientError, ErrorKind, Refusal};
use signal_hook::consts::SIGPIPE;
use signal_hook::low_level::emulate_default_handler;

use crate::complaint::complain;

/// Why a command ended before its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing is wrong: the answer was given on the way (`--help`).
    Answered,
    /// Nobody reads what is written: the pipe's reader has read enough (`bursar events | head`).
    Unread,
    /// The answer was given, and it is no.
    Answer(Code),
    /// This is wrong.
    Wrong(Code, String),
}

/// The exit codes of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Code {
    Failed = 1,
    Usage = 2,
    NotPermitted = 3,
    Unreachable = 4,
    /// As timeout(1) has it.
    TimedOut = 124,
    /// A command to be run is there and cannot be executed; as env(1), nice(1) and timeout(1) have it.
    NotExecutable = 126,
    /// There is no such command; likewise.
    NoCommand = 127,
}

impl Failure {
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Wrong(Code::Failed, message.into())
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Wrong(Code::Usage, message.into())
    }

    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::Wrong(Code::Unreachable, message.into())
    }

    /// The daemon answered, but something else.
    pub(crate) fn off_topic() -> Self {
        Self::failed(
            "bursard answered another question than was asked; are bursar and bursard of the same \
             version?",
        )
    }

    /// Adds what the caller should know about this failure; silence stays silence.
    pub(crate) fn adding(self, note: impl Display) -> Self {
        match self {
            Self::Wrong(code, message) => Self::Wrong(code, format!("{message}; {note}")),
            quiet => quiet,
        }
    }

    /// Tells it on stderr; the exit code. Where nobody reads the answer it does not return.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Answered => ExitCode::SUCCESS,
            Self::Unread => end_unread(),
            Self::Answer(code) => ExitCode::from(code as u8),
            Self::Wrong(code, message) => {
                complain(&message);
                ExitCode::from(code as u8)
            }
        }
    }
}

/// Ends as other programs do that nobody reads: by SIGPIPE, which Rust's runtime ignores. An exit code of 0 would say that
/// all is done, and of `check` that the files are right.
pub(crate) fn end_unread() -> ExitCode {
    let _ = emulate_default_handler(SIGPIPE);
    // The signal has ended us; a shell would call that so.
    ExitCode::from(141)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Unreachable { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Code::NotPermitted
            }
            ClientError::Unreachable { .. } | ClientError::Broken { .. } => Code::Unreachable,
            ClientError::Foreign { .. } => Code::Failed,
        };
        Self::Wrong(code, error.to_string())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal.kind {
            ErrorKind::BadRequest => Code::Usage,
            ErrorKind::NotPermitted => Code::NotPermitted,
            ErrorKind::NotFound | ErrorKind::Refused | ErrorKind::Failed => Code::Failed,
        };
        Self::Wrong(code, refusal.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(error: ClientError) -> Code {
        match Failure::from(error) {
            Failure::Wrong(code, _) => code,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_socket_that_keeps_us_out_is_not_an_absent_daemon() {
        let path = || "/run/bursar/bursar.sock".into();
        let table = [
            (io::ErrorKind::PermissionDenied, Code::NotPermitted),
            (io::ErrorKind::NotFound, Code::Unreachable),
            (io::ErrorKind::ConnectionRefused, Code::Unreachable),
        ];
        for (kind, expected) in table {
            assert_eq!(
                code(ClientError::Unreachable {
                    path: path(),
                    source: kind.into()
                }),
                expected
            );
        }
        let silent = ClientError::Broken {
            path: path(),
            source: io::ErrorKind::TimedOut.into(),
        };
        assert_eq!(code(silent), Code::Unreachable);
    }

    #[test]
    fn a_note_is_added_to_what_is_wrong_only() {
        assert!(matches!(Failure::Answered.adding("x"), Failure::Answered));
        let Failure::Wrong(_, message) = Failure::failed("a").adding("b") else {
            panic!()
        };
        assert_eq!(message, "a; b");
    }
}
