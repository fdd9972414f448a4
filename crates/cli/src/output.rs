// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way to stdout. A reader that has read enough (`| head`) is no error.

use std::io::{self, Write};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::failure::Failure;

/// Writes whole text, at once, and adds a newline where one is missing.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let ending = if text.ends_with('\n') { "" } else { "\n" };
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(ending.as_bytes()))
        .and_then(|()| out.flush());
    written.map_err(|error| unwritten(&error))
}

/// Says what the parser answers by itself (`--help`, `--version`), in colour where that suits.
pub(crate) fn say_help(help: &clap::Error) -> Failure {
    match help.print().and_then(|()| io::stdout().flush()) {
        Ok(()) => Failure::Answered,
        Err(error) => unwritten(&error),
    }
}

fn unwritten(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Answered,
        _ => Failure::failed(format!("cannot write the answer: {error}")),
    }
}

/// From now on the program ends when nobody reads its output any more, also while it waits.
///
/// Without this `bursar events --follow | grep -m1 kill` would hang until the event after the one
/// that was looked for: a closed pipe shows only at the next write.
pub(crate) fn end_with_reader() {
    // No thread, no watch: the next write notices as well, only later.
    let _ = thread::Builder::new().name("reader".into()).spawn(|| {
        let stdout = io::stdout();
        let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
        while matches!(poll(&mut watched, None), Err(Errno::INTR)) {}
        if watched
            .iter()
            .any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP))
        {
            std::process::exit(0);
        }
    });
}
