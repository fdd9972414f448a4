// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S3's experiment: what a first touch costs against a touch of resident, locked memory.
//!
//! Each case prepares pages, touches each once, and compares the faults that getrusage counts with the
//! number that must come. Nothing is estimated: a count that differs is reported as wrong.

use bursar_host::machine;
use bursar_model::Bytes;
use serde::Serialize;

use crate::memory::{Blocks, PageKind, Region, resident, touch};
use crate::usage::{Faults, now_ns};
use crate::{Capacity, Error};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// S3: posix_memalign page by page, first touch.
    Memalign,
    /// The same pages again.
    MemalignAgain,
    /// One mapping, first touch.
    Mapping,
    /// The same pages again: resident.
    MappingAgain,
    /// After mlockall (S3's second run).
    Locked,
    /// mlock of as much as RLIMIT_MEMLOCK allows.
    LockedByLimit,
    /// MAP_POPULATE.
    Populated,
    /// Huge pages, first touch.
    Huge,
    /// First write after fork: copy-on-write.
    AfterFork,
}

/// All cases, in the order of the table.
pub const CASES: [Case; 9] = [
    Case::Memalign,
    Case::MemalignAgain,
    Case::Mapping,
    Case::MappingAgain,
    Case::Locked,
    Case::LockedByLimit,
    Case::Populated,
    Case::Huge,
    Case::AfterFork,
];

/// One pass over the pages of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// How long touching all pages took, nanoseconds.
    pub touch_ns: u64,
    /// Faults while touching.
    pub faults: Faults,
    /// Faults that had to come.
    pub expected: u64,
    /// How long preparing took (mapping, locking, populating), nanoseconds.
    pub prepare_ns: u64,
    /// Faults while preparing: populate and mlock count as well.
    pub prepare_faults: Faults,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Measurement {
    /// The case.
    pub case: Case,
    /// Pages touched in each pass.
    pub pages: u64,
    /// The passes; none where it was refused.
    pub passes: Vec<Pass>,
    /// Why there are none, or something to know about the figures.
    pub remark: Option<String>,
}

impl Case {
    /// What it is, for the table.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Memalign => "posix_memalign one by one, first touch",
            Self::MemalignAgain => "  touched again: resident",
            Self::Mapping => "one mapping, first touch",
            Self::MappingAgain => "  touched again: resident",
            Self::Locked => "mlockall, then first touch",
            Self::LockedByLimit => "mlock within RLIMIT_MEMLOCK, first touch",
            Self::Populated => "MAP_POPULATE, first touch",
            Self::Huge => "huge pages, first touch",
            Self::AfterFork => "first write after fork: copy-on-write",
        }
    }
}

impl Measurement {
    /// Whether all counts are as they must be.
    pub fn is_right(&self) -> bool {
        self.passes
            .iter()
            .all(|pass| pass.faults.total() == pass.expected)
    }

    /// The pass with the median time.
    pub fn median(&self) -> Option<Pass> {
        let mut passes = self.passes.clone();
        passes.sort_by_key(|pass| pass.touch_ns);
        passes.get(passes.len() / 2).copied()
    }

    /// Shortest and longest time, nanoseconds.
    pub fn spread_ns(&self) -> Option<(u64, u64)> {
        let times = self.passes.iter().map(|pass| pass.touch_ns);
        Some((times.clone().min()?, times.max()?))
    }
}

/// Bytes of memory that measuring `pages` pages takes at most: the copies after a fork, or the pages
/// in which malloc keeps its headers, and the table of addresses.
pub fn memory_needed(pages: u64) -> Bytes {
    let page = rustix::param::page_size() as u64;
    Bytes::new(pages.saturating_mul(page.saturating_mul(2).saturating_add(64)))
}

