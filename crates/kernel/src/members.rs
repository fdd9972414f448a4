// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts that processes enter and never leave (S5 section 2.1): who is in which. A membership is tied
//! to a task in the kernel (`bpf/entered.bpf.h`); here it is written for who enters, and read.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use bursar_model::AccountId;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramHandle};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::abi::{self, membership};
use crate::pins::Pins;
use crate::{Error, call};

/// Memberships are copied until no process is met that was not there before, but not for ever.
const MOST_ROUNDS: usize = 16;

/// Who is in which account.
#[derive(Debug)]
pub struct Members {
    map: MapHandle,
    note_entry: ProgramHandle,
}

impl Members {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            map: pins.map("members")?,
            note_entry: pins.program("note_entry")?,
        })
    }

    /// The same for another thread.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn for_reading(&self) -> Result<MembersReader, Error> {
        MapHandle::try_from(&self.map)
            .map(MembersReader)
            .map_err(Error::io("share who has entered which account"))
    }

    /// The account that the process has entered or was born in.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn of(&self, pidfd: BorrowedFd<'_>) -> Result<Option<AccountId>, Error> {
        look_up(&self.map, pidfd)
    }

    /// Makes a process, and from now on whomever it begets, pay into an account. Nothing takes that
    /// back: the caller has looked whether it is in another one.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::NotFound`] when the process has ended.
    pub fn enter(&self, pidfd: BorrowedFd<'_>, account: AccountId) -> Result<(), Error> {
        self.write(pidfd, account)?;
        call::run(
            self.note_entry.as_fd(),
            "let a process enter an account",
            &mut [],
        )
    }

    /// Takes back an entry that is not to be. Whom the process has begotten since, threads too,
    /// stays in the account.
    ///
    /// # Errors
    /// When the map cannot be written. Who is in no account, or has ended, is none.
    pub fn take_back(&self, pidfd: BorrowedFd<'_>) -> Result<(), Error> {
        let key = pidfd.as_raw_fd().to_ne_bytes();
        match self.map.delete(&key) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                return Err(Error::io("take back that a process entered an account")(
                    error,
                ));
            }
            _ => {}
        }
        call::run(
            self.note_entry.as_fd(),
            "take back that a process entered an account",
            &mut [],
        )
    }

    fn write(&self, pidfd: BorrowedFd<'_>, account: AccountId) -> Result<(), Error> {
        let value = membership {
            account: account.get(),
            pad: 0,
        };
        let key = pidfd.as_raw_fd().to_ne_bytes();
        self.map
            .update(&key, abi::bytes_of(&value), MapFlags::ANY)
            .map_err(Error::io("let a process enter an account"))
    }

    /// Members of the kernel half that this one replaces stay what they are. Children that are born
    /// meanwhile are their parents' children here too, or met by the next round.
    pub(crate) fn take_over(&self, old: &Pins) -> Result<(), Error> {
        let Ok(before) = old.map("members") else {
            return Ok(()); // of a version in which nobody could enter anything
        };
        for _ in 0..MOST_ROUNDS {
            if !self.copy(&before)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether anybody was met whom we did not know.
    fn copy(&self, before: &MapHandle) -> Result<bool, Error> {
        let processes = fs::read_dir("/proc").map_err(|source| Error::Io {
            what: "list processes",
            source,
        })?;
        let mut is_new = false;
        for entry in processes.flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else {
                continue;
            };
            let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue; // it has ended
            };
            let Some(account) = look_up(before, pidfd.as_fd())? else {
                continue;
            };
            if self.of(pidfd.as_fd())?.is_none() {
                self.enter(pidfd.as_fd(), account)?;
                is_new = true;
            }
        }
        Ok(is_new)
    }
}

/// Who is in which account, to be read only.
#[derive(Debug)]
pub struct MembersReader(MapHandle);

impl MembersReader {
    /// As [`Members::of`].
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn of(&self, pidfd: BorrowedFd<'_>) -> Result<Option<AccountId>, Error> {
        look_up(&self.0, pidfd)
    }
}

fn look_up(map: &MapHandle, pidfd: BorrowedFd<'_>) -> Result<Option<AccountId>, Error> {
    let key = pidfd.as_raw_fd().to_ne_bytes();
    // Nothing is found of who has ended, too.
    let found = map
        .lookup(&key, MapFlags::ANY)
        .map_err(Error::io("read who has entered which account"))?;
    Ok(found
        .and_then(|bytes| abi::read::<membership>(&bytes))
        .map(|found| AccountId::new(found.account)))
}
