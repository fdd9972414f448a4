// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands that see other files than everybody: in a mount namespace of their own.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Has a command run in a mount namespace of its own, in which `mount` has mounted what it is to see.
pub(crate) fn enter_before_exec(
    command: &mut Command,
    mount: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    let enter = move || -> io::Result<()> {
        // SAFETY: unshares what only this process, which has one thread, sees.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        mount()
    };
    // SAFETY: between fork and exec only system calls and reading of memory that is ours.
    unsafe { command.pre_exec(enter) };
}
