// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages that a process gave back with madvise(MADV_FREE): they stay resident until somebody needs them. They can be
//! taken at once by process_madvise(MADV_PAGEOUT), which is told of no other page: of those it would write to swap.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use bursar_model::{Bytes, Pid};

use crate::bytes::{kilobytes_of, words};
use crate::pagemap::{PageEntry, Pagemap};
use crate::{HostError, Pidfd, Proc, machine};

/// include/uapi/linux/kernel-page-flags.h
const KPF_ANON: u64 = 12;
const KPF_SWAPBACKED: u64 = 14;
const KPF_ZERO_PAGE: u64 = 24;
/// include/uapi/asm-generic/mman-common.h
const MADV_PAGEOUT: libc::c_int = 21;
/// Ranges handed over in one call (UIO_MAXIOV).
const RANGES: usize = 1024;
/// Pages of one process that are looked at: 64 GiB of 4 KiB. What is beyond stays.
const MOST_PAGES: u64 = 1 << 24;

/// What kind of page each frame is, /proc/kpageflags.
#[derive(Debug)]
pub struct PageFlags(File);

impl PageFlags {
    /// Of this machine.
    ///
    /// # Errors
    /// Where the kernel does not say (CONFIG_PROC_PAGE_MONITOR), or not to us.
    pub fn open(proc: &Proc) -> Result<Self, HostError> {
        let path = proc.path("kpageflags");
        let file = File::open(&path).map_err(|error| HostError::from_io("open", &path, &error))?;
        Ok(Self(file))
    }

    /// Anonymous, and clean without a place in swap: a page given back.
    fn is_given_back(&self, frame: u64) -> bool {
        let flags = self.of(frame);
        flags >> KPF_ANON & 1 == 1 && flags >> KPF_SWAPBACKED & 1 == 0
    }

    /// The zero page, or a part of the huge one: nobody's memory.
    pub fn is_zero_page(&self, frame: u64) -> bool {
        self.of(frame) >> KPF_ZERO_PAGE & 1 == 1
    }

    /// None of a frame that cannot be read.
    fn of(&self, frame: u64) -> u64 {
        let mut flags = [0; 8];
        let is_read = matches!(self.0.read_at(&mut flags, frame.saturating_mul(8)), Ok(8));
        if is_read {
            u64::from_ne_bytes(flags)
        } else {
            0
        }
    }
}

impl Proc {
    /// Has the kernel take what the process that `tid` is a thread of has given back. Returns how much it was asked
    /// for; `None`: it has ended. A page that the process writes to meanwhile is its own again and stays.
    ///
    /// # Errors
    /// When its mappings cannot be read.
    pub fn take_given_back(&self, tid: Pid, flags: &PageFlags) -> Result<Option<Bytes>, HostError> {
        let Some(status) = self.status(tid)? else {
            return Ok(None);
        };
        let Some(pidfd) = Pidfd::open(status.tgid)? else {
            return Ok(None);
        };
        let Some(areas) = self.areas_with_given_back(tid)? else {
            return Ok(None);
        };
        let Some(pagemap) = Pagemap::open(self, tid)? else {
            return Ok(None);
        };
        let page = 1 << machine::page_size().shift();
        let mut ranges = Vec::new();
        let mut left = MOST_PAGES;
        for (start, end) in areas {
            pagemap.visit(start, end, &mut left, |address, entry: PageEntry| {
                if entry
                    .frame()
                    .is_some_and(|frame| flags.is_given_back(frame))
                {
                    add_page(&mut ranges, address, page);
                }
            })?;
        }
        let asked = ranges.chunks(RANGES).map(|some| page_out(&pidfd, some));
        Ok(Some(Bytes::new(asked.sum())))
    }

    /// Its mappings in which there are such pages: start and end.
    fn areas_with_given_back(&self, tid: Pid) -> Result<Option<Vec<(u64, u64)>>, HostError> {
        self.parsed(&format!("{tid}/smaps"), |bytes| {
            let mut areas = Vec::new();
            let mut area = None;
            for line in bytes.split(|&byte| byte == b'\n') {
                if let Some(bounds) = bounds_of(line) {
                    area = Some(bounds);
                } else if line.starts_with(b"LazyFree:") {
                    let given_back = kilobytes_of(line, "LazyFree")?;
                    if given_back.is_some_and(|it| it > Bytes::ZERO) {
                        areas.extend(area.take());
                    }
                }
            }
            Ok(areas)
        })
    }
}

/// Of a mapping's first line.
pub(crate) fn bounds_of(line: &[u8]) -> Option<(u64, u64)> {
    let (start, end) = str::from_utf8(words(line).next()?).ok()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

fn add_page(ranges: &mut Vec<(u64, u64)>, address: u64, page: u64) {
    match ranges.last_mut() {
        Some((_, end)) if *end == address => *end += page,
        _ => ranges.push((address, address + page)),
    }
}

/// Returns how many bytes the kernel has looked at. What it does not take stays: it is looked at again.
fn page_out(pidfd: &Pidfd, ranges: &[(u64, u64)]) -> u64 {
    let ranges: Vec<libc::iovec> = ranges
        .iter()
        .map(|&(start, end)| libc::iovec {
            iov_base: start as *mut libc::c_void,
            iov_len: usize::try_from(end - start).unwrap_or(0),
        })
        .collect();
    let flags: libc::c_uint = 0;
    // SAFETY: the call reads `ranges`, which are addresses of another process; no memory of ours is touched.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_fd().as_raw_fd(),
            ranges.as_ptr(),
            ranges.len(),
            MADV_PAGEOUT,
            flags,
        )
    };
    u64::try_from(done).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let mut ranges = Vec::new();
        for address in [0x1000, 0x2000, 0x4000, 0x5000, 0x6000] {
            add_page(&mut ranges, address, 0x1000);
        }
        assert_eq!(ranges, [(0x1000, 0x3000), (0x4000, 0x7000)]);
    }

    #[test]
    fn only_a_mappings_first_line_has_bounds() {
        let line = b"7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ";
        assert_eq!(bounds_of(line), Some((0x7f00_0000_0000, 0x7f00_0000_2000)));
        assert_eq!(bounds_of(b"LazyFree:             180 kB"), None);
        assert_eq!(bounds_of(b"VmFlags: rd wr mr mw me ac sd"), None);
    }
}
