// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals to what a story started itself.

use anyhow::{Result, ensure};

/// To one process.
///
/// # Errors
/// When there is no such process.
pub(crate) fn send(pid: u32, signal: i32) -> Result<()> {
    kill(i32::try_from(pid)?, signal)
}

/// To the process group that this one leads.
///
/// # Errors
/// When there is no such group.
pub(crate) fn send_to_group(leader: u32, signal: i32) -> Result<()> {
    kill(-i32::try_from(leader)?, signal)
}

fn kill(whom: i32, signal: i32) -> Result<()> {
    ensure!(
        !(-1..=1).contains(&whom),
        "{whom} is not a process or a group that a story started"
    );
    // SAFETY: takes two numbers. Stories name processes they started and have not waited for.
    let sent = unsafe { libc::kill(whom, signal) };
    ensure!(
        sent == 0,
        "signal {signal} to {whom}: {}",
        std::io::Error::last_os_error()
    );
    Ok(())
}
