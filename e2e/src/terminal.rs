// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A user's terminal, which a `hog` sits at with the steps `session terminal=PATH`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::wait::within;

/// What a program may have changed of a terminal: modes of input, output, control, and what is local.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings(String);

/// A pseudo terminal that belongs to a user.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    path: PathBuf,
    /// Without it there is nothing to read between two programs.
    slave: OwnedFd,
    seen: String,
}

impl Terminal {
    /// A user's new one.
    pub(crate) fn of(uid: u32) -> Result<Self> {
        let (mut master, mut slave) = (-1, -1);
        // SAFETY: two integers are written; no name, settings or size are given.
        let done = unsafe {
            libc::openpty(
                &mut master,
                &mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if done != 0 {
            return Err(std::io::Error::last_os_error()).context("make a terminal");
        }
        // SAFETY: openpty has just opened it for us alone.
        let (master, slave) =
            unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        // Programs of the story must not keep it open.
        for end in [&master, &slave] {
            rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
        }
        rustix::io::ioctl_fionbio(&master, true)?;
        let path = fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd()))?;
        std::os::unix::fs::chown(&path, Some(uid), None).context("give a terminal away")?;
        Ok(Self {
            master: master.into(),
            path,
            slave,
            seen: String::new(),
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its end for a program.
    pub(crate) fn open(&self) -> Result<File> {
        let end = self.slave.try_clone().context("another descriptor of it")?;
        Ok(end.into())
    }

    pub(crate) fn settings(&self) -> Result<Settings> {
        let all = tcgetattr(&self.slave).context("a terminal's settings")?;
        let modes = (
            all.input_modes,
            all.output_modes,
            all.control_modes,
            all.local_modes,
        );
        Ok(Settings(format!("{modes:?}")))
    }

    /// Gives it another size.
    pub(crate) fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.master, size).context("a terminal's size")
    }

    /// Presses keys.
    pub(crate) fn types(&mut self, keys: &str) -> Result<()> {
        self.master
            .write_all(keys.as_bytes())
            .context("type at a terminal")
    }

    /// All that has been written to it.
    pub(crate) fn seen(&mut self) -> &str {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.master.read(&mut bytes) {
            let read = bytes.get(..count).unwrap_or_default();
            self.seen.push_str(&String::from_utf8_lossy(read));
        }
        &self.seen
    }

    /// Waits until something has been.
    pub(crate) fn shows(&mut self, text: &str, limit: Duration) -> Result<()> {
        within(limit, &format!("{text:?} on a terminal"), || {
            Ok(self.seen().contains(text).then_some(()))
        })
        .with_context(|| format!("it shows {:?}", self.seen))
    }
}
