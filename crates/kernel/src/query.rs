// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What libbpf-rs cannot be asked about one program.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{ProgramHandle, libbpf_sys};

/// How often the kernel skipped a program because another ran on the same CPU; 0 before 5.12.
pub(crate) fn skipped_runs(program: &ProgramHandle) -> u64 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is plain data of `length` bytes, which the kernel fills at most.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_fd().as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &mut length,
        )
    };
    if result == 0 {
        info.recursion_misses
    } else {
        0
    }
}
