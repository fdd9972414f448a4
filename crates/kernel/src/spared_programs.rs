// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs whose processes go after others, in the kernel half: by what it itself says of their files.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};

use crate::abi::{self, abi_constant, identify_args};
use crate::pins::Pins;
use crate::{Error, call};

const ROOM: usize = abi_constant::SPARED_PROGRAMS.0 as usize;
const WHAT: &str = "say which programs are spared";

/// A program as an administrator names it.
#[derive(Debug, Clone, Copy)]
pub struct ProgramFile<'a> {
    /// Tells its path from others.
    pub number: u64,
    /// Its file, open.
    pub file: BorrowedFd<'a>,
}

/// The table of them.
#[derive(Debug)]
pub(crate) struct SparedPrograms {
    map: MapHandle,
    identify: ProgramHandle,
}

impl SparedPrograms {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            map: pins.map("spared_programs")?,
            identify: pins.program("identify_program")?,
        })
    }

    /// Spares these and no others. Files that an upgrade has replaced are spared as long as their path is named, for
    /// they may be running, and there is room.
    pub(crate) fn put_in_force(&self, programs: &[ProgramFile<'_>]) -> Result<(), Error> {
        let named: BTreeSet<u64> = programs.iter().map(|it| it.number).collect();
        let mut found: Vec<(Vec<u8>, u64)> = Vec::new();
        for program in programs {
            if let Some(key) = self.identify(program.file)? {
                found.push((key, program.number));
            }
        }
        let keys: Vec<Vec<u8>> = self.map.keys().collect();
        let is_crowded = keys.len().saturating_add(found.len()) > ROOM;
        for key in keys {
            let is_new = found.iter().any(|(it, _)| *it == key);
            let number = self.map.lookup(&key, MapFlags::ANY);
            let number = number.map_err(Error::io(WHAT))?;
            let number = number.and_then(|it| Some(u64::from_ne_bytes(it.try_into().ok()?)));
            let is_named = number.is_some_and(|it| named.contains(&it));
            if !is_new && (is_crowded || !is_named) {
                self.map.delete(&key).map_err(Error::io(WHAT))?;
            }
        }
        for (key, number) in found {
            let number = number.to_ne_bytes();
            let written = self.map.update(&key, &number, MapFlags::ANY);
            written.map_err(Error::io(WHAT))?;
        }
        Ok(())
    }

    /// What records say of who runs it; `None`: others than root could change it.
    fn identify(&self, file: BorrowedFd<'_>) -> Result<Option<Vec<u8>>, Error> {
        let mut args = identify_args {
            fd: file.as_raw_fd(),
            ..identify_args::default()
        };
        call::run(self.identify.as_fd(), WHAT, abi::bytes_of_mut(&mut args))?;
        let is_roots = args.program.inode != 0;
        Ok(is_roots.then(|| abi::bytes_of(&args.program).to_vec()))
    }
}
