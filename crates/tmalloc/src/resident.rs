// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making granted memory resident at once, and counting what is.
//!
//! A promise is kept by making it true: when malloc returns, the block's pages are there and counted
//! in held, so what was granted can never be the fault that crosses the limit. It also bounds a
//! reservation's life to the call, and commits cost nothing: resident memory needs no promise.

use libc::c_void;

use crate::glibc::Block;

/// Bytes of a page; every architecture with larger ones is touched more often than needed, never less.
pub(crate) const PAGE: usize = 4096;
/// Blocks from here on, if they are fresh mappings, are populated by the kernel in one go.
const WORTH_A_CALL: usize = 64 << 10;
/// madvise(2), Linux 5.14; libc's constant exists on Linux only under its own cfg.
const POPULATE_WRITE: i32 = 23;

/// Makes the part of a block from `from` (bytes) on resident. What is in it before `from` stays.
///
/// # Safety
/// `block` is a live block of at least `length` bytes that nobody else uses yet, with nothing of value
/// beyond `from`, or zeroes there.
pub(crate) unsafe fn make(block: *mut c_void, from: usize, length: usize, known: Block) {
    let start = block.addr();
    // A block of a heap is followed by the header of what comes next, whose page is there too.
    let end = if known.is_mapped {
        start.saturating_add(length)
    } else {
        start.saturating_add(known.usable) & !(PAGE - 1)
    };
    // The first page that begins at or behind `from`: the one before it holds the block's header or
    // what the program wrote, and is there.
    let first = start.saturating_add(from).next_multiple_of(PAGE);
    if first >= end {
        return;
    }
    let at: *mut u8 = block.cast::<u8>().wrapping_add(first - start);
    if known.is_mapped && end - first >= WORTH_A_CALL {
        let whole = (end - first).next_multiple_of(PAGE);
        // SAFETY: pages of a mapping that is the block's own to its end; populating changes nothing.
        if unsafe { libc::madvise(at.cast(), whole, POPULATE_WRITE) } == 0 {
            return;
        }
    }
    for offset in (0..end - first).step_by(PAGE) {
        // SAFETY: below `end`, inside the block; its content there is undefined or zero.
        unsafe { at.add(offset).write_volatile(0) };
    }
}

/// Anonymous memory of this process that is resident, bytes; `None` where /proc is not to be had.
///
/// Opened anew each time (2 µs): a descriptor kept open would be closed or renumbered by programs that
/// close what they did not open.
pub(crate) fn anonymous() -> Option<usize> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string literal.
    let fd = unsafe { libc::open(c"/proc/self/statm".as_ptr(), flags) };
    if fd < 0 {
        return None;
    }
    let mut text = [0u8; 160];
    // SAFETY: a live buffer and its length.
    let got = unsafe { libc::read(fd, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
    let text = text.get(..usize::try_from(got).ok()?)?;
    // proc_pid_statm(5): size resident shared …, in pages.
    let mut fields = text.split(|byte| *byte == b' ').map(number);
    let (_, resident, shared) = (fields.next()?, fields.next()??, fields.next()??);
    // SAFETY: no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE);
    Some(resident.saturating_sub(shared).saturating_mul(page))
}

/// Page faults of the calling thread so far. While there are no more of them nothing that it allocated
/// has become resident, which is known sooner and more exactly than by how much is (getrusage(2)).
pub(crate) fn faults() -> u64 {
    // SAFETY: plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live local, which the call fills.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage
        .ru_minflt
        .wrapping_add(usage.ru_majflt)
        .cast_unsigned()
}

fn number(text: &[u8]) -> Option<usize> {
    text.iter().try_fold(0usize, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| usize::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
