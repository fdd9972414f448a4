// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar`, the command line: it asks bursard (or, for `check`, `doctor`, `kill`, `run` and `faults`, this machine)
//! and says what it heard. It decides nothing.
//!
//! - [`arguments`] what can be typed; [`command`] one file for each command: ask, answer, done
//! - [`view`] from an answer to text for people; knows no socket and no clock of its own
//! - [`caller`] who asks, where and in which form; [`style`] what their terminal can show;
//!   [`clock`] and [`since`] their time; [`output`] the one way to stdout
//! - [`report`] what follows from what accounts held over time
//! - [`level_wait`] a level of the caller's account, awaited
//! - [`failure`] everything that ends a command early, and its exit code

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod arguments;
mod caller;
mod clock;
mod command;
mod complaint;
mod failure;
mod launch;
mod level_wait;
mod of_user;
mod output;
mod report;
mod since;
mod style;
mod until;
mod view;
mod whose;

#[cfg(test)]
mod sample;

use std::process::ExitCode;

use crate::arguments::Arguments;
use crate::caller::Caller;

fn main() -> ExitCode {
    let done = Arguments::typed().and_then(|arguments| {
        let caller = Caller::here(arguments.globals);
        arguments.command.run(&caller)
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
