// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pass of a case: pages are prepared and touched, and the faults of the touches are counted.

use bursar_host::machine;
use bursar_model::Bytes;

use super::conditions::{LockAll, Sleeper, SmallPages, settle};
use super::{Case, Pass};
use crate::memory::{Blocks, PageKind, Region, give_back, resident, touch};
use crate::usage::{Faults, now_ns};
use crate::{Capacity, Error};

/// Why a case cannot be measured here.
pub(super) struct Refused(pub(super) String);

/// Time and faults at one moment.
type Moment = (u64, Faults);

fn moment() -> Moment {
    (now_ns(), Faults::ours())
}

/// One pass, in batches; and how many pages it touched.
pub(super) fn pass(
    case: Case,
    pages: u64,
    batch: u64,
    capacity: &Capacity,
) -> Result<Result<(Pass, u64), Refused>, Error> {
    let page = 1 << machine::page_size().shift();
    let mut left = match case {
        Case::LockedByLimit => match allowed(pages, page) {
            0 => {
                return Ok(Err(Refused(
                    "RLIMIT_MEMLOCK allows none; raise ulimit -l".to_owned(),
                )));
            }
            allowed => allowed,
        },
        _ => pages,
    };
    let mut sum = (Pass::default(), 0);
    while left > 0 {
        let count = usize::try_from(left.min(batch)).unwrap_or(usize::MAX);
        if case == Case::Locked
            && let Some(refused) = refusal(count * page, capacity)
        {
            return Ok(Err(refused));
        }
        sum.0.add(&batch_pass(case, count, page)?);
        sum.1 += count as u64;
        left -= count as u64;
    }
    Ok(Ok(sum))
}

impl Pass {
    fn add(&mut self, more: &Self) {
        let faults = |a: Faults, b: Faults| Faults {
            minor: a.minor.saturating_add(b.minor),
            major: a.major.saturating_add(b.major),
        };
        *self = Self {
            touch_ns: self.touch_ns.saturating_add(more.touch_ns),
            faults: faults(self.faults, more.faults),
            expected: self.expected.saturating_add(more.expected),
            prepare_ns: self.prepare_ns.saturating_add(more.prepare_ns),
            prepare_faults: faults(self.prepare_faults, more.prepare_faults),
        };
    }
}

fn batch_pass(case: Case, count: usize, page: usize) -> Result<Pass, Error> {
    match case {
        Case::Memalign => blocks(count, page, false),
        Case::MemalignAgain => blocks(count, page, true),
        Case::Mapping => mapping(count, page, false),
        Case::MappingAgain => mapping(count, page, true),
        Case::Populated => populated(count, page),
        Case::Locked => locked(count, page),
        Case::LockedByLimit => locked_by_limit(count, page),
        Case::Huge => huge(count, page),
        Case::AfterFork => after_fork(count, page),
    }
}

fn blocks(count: usize, page: usize, is_again: bool) -> Result<Pass, Error> {
    let begin = moment();
    let blocks = Blocks::allocate(count, page)?;
    let prepared = moment();
    let pages = blocks.addresses();
    if is_again {
        touch(pages, page);
    }
    // malloc's header of a block lies in the page before it, which may be another block.
    let expected = count as u64 - resident(pages, page);
    let pass = timed(pages, page, begin, prepared, expected);
    drop(blocks);
    // The next batch is to find no page of this one.
    give_back();
    Ok(pass)
}

fn mapping(count: usize, page: usize, is_again: bool) -> Result<Pass, Error> {
    let begin = moment();
    let region = Region::map(count * page, PageKind::Small, 0)?;
    let pages = region.addresses(page);
    let prepared = moment();
    if is_again {
        touch(&pages, page);
    }
    let expected = count as u64 - resident(&pages, page);
    Ok(timed(&pages, page, begin, prepared, expected))
}

fn populated(count: usize, page: usize) -> Result<Pass, Error> {
    let begin = moment();
    // Without the advice against huge pages, which would come too late; prctl has said so.
    let region = Region::map(count * page, PageKind::Small, libc::MAP_POPULATE)?;
    let prepared = moment();
    Ok(timed(&region.addresses(page), page, begin, prepared, 0))
}

fn locked(count: usize, page: usize) -> Result<Pass, Error> {
    let region = Region::map(count * page, PageKind::Small, 0)?;
    let pages = region.addresses(page);
    let begin = moment();
    let lock = LockAll::now()?;
    let prepared = moment();
    let pass = timed(&pages, page, begin, prepared, 0);
    drop(lock);
    Ok(pass)
}

fn locked_by_limit(count: usize, page: usize) -> Result<Pass, Error> {
    let begin = moment();
    let region = Region::map(count * page, PageKind::Small, 0)?;
    region.lock(count * page)?;
    let prepared = moment();
    Ok(timed(&region.addresses(page), page, begin, prepared, 0))
}

fn huge(count: usize, page: usize) -> Result<Pass, Error> {
    const HUGE: u64 = 2 << 20;
    SmallPages::not_only();
    let begin = moment();
    let region = Region::map(count * page, PageKind::Huge, 0)?;
    let pages = region.addresses(page);
    let prepared = moment();
    let mut pass = timed(&pages, page, begin, prepared, 0);
    std::mem::forget(SmallPages::only());
    let huge = region.huge_pages()?;
    // One fault a huge page, one a small one where none was to be had.
    pass.expected = huge + (count as u64).saturating_sub(huge * HUGE / page as u64);
    Ok(pass)
}

fn after_fork(count: usize, page: usize) -> Result<Pass, Error> {
    let begin = moment();
    let region = Region::map(count * page, PageKind::Small, 0)?;
    let pages = region.addresses(page);
    touch(&pages, page);
    let child = Sleeper::fork()?;
    // Our own stack and data were shared, too: first writes to them are not what is measured.
    settle();
    let prepared = moment();
    let pass = timed(&pages, page, begin, prepared, count as u64);
    drop(child);
    Ok(pass)
}

/// As many pages of `pages` as RLIMIT_MEMLOCK allows; nothing else of ours is locked.
fn allowed(pages: u64, page: usize) -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    limit.map_or(pages, |limit| pages.min(limit / page as u64))
}

/// Why so much cannot be locked; `None` where it can.
fn refusal(bytes: usize, capacity: &Capacity) -> Option<Refused> {
    let limit = capacity.memlock?;
    let mapped = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mapped: u64 = mapped
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    let needed =
        Bytes::new((bytes as u64).saturating_add(mapped * rustix::param::page_size() as u64));
    (needed > limit).then(|| {
        Refused(format!(
            "needs {needed} of locked memory and RLIMIT_MEMLOCK allows {limit}; raise ulimit -l, or measure \
             fewer --pages"
        ))
    })
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