/// Measures `cases`, each `passes` times, and tells `met` of each as soon as it is there.
///
/// # Errors
/// When `pages` is 0, or more than the machine's free memory allows; when memory cannot be had.
pub fn measure(
    pages: u64,
    passes: u32,
    cases: &[Case],
    mut met: impl FnMut(Measurement),
) -> Result<(), Error> {
    let capacity = Capacity::ours()?;
    let needed = memory_needed(pages);
    if needed > capacity.available {
        return Err(Error::TooLarge(format!(
            "{pages} pages need {needed} of memory while they are measured, and {} can be had \
             without hurting others; measure at most {} pages (--pages)",
            capacity.available,
            capacity.available.get() / memory_needed(1).get().max(1),
        )));
    }
    let count = usize::try_from(pages).unwrap_or(usize::MAX);
    let small = SmallPages::only();
    for &case in cases {
        let mut measurement = Measurement {
            case,
            pages,
            passes: Vec::new(),
            remark: None,
        };
        for _ in 0..passes {
            match pass(case, count, &capacity) {
                Ok((pass, touched)) => {
                    measurement.pages = touched;
                    measurement.passes.push(pass);
                }
                Err(Stop::Refused(reason)) => {
                    measurement.remark = Some(reason);
                    break;
                }
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        if case == Case::Huge
            && measurement
                .median()
                .is_some_and(|pass| pass.expected >= measurement.pages)
        {
            measurement.remark = Some(
                "the kernel gave no huge pages (transparent_hugepage is never, or none are free)"
                    .into(),
            );
        }
        met(measurement);
    }
    drop(small);
    Ok(())
}

enum Stop {
    Refused(String),
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// While it lives malloc's memory has small pages only, whatever the machine's default.
struct SmallPages;

impl SmallPages {
    fn only() -> Self {
        // SAFETY: numbers only. Where the kernel refuses, counts will differ and say so.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
        Self
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    }
}

/// One pass of a case; and how many pages it touched.
fn pass(case: Case, count: usize, capacity: &Capacity) -> Result<(Pass, u64), Stop> {
    let page = 1 << machine::page_size().shift();
    let bytes = count * page;
    let begin = (now_ns(), Faults::ours());
    let pass = match case {
        Case::Memalign | Case::MemalignAgain => {
            let blocks = Blocks::allocate(count, page)?;
            let prepared = (now_ns(), Faults::ours());
            if case == Case::MemalignAgain {
                touch(blocks.addresses(), page);
            }
            // malloc's header of a block lies in the page before it, which may be another block.
            let expected = count as u64 - resident(blocks.addresses(), page);
            timed(blocks.addresses(), page, begin, prepared, expected)
        }
        Case::Mapping | Case::MappingAgain => {
            let region = Region::map(bytes, PageKind::Small, 0)?;
            let pages = region.addresses(page);
            let prepared = (now_ns(), Faults::ours());
            if case == Case::MappingAgain {
                touch(&pages, page);
            }
            timed(
                &pages,
                page,
                begin,
                prepared,
                count as u64 - resident(&pages, page),
            )
        }
        Case::Populated => {
            // Without the advice against huge pages, which would come too late; prctl has said so.
            let region = Region::map(bytes, PageKind::Small, libc::MAP_POPULATE)?;
            let prepared = (now_ns(), Faults::ours());
            timed(&region.addresses(page), page, begin, prepared, 0)
        }
        Case::Locked => {
            may_lock(bytes, capacity)?;
            let region = Region::map(bytes, PageKind::Small, 0)?;
            let pages = region.addresses(page);
            let begin = (now_ns(), Faults::ours());
            let lock = LockAll::now()?;
            let prepared = (now_ns(), Faults::ours());
            let pass = timed(&pages, page, begin, prepared, 0);
            drop(lock);
            pass
        }
        Case::LockedByLimit => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            // Nothing else of ours is locked.
            let allowed = limit.map_or(bytes, |limit| {
                bytes.min(usize::try_from(limit).unwrap_or(usize::MAX) / page * page)
            });
            if allowed == 0 {
                return Err(Stop::Refused(
                    "RLIMIT_MEMLOCK allows none; raise ulimit -l".to_owned(),
                ));
            }
            let region = Region::map(allowed, PageKind::Small, 0)?;
            region.lock(allowed)?;
            let prepared = (now_ns(), Faults::ours());
            let pass = timed(&region.addresses(page), page, begin, prepared, 0);
            return Ok((pass, (allowed / page) as u64));
        }
        Case::Huge => {
            // SAFETY: numbers only.
            unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
            let region = Region::map(bytes, PageKind::Huge, 0)?;
            let pages = region.addresses(page);
            let prepared = (now_ns(), Faults::ours());
            let mut pass = timed(&pages, page, begin, prepared, 0);
            std::mem::forget(SmallPages::only());
            let huge = region.huge_pages()?;
            // One fault a huge page, one a small one where none was to be had.
            pass.expected = huge + (count as u64).saturating_sub(huge * (2 << 20) / page as u64);
            pass
        }
        Case::AfterFork => {
            let region = Region::map(bytes, PageKind::Small, 0)?;
            let pages = region.addresses(page);
            touch(&pages, page);
            let child = Sleeper::fork()?;
            // Our own stack and data were shared, too: first writes to them are not what is measured.
            settle();
            let prepared = (now_ns(), Faults::ours());
            let pass = timed(&pages, page, begin, prepared, count as u64);
            drop(child);
            pass
        }
    };
    Ok((pass, count as u64))
}

fn may_lock(bytes: usize, capacity: &Capacity) -> Result<(), Stop> {
    let Some(limit) = capacity.memlock else {
        return Ok(());
    };
    let mapped = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mapped: u64 = mapped
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    let needed =
        Bytes::new((bytes as u64).saturating_add(mapped * rustix::param::page_size() as u64));
    if needed > limit {
        return Err(Stop::Refused(format!(
            "needs {needed} of locked memory and RLIMIT_MEMLOCK allows {limit}; raise ulimit -l, or \
             measure fewer --pages"
        )));
    }
    Ok(())
}

#[inline(never)]
fn timed(
    pages: &[*mut u8],
    page: usize,
    begin: (u64, Faults),
    prepared: (u64, Faults),
    expected: u64,
) -> Pass {
    // The clock's and getrusage's own pages have been used before (begin, prepared).
    let faults = Faults::ours();
    let start = now_ns();
    touch(pages, page);
    let end = now_ns();
    let faults = Faults::ours().since(faults);
    Pass {
        touch_ns: end.saturating_sub(start),
        faults,
        expected,
        prepare_ns: prepared.0.saturating_sub(begin.0),
        prepare_faults: prepared.1.since(begin.1),
    }
}

/// Writes to what this thread, or the kernel for it, will write to while it measures.
fn settle() {
    let mut scratch = [0u8; 16 << 10];
    for byte in scratch.iter_mut().step_by(512) {
        // SAFETY: our own array.
        unsafe { std::ptr::from_mut(byte).write_volatile(1) };
    }
    // The kernel writes to a thread's rseq area when it was preempted (kernel/rseq.c), which glibc keeps
    // in its description of the thread, in one page or in two.
    // SAFETY: our own thread's description, 2304 bytes in glibc; each byte is written back as it is, by
    // the only thread that uses it.
    unsafe {
        let thread = libc::pthread_self() as *mut u8;
        for offset in [0, 2303] {
            let byte = thread.add(offset);
            byte.write_volatile(byte.read_volatile());
        }
    }
    for _ in 0..2 {
        let _ = (now_ns(), Faults::ours());
    }
}

/// mlockall, until dropped.
struct LockAll;

impl LockAll {
    fn now() -> Result<Self, Error> {
        // SAFETY: flags only.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            let error = Error::last_os("lock all memory (mlockall)");
            // SAFETY: no arguments. A failed mlockall may have marked some mappings.
            unsafe { libc::munlockall() };
            return Err(error);
        }
        Ok(Self)
    }
}

impl Drop for LockAll {
    fn drop(&mut self) {
        // SAFETY: no arguments.
        unsafe { libc::munlockall() };
    }
}

/// A child that shares our pages and does nothing.
struct Sleeper(libc::pid_t);

impl Sleeper {
    fn fork() -> Result<Self, Error> {
        // SAFETY: the child calls async-signal-safe functions only.
        match unsafe { libc::fork() } {
            -1 => Err(Error::last_os("fork")),
            0 => loop {
                // SAFETY: numbers only. If we die, so does it.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::pause();
                }
            },
            child => Ok(Self(child)),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: our own child, not waited for before.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
