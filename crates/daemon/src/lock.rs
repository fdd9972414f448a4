// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One bursard for one set of paths.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Held for as long as it lives, also when we are killed: the kernel lets go.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on the directory of runtime files.
    pub(crate) fn on_runtime(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("make the directory {directory:?}"))?;
        let path = directory.join("bursard.lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .with_context(|| format!("open the lock {path:?}"))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let whose = if holder.is_empty() {
                "another process".to_owned()
            } else {
                format!("pid {holder}")
            };
            bail!(
                "a bursard is already running with the runtime directory {directory:?}: {whose} holds \
                 {path:?}; stop it first, or give this one [paths] of its own"
            );
        }
        let rewrite = |file: &mut File| -> io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        rewrite(&mut file).with_context(|| format!("write the lock {path:?}"))?;
        Ok(Self { _file: file })
    }

    /// Takes the lock on the directory of pins: two daemons with different runtime directories would
    /// otherwise govern one kernel half.
    pub(crate) fn on_pins(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("make the directory {directory:?}"))?;
        let file = File::open(directory).with_context(|| format!("open {directory:?}"))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            bail!(
                "a bursard is already running with the pins {directory:?}; stop it first (find it with: \
                 fuser {}), or give this one [paths] of its own",
                directory.display()
            );
        }
        Ok(Self { _file: file })
    }
}
