// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own events at the place where it counts a fault (mm/memory.c mm_account_fault()):
//! software events, so they exist on every machine, virtual ones included.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{perf_event_attr, perf_event_attr__bindgen_ty_1};

use crate::Error;

// include/uapi/linux/perf_event.h
const TYPE_SOFTWARE: u32 = 1;
const FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Which end of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Event {
    Minor = 5, // PERF_COUNT_SW_PAGE_FAULTS_MIN
    Major = 6, // PERF_COUNT_SW_PAGE_FAULTS_MAJ
}

/// The event on one CPU, for all processes, each of them; off.
pub(crate) fn open(event: Event, cpu: u32) -> Result<OwnedFd, Error> {
    let mut attributes = perf_event_attr {
        type_: TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: event as u64,
        __bindgen_anon_1: perf_event_attr__bindgen_ty_1 { sample_period: 1 },
        ..perf_event_attr::default()
    };
    attributes.set_disabled(1);
    // SAFETY: `attributes` lives during the call and says its own size; the other arguments are
    // plain numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(&attributes),
            -1,
            cpu as libc::c_int,
            -1,
            FLAG_FD_CLOEXEC,
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(Error::last_os("watch the end of faults (perf_event_open)"));
    }
    // SAFETY: a file descriptor that the kernel just gave us and nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets a program see each occurrence from now on; closing the event ends that.
pub(crate) fn begin(event: &OwnedFd, program: BorrowedFd<'_>) -> Result<(), Error> {
    // include/uapi/linux/perf_event.h
    const SET_BPF: libc::c_ulong = 0x4004_2408;
    const ENABLE: libc::c_ulong = 0x2400;
    for (request, argument) in [(SET_BPF, program.as_raw_fd()), (ENABLE, 0)] {
        // SAFETY: both descriptors live; the arguments are a descriptor and no flags.
        if unsafe { libc::ioctl(event.as_raw_fd(), request, argument) } != 0 {
            return Err(Error::last_os("watch the end of faults (perf event)"));
        }
    }
    Ok(())
}

/// How often it has happened.
pub(crate) fn count(event: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match rustix::io::read(event, &mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}
