// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way to stdout. Where its reader has read enough (`| head`) the command ends quietly, as by SIGPIPE; what else
//! cannot be written (a full disk) is a failure and is said.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::Errno;

use crate::failure::{Failure, end_unread};

/// /dev/null, by its numbers (Documentation/admin-guide/devices.txt).
const NULL: (u32, u32) = (1, 3);

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
        io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::failed(format!("cannot write the answer: {error}")),
    }
}

/// From now on the program ends when nobody reads its output any more, also while it waits.
///
/// Without this `bursar events --follow | grep -m1 kill` would hang until the event after the one
/// that was looked for: a closed pipe shows only at the next write.
///
/// # Errors
/// Where nobody can ever read it, for standard output is closed.
pub(crate) fn end_with_reader() -> Result<(), Failure> {
    if is_closed(io::stdout()) {
        return Err(unwritten(&Errno::BADF.into()));
    }
    // No thread, no watch: the next write notices as well, only later.
    let _ = thread::Builder::new().name("reader".into()).spawn(|| {
        let stdout = io::stdout();
        let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
        while matches!(poll(&mut watched, None), Err(Errno::INTR)) {}
        if watched
            .iter()
            .any(|fd| fd.revents().intersects(PollFlags::ERR | PollFlags::HUP))
        {
            end_unread();
        }
    });
    Ok(())
}

/// Whether we were started without it. Rust's runtime has opened /dev/null in its place, for reading and writing:
/// by `>/dev/null` it is open for writing only.
fn is_closed(out: impl AsFd) -> bool {
    let is_null = fstat(&out).is_ok_and(|it| {
        FileType::from_raw_mode(it.st_mode) == FileType::CharacterDevice
            && (major(it.st_rdev), minor(it.st_rdev)) == NULL
    });
    is_null && fcntl_getfl(&out).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR)
}
