// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accounts that processes enter and never leave (S5 section 2.1): who is in which. A membership is tied
//! to a task in the kernel (`bpf/lib/membership.bpf.h`); here it is written for who enters, and read.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use bursar_model::AccountId;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, ProgramHandle};

use crate::abi::{self, membership};
use crate::pins::{self, Pins};
use crate::{Error, call, previous};

/// Who is in which account.
#[derive(Debug)]
pub struct Membership {
    map: MapHandle,
    note_entry: ProgramHandle,
}

impl Membership {
    pub(crate) fn open(pins: &Pins) -> Result<Self, Error> {
        Ok(Self {
            map: pins.map("members")?,
            note_entry: pins.program("note_entry")?,
        })
    }

    /// Whether a process may have entered an account of a kernel half below `root`, whoever made that.
    ///
    /// # Errors
    /// When `root` cannot be listed.
    pub fn may_be_any_below(root: &Path) -> Result<bool, Error> {
        Ok(pins::all(root)?.iter().any(previous::may_have_members))
    }

    /// The same for another thread.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn for_reading(&self) -> Result<MembershipReader, Error> {
        MapHandle::try_from(&self.map)
            .map(MembershipReader)
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

    /// Undoes an entry. Children and threads that the process has started since stay in the account.
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
            number: account.number(),
            kind: account.kind(),
        };
        let key = pidfd.as_raw_fd().to_ne_bytes();
        self.map
            .update(&key, abi::bytes_of(&value), MapFlags::ANY)
            .map_err(Error::io("let a process enter an account"))
    }

    /// Memberships of the kernel half that this one replaces stay what they are: their map is ours as well
    /// ([`handed_on`]), and is looked at from now on.
    pub(crate) fn take_over(&self, old: &Pins) -> Result<(), Error> {
        if previous::may_have_members(old) {
            let what = "take over who has entered an account";
            call::run(self.note_entry.as_fd(), what, &mut [])?;
        }
        Ok(())
    }
}

/// The memberships of a kernel half that is to be replaced. Its successor has the same map: a copy would be
/// of processes only, for no pidfd reaches other threads before 6.9, and late for whoever is born meanwhile.
pub(crate) fn handed_on(before: &[Pins]) -> Option<MapHandle> {
    let map = before
        .iter()
        .find(|old| previous::may_have_members(old))?
        .map("members")
        .inspect_err(|error| tracing::warn!(%error, "who has entered an account is in it no more"))
        .ok()?;
    // It has been so in all versions (abi.h struct membership).
    let is_ours = map.map_type() == MapType::TaskStorage
        && map.key_size() as usize == size_of::<i32>()
        && map.value_size() as usize == size_of::<membership>();
    if !is_ours {
        tracing::warn!("who has entered an account is in it no more: it is written down otherwise");
    }
    is_ours.then_some(map)
}

/// Who is in which account, to be read only.
#[derive(Debug)]
pub struct MembershipReader(MapHandle);

impl MembershipReader {
    /// As [`Membership::of`].
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
        .map(|found| match found.kind {
            0 => AccountId::of_former(found.number),
            kind => AccountId::new(u64::from(kind) << 32 | u64::from(found.number)),
        }))
}
