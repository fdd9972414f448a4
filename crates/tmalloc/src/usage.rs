// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about this process: resident memory, page faults, which pages are there.

use crate::ranges::{Range, page};

/// Pages looked at by one call; one byte each on the stack.
pub(crate) const AT_ONCE: usize = 2048;

/// Memory of this process, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Anonymous, and resident.
    pub(crate) anonymous: usize,
    /// Private and writable, resident or not.
    pub(crate) writable: usize,
}

/// `None` where /proc is not to be had.
///
/// Opened anew each time (2 µs): a descriptor kept open would be closed or renumbered by programs that
/// close what they did not open.
pub(crate) fn memory() -> Option<Memory> {
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
    // proc_pid_statm(5): size resident shared text lib data dt, in pages.
    let mut fields = text.split(|byte| *byte == b' ').map(number);
    let (resident, shared, data) = (fields.nth(1)??, fields.next()??, fields.nth(2)??);
    Some(Memory {
        anonymous: resident.saturating_sub(shared).saturating_mul(page()),
        writable: data.saturating_mul(page()),
    })
}

fn number(text: &[u8]) -> Option<usize> {
    text.iter().try_fold(0usize, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| usize::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Page faults of the calling thread so far (getrusage(2)).
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

/// Of a range, what is mapped and not resident.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) pages: usize,
    /// From the first such page to behind the last.
    pub(crate) first: usize,
    pub(crate) end: usize,
}

impl Absent {
    fn add(&mut self, at: usize, pages: usize) {
        if self.pages == 0 {
            self.first = at;
        }
        self.pages += pages;
        self.end = at.saturating_add(pages.saturating_mul(page()));
    }
}

/// Looks which pages of a range are not resident (mincore(2)). What is not mapped any more is neither.
pub(crate) fn absent(range: Range) -> Absent {
    let mut found = Absent::default();
    let mut present = [0u8; AT_ONCE];
    let mut at = range.first;
    while at < range.end {
        let end = range.end.min(at.saturating_add(AT_ONCE * page()));
        look(Range { first: at, end }, &mut present, &mut found);
        at = end;
    }
    found
}

/// At most [`AT_ONCE`] pages; by halves where a part of them is not mapped.
fn look(range: Range, present: &mut [u8; AT_ONCE], found: &mut Absent) {
    let pages = range.pages().min(AT_ONCE);
    if pages == 0 {
        return;
    }
    let at: *mut libc::c_void = std::ptr::without_provenance_mut(range.first);
    // SAFETY: the kernel writes one byte a page, `pages` at most.
    let got = unsafe { libc::mincore(at, pages * page(), present.as_mut_ptr()) };
    if got == 0 {
        let mut run = 0;
        for (index, state) in present.iter().take(pages).enumerate() {
            if state & 1 == 0 {
                run += 1;
            } else if run > 0 {
                found.add(range.first + (index - run) * page(), run);
                run = 0;
            }
        }
        if run > 0 {
            found.add(range.first + (pages - run) * page(), run);
        }
    } else if bursar_reserve::errno() != libc::ENOMEM {
        found.add(range.first, pages);
    } else if pages > 1 && !is_unmapped(range) {
        let middle = range.first + pages / 2 * page();
        let (low, high) = (
            Range {
                first: range.first,
                end: middle,
            },
            Range {
                first: middle,
                end: range.end,
            },
        );
        look(low, present, found);
        look(high, present, found);
    }
}

/// Whether nothing is mapped there: both ends and the middle are not. Mappings that hold blocks begin at
/// one of the ends.
fn is_unmapped(range: Range) -> bool {
    let middle = range.first + range.pages() / 2 * page();
    [range.first, middle, range.end - page()]
        .into_iter()
        .all(|address| {
            let mut present = 0u8;
            let at: *mut libc::c_void = std::ptr::without_provenance_mut(address);
            // SAFETY: the kernel writes one byte.
            let got = unsafe { libc::mincore(at, page(), &raw mut present) };
            got != 0 && bursar_reserve::errno() == libc::ENOMEM
        })
}
