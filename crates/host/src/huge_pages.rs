// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of the pools of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst) that a process maps. smaps says how
//! many, and not how much of them is another's too: that is their pagemap entries' to say.

use bursar_model::{Bytes, Pid};

use crate::bytes::kilobytes_of;
use crate::lazy_free::bounds_of;
use crate::{HostError, Malformed, MapCounts, PageEntry, Pagemap, Proc, machine};

/// Huge pages of one process that are looked at. What is beyond counts in full.
const MOST_HUGE_PAGES: u64 = 1 << 20;

/// A mapping of such pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    /// Of one of its pages, bytes.
    size: u64,
    /// What of it is mapped.
    mapped: Bytes,
}

impl Proc {
    /// The huge pages of the pools that a process maps, each divided by how often it is mapped. `None`: it has ended.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn huge_pages_divided(
        &self,
        tid: Pid,
        counts: &MapCounts,
    ) -> Result<Option<Bytes>, HostError> {
        let Some(areas) = self.parsed(&format!("{tid}/smaps"), areas)? else {
            return Ok(None);
        };
        let Some(pagemap) = Pagemap::open(self, tid)? else {
            return Ok(None);
        };
        let page = 1 << machine::page_size().shift();
        let mut left = MOST_HUGE_PAGES;
        let mut sum = Bytes::ZERO;
        for area in areas {
            let Ok(step) = usize::try_from(area.size) else {
                continue;
            };
            let mut met = Bytes::ZERO;
            for at in (area.start..area.end).step_by(step) {
                if met >= area.mapped {
                    break;
                }
                let mut sharers = None;
                pagemap.visit(at, at + page, &mut left, |_, entry: PageEntry| {
                    let count = entry.frame().map(|frame| counts.of(frame));
                    sharers = Some(count.and_then(Result::ok).flatten().unwrap_or(1));
                })?;
                if let Some(sharers) = sharers {
                    met = met.saturating_add(Bytes::new(area.size));
                    sum = sum.saturating_add(Bytes::new(area.size / sharers.max(1)));
                }
            }
            // Not all of it was looked at.
            sum = sum.saturating_add(area.mapped.saturating_sub(met));
        }
        Ok(Some(sum))
    }
}

/// The mappings of /proc/PID/smaps that have such pages.
fn areas(smaps: &[u8]) -> Result<Vec<Area>, Malformed> {
    let mut areas = Vec::new();
    let (mut bounds, mut size) = (None, Bytes::ZERO);
    for line in smaps.split(|&byte| byte == b'\n') {
        if let Some(found) = bounds_of(line) {
            bounds = Some(found);
        } else if let Some(found) = kilobytes_of(line, "KernelPageSize")? {
            size = found;
        } else if line.starts_with(b"Shared_Hugetlb:") || line.starts_with(b"Private_Hugetlb:") {
            let shared = kilobytes_of(line, "Shared_Hugetlb")?;
            let mapped = shared.or(kilobytes_of(line, "Private_Hugetlb")?);
            let mapped = mapped.unwrap_or_default();
            let (Some((start, end)), true) = (bounds, mapped > Bytes::ZERO && size > Bytes::ZERO)
            else {
                continue;
            };
            match areas.last_mut() {
                Some(Area {
                    start: same,
                    mapped: sum,
                    ..
                }) if *same == start => *sum = sum.saturating_add(mapped),
                _ => areas.push(Area {
                    start,
                    end,
                    size: size.get(),
                    mapped,
                }),
            }
        }
    }
    Ok(areas)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &[u8] = b"400000-600000 r--p 00000000 fd:01 1311 /usr/bin/cat\n\
        Size:               2048 kB\nKernelPageSize:        4 kB\nRss:                  64 kB\n\
        Shared_Hugetlb:        0 kB\nPrivate_Hugetlb:       0 kB\nVmFlags: rd mr\n\
        7f0000000000-7f0001400000 rw-s 00000000 00:0f 2052 /anon_hugepage (deleted)\n\
        Size:              20480 kB\nKernelPageSize:     2048 kB\nRss:                   0 kB\n\
        Shared_Hugetlb:     8192 kB\nPrivate_Hugetlb:    4096 kB\nVmFlags: rd wr sh ht\n";

    #[test]
    fn only_mappings_that_have_such_pages_are_looked_at() {
        let found = Area {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0140_0000,
            size: 2 << 20,
            mapped: Bytes::from_mib(12),
        };
        assert_eq!(areas(SMAPS).unwrap(), [found]);
        assert!(areas(b"Shared_Hugetlb:     8192 kB\n").unwrap().is_empty());
        assert!(areas(b"1000-2000 rw\nShared_Hugetlb:     many kB\n").is_err());
    }
}
