// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1 section 4.1: limits, and the killer from user space.

use std::ffi::{c_int, c_uint, c_ulong};

use bursar_model::{BoundsSpec, Bytes, Resource, SizeSpec, Uid, Who};
use bursar_protocol::{LimitChange, Operation, Reply, Terms};

use crate::daemon::{Errno, ask, to_c};

/// Gives a user a limit; see bursar.h.
#[unsafe(no_mangle)]
pub extern "C" fn set_mm_limit(uid: libc::uid_t, mm_max: c_ulong) -> c_int {
    to_c(|| {
        let who = Who::Uid(Uid::new(uid));
        let asked = match mm_max {
            0 => return Err(Errno(libc::EINVAL)),
            c_ulong::MAX => ask(Operation::ClearLimit {
                who,
                force: false,
                terms: Terms::default(),
            }),
            bytes => ask(Operation::SetLimit(LimitChange {
                who,
                memory: BoundsSpec::of_limit(SizeSpec::Bytes(Bytes::new(bytes))),
                force: false,
                terms: Terms::default(),
            })),
        };
        match asked {
            Ok(Reply::Changed { .. }) => Ok(0),
            Ok(_) => Err(Errno(libc::EPROTO)),
            // Nothing to take away.
            Err(Errno(libc::ESRCH)) if mm_max == c_ulong::MAX => Ok(0),
            Err(errno) => Err(errno),
        }
    })
}

/// All limits in force; see bursar.h.
///
/// # Safety
/// Both arrays have room for `max_element` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_mm_limit(
    uid: *mut libc::uid_t,
    mm_max: *mut c_ulong,
    max_element: c_uint,
) -> c_int {
    to_c(|| {
        let Reply::Status(status) = ask(Operation::Status { who: None })? else {
            return Err(Errno(libc::EPROTO));
        };
        let mut limits: Vec<(u32, u64)> = status
            .accounts
            .iter()
            .filter_map(|account| {
                let limit = account.resources.get(&Resource::Memory)?.limit?;
                Some((account.uid?.get(), limit.get()))
            })
            .collect();
        limits.sort_unstable();
        let room = usize::try_from(max_element).unwrap_or(usize::MAX);
        let is_nowhere = room > 0 && (uid.is_null() || mm_max.is_null());
        if limits.len() > room || is_nowhere {
            return Err(Errno(libc::EFAULT));
        }
        for (index, &(user, bytes)) in limits.iter().enumerate() {
            // SAFETY: `index` is below `max_element`, for which the caller made room.
            unsafe { uid.add(index).write(user) };
            // SAFETY: as above.
            unsafe { mm_max.add(index).write(bytes) };
        }
        Ok(c_int::try_from(limits.len()).unwrap_or(c_int::MAX))
    })
}

/// Kills where a limit is passed; see bursar.h.
#[unsafe(no_mangle)]
pub extern "C" fn run_oom_killer() -> c_int {
    to_c(|| match ask(Operation::RunKiller)? {
        Reply::KillerRan { kills } => Ok(c_int::try_from(kills).unwrap_or(c_int::MAX)),
        _ => Err(Errno(libc::EPROTO)),
    })
}
