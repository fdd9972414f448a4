// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One bursard for one set of paths.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use bursar_host::make_directory;
use rustix::fs::{FlockOperation, Gid, Mode, Uid, fchmod, fchown, flock};
use rustix::io::Errno;

/// Mode of the directory of the socket: everybody may connect.
const RUNTIME: u32 = 0o755;
/// Mode of the directory of pins.
const PINS: u32 = 0o700;

/// Another bursard uses these paths. No reason to fall back to another trigger: both would enforce limits.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Held(String);

/// Held for as long as it lives, also when we are killed: the kernel lets go.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on the directory of runtime files.
    pub(crate) fn on_runtime(directory: &Path) -> Result<Self> {
        make_directory(directory, RUNTIME)
            .with_context(|| format!("make the directory {directory:?}"))?;
        let path = directory.join("bursard.lock");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            // Who may open it may lock it: nobody else is to keep bursard from starting.
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&path)
            .with_context(|| format!("open the lock {path:?}"))?;
        fchmod(&file, Mode::from_raw_mode(0o600)).with_context(|| format!("protect {path:?}"))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = holder.trim();
            let whose = if holder.is_empty() {
                "another process".to_owned()
            } else {
                format!("pid {holder}")
            };
            let held = format!(
                "a bursard is already running with the runtime directory {directory:?}: {whose} holds \
                 {path:?}; stop it first, or give this one [paths] of its own"
            );
            return Err(Held(held).into());
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
    /// otherwise control one kernel half.
    pub(crate) fn on_pins(directory: &Path) -> Result<Self> {
        let file = claim(directory)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            let held = format!(
                "a bursard is already running with the pins {directory:?}; stop it first (find it with: \
                 fuser {}), or give this one [paths] of its own",
                directory.display()
            );
            return Err(Held(held).into());
        }
        Ok(Self { _file: file })
    }
}

/// Opens the directory of pins, made if need be, as nobody's but ours. Where everybody may write to
/// the BPF file system (mode 1777) somebody may have made it before us, to own what we pin: it is taken
/// from him, with everything in it that is not ours.
fn claim(directory: &Path) -> Result<File> {
    make_directory(directory, PINS).with_context(|| format!("make the directory {directory:?}"))?;
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY)
        .open(directory)
        .with_context(|| format!("open {directory:?}"))?;
    let us = rustix::process::geteuid();
    let protect = |file: &File| -> Result<()> {
        fchown(file, Some(Uid::from_raw(us.as_raw())), None::<Gid>)?;
        fchmod(file, Mode::from_raw_mode(PINS))?;
        Ok(())
    };
    let owner = file.metadata()?.uid();
    protect(&file).with_context(|| format!("protect the directory {directory:?}"))?;
    if owner == us.as_raw() {
        return Ok(file);
    }
    tracing::warn!(uid = owner, path = %directory.display(), "somebody else had made the directory of pins: taken from him");
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.metadata()?.uid() == us.as_raw() {
            continue;
        }
        let removed = if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.with_context(|| format!("remove {:?}, which is not ours", entry.path()))?;
    }
    Ok(file)
}
