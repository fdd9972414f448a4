// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Another program in the place of the own one in /proc/PID/exe, as checkpoint and restore may put it there: the own
//! one must be mapped no more, so its text is replaced by copies without a file, while it runs.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::ptr;

use crate::fail;

/// include/uapi/linux/prctl.h
const PR_SET_MM: libc::c_int = 35;
const PR_SET_MM_MAP: libc::c_ulong = 14;

/// struct prctl_mm_map
#[repr(C)]
struct Map {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: u64,
    auxv_size: u32,
    exe_fd: u32,
}

pub(crate) fn imitate(step: &str, path: &str) {
    let own = fs::read_link("/proc/self/exe").unwrap_or_else(|why| fail(step, why));
    let own = own.display().to_string();
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_else(|why| fail(step, why));
    for line in maps.lines().filter(|it| it.ends_with(&own)) {
        let (range, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        replace(step, number(from), number(to), rest);
    }
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_else(|why| fail(step, why));
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // proc_pid_stat(5) counts from 1, and has the pid and the name before these.
    let field = |number: usize| -> u64 {
        let text = after.split(' ').nth(number - 3);
        text.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
    };
    let file = File::open(path).unwrap_or_else(|why| fail(step, why));
    // SAFETY: asks for the end of the heap, and changes nothing.
    let brk = unsafe { libc::sbrk(0) } as u64;
    let map = Map {
        start_code: field(26),
        end_code: field(27),
        start_data: field(45),
        end_data: field(46),
        start_brk: field(47),
        brk,
        start_stack: field(28),
        arg_start: field(48),
        arg_end: field(49),
        env_start: field(50),
        env_end: field(51),
        auxv: 0,
        auxv_size: 0,
        exe_fd: file.as_raw_fd().cast_unsigned(),
    };
    // SAFETY: reads a struct of ours.
    let done = unsafe {
        libc::prctl(
            PR_SET_MM,
            PR_SET_MM_MAP,
            &raw const map,
            size_of::<Map>(),
            0,
        )
    };
    if done != 0 {
        fail(step, std::io::Error::last_os_error());
    }
}

/// The same bytes with the same rights at the same place, without a file behind them.
fn replace(step: &str, from: usize, to: usize, rights: &str) {
    let length = to - from;
    let mut protection = 0;
    for (letter, bit) in [
        ('r', libc::PROT_READ),
        ('w', libc::PROT_WRITE),
        ('x', libc::PROT_EXEC),
    ] {
        if rights.chars().take(3).any(|it| it == letter) {
            protection |= bit;
        }
    }
    // SAFETY: a fresh mapping, filled from a mapping of ours, put over it in one step.
    let failed = unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        at == libc::MAP_FAILED || {
            ptr::copy_nonoverlapping(from as *const u8, at.cast(), length);
            libc::mprotect(at, length, protection) != 0
                || libc::mremap(
                    at,
                    length,
                    length,
                    libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                    from as *mut libc::c_void,
                ) == libc::MAP_FAILED
        }
    };
    if failed {
        fail(step, std::io::Error::last_os_error());
    }
}
