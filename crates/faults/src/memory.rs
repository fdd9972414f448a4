// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory to be measured: mapped, or allocated page by page as in S3. Given back when dropped.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::ptr::null_mut;

use crate::Error;

/// One private anonymous mapping.
#[derive(Debug)]
pub(crate) struct Region {
    /// What was mapped, which may begin before `start`.
    base: *mut c_void,
    mapped: usize,
    start: *mut u8,
    bytes: usize,
}

/// Whether the kernel may use huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Small,
    Huge,
}

const HUGE: usize = 2 << 20;

impl Region {
    pub(crate) fn map(bytes: usize, kind: PageKind, flags: i32) -> Result<Self, Error> {
        let mapped = bytes + if kind == PageKind::Huge { HUGE } else { 0 };
        // SAFETY: a fresh mapping where the kernel likes.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os(format!("map {bytes} bytes")));
        }
        let gap = match kind {
            PageKind::Small => 0,
            PageKind::Huge => base.addr().next_multiple_of(HUGE) - base.addr(),
        };
        // SAFETY: `gap` is less than HUGE, by which the mapping is longer than `bytes`.
        let start = unsafe { base.cast::<u8>().add(gap) };
        let region = Self {
            base,
            mapped,
            start,
            bytes,
        };
        let advice = match kind {
            PageKind::Small => libc::MADV_NOHUGEPAGE,
            PageKind::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: our own mapping. A kernel without huge pages refuses the advice, which is as well.
        unsafe { libc::madvise(region.start.cast(), bytes, advice) };
        Ok(region)
    }

    pub(crate) fn addresses(&self, page: usize) -> Vec<*mut u8> {
        // SAFETY: inside the mapping.
        (0..self.bytes / page)
            .map(|index| unsafe { self.start.add(index * page) })
            .collect()
    }

    /// Locks `bytes` of it.
    pub(crate) fn lock(&self, bytes: usize) -> Result<(), Error> {
        // SAFETY: our own mapping; `bytes` is no more than it has.
        match unsafe { libc::mlock(self.start.cast(), bytes.min(self.bytes)) } {
            0 => Ok(()),
            _ => Err(Error::last_os(format!("lock {bytes} bytes"))),
        }
    }

    /// How many huge pages it has.
    pub(crate) fn huge_pages(&self) -> Result<u64, Error> {
        let smaps = fs::read("/proc/self/smaps").map_err(Error::io("read /proc/self/smaps"))?;
        // Names of mapped files are any bytes.
        let smaps = String::from_utf8_lossy(&smaps);
        let mut inside = false;
        let mut kib = 0;
        for line in smaps.lines() {
            let range = line
                .split_whitespace()
                .next()
                .and_then(|word| word.split_once('-'));
            let start = range.and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
            if let Some(start) = start {
                inside = start >= self.base.addr() && start < self.base.addr() + self.mapped;
            } else if let Some(rest) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
                let number = rest
                    .split_whitespace()
                    .next()
                    .and_then(|word| word.parse::<u64>().ok());
                kib += number.unwrap_or(0);
            }
        }
        Ok((kib << 10) / HUGE as u64)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: what we mapped; nobody has pointers into it any more.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// S3's way: each page by posix_memalign of its own.
#[derive(Debug)]
pub(crate) struct Blocks(Vec<*mut u8>);

impl Blocks {
    pub(crate) fn allocate(count: usize, page: usize) -> Result<Self, Error> {
        let mut blocks = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let mut block = null_mut();
            // SAFETY: a pointer to a live local; a power of two.
            let errno = unsafe { libc::posix_memalign(&mut block, page, page) };
            if errno != 0 {
                return Err(Error::io("allocate a page")(io::Error::from_raw_os_error(
                    errno,
                )));
            }
            blocks.0.push(block.cast());
        }
        Ok(blocks)
    }

    pub(crate) fn addresses(&self) -> &[*mut u8] {
        &self.0
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for &block in &self.0 {
            // SAFETY: from posix_memalign, not freed before.
            unsafe { libc::free(block.cast()) };
        }
    }
}

/// How many of these pages are resident already (mincore(2)).
pub(crate) fn resident(pages: &[*mut u8], page: usize) -> u64 {
    let count = pages.iter().filter(|address| {
        let mut byte = 0u8;
        // SAFETY: asks only; the pages are mapped, and one byte is written for one page.
        let got = unsafe { libc::mincore(address.cast(), page, &mut byte) };
        got == 0 && byte & 1 == 1
    });
    count.count() as u64
}

/// Writes one byte into the middle of each page, as S3 does.
pub(crate) fn touch(pages: &[*mut u8], page: usize) {
    for address in pages {
        // SAFETY: each is a writable page of ours.
        unsafe { address.add(page / 2).write_volatile(0xff) };
    }
}

/// Has malloc give its free memory back to the kernel.
pub(crate) fn give_back() {
    // SAFETY: a number only.
    unsafe { libc::malloc_trim(0) };
}
