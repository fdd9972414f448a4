// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate for files in tmpfs (`bpf/tmpfs/tmpfs_gate.bpf.c`): put up beside the gate, tried as it is, with a child
//! that writes to a file in memory.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::accounts::AccountTable;
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::tmpfs_gate as object;
use crate::{Error, Options, selftest};

/// What decides comes last: the others tell it whose file it is.
const LINKS: [&str; 3] = [
    "link_block_write",
    "link_block_fallocate",
    "link_block_grow",
];
/// What the child of the self-test writes; one page of it may pass.
const TEST_BYTES: usize = 64 << 10;

/// Why growth of files in tmpfs is not refused here; None where it is.
pub(crate) fn put_up(pins: &Pins, options: &Options, accounts: &AccountTable) -> Option<String> {
    if !pins.has_all(LINKS) {
        take_down(pins); // half of one, left by a crash
        if let Err(error) = load(pins, options) {
            take_down(pins);
            return Some(error.to_string());
        }
    }
    match selftest::is_refused_at_barrier(accounts, run_writing_selftest) {
        Ok(true) => None,
        Ok(false) => {
            take_down(pins);
            Some("programs attach and refuse nothing".to_owned())
        }
        Err(error) => Some(format!("it could not be tried: {error}")),
    }
}

pub(crate) fn take_down(pins: &Pins) {
    pins.unlink(LINKS.iter().rev());
}

fn load(pins: &Pins, options: &Options) -> Result<(), Error> {
    let unsupported = Error::unsupported("the gate for files in tmpfs");
    let mut storage = MaybeUninit::uninit();
    let mut open = object::TmpfsGateSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported)?;
    set_knobs!(open, "tmpfs_gate", options, {});
    open.maps
        .grown
        .set_max_entries(options.max_accounts)
        .map_err(Error::io("size a map"))?;
    share_pinned!(open, pins, {
        accounts: "accounts",
        payers: "payers",
        mms: "mms",
        events: "events",
        state_map: "state",
        cpu_offsets: "cpu_offsets",
        members: "members",
        subordinates: "subordinates",
        exempt_cgroups: "exempt_cgroups"
    });
    let skeleton = open.load().map_err(unsupported)?;
    for (program, name) in [
        &skeleton.progs.block_write,
        &skeleton.progs.block_fallocate,
        &skeleton.progs.block_grow,
    ]
    .into_iter()
    .zip(LINKS)
    {
        let mut link = program.attach().map_err(unsupported)?;
        link.pin(pins.path(name))
            .map_err(Error::io("pin the gate for files"))?;
    }
    Ok(())
}

/// Whether it was told that there is no room.
fn run_writing_selftest() -> Result<bool, i32> {
    let block = [0_u8; 4096];
    // SAFETY: a descriptor of our own, written from a buffer of ours; gone with this process.
    unsafe {
        let file = libc::memfd_create(c"bursar".as_ptr(), 0);
        if file < 0 {
            return Err(*libc::__errno_location());
        }
        for _ in 0..TEST_BYTES / block.len() {
            if libc::write(file, block.as_ptr().cast(), block.len()) < 0 {
                return match *libc::__errno_location() {
                    libc::ENOSPC => Ok(true),
                    errno => Err(errno),
                };
            }
        }
    }
    Ok(false)
}
