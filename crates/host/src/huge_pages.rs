// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pages of the pools of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst) that a process maps. smaps says how
//! many, and not how much of them is another's too: that is their pagemap entries' to say.

use bursar_model::{Bytes, Pid};

use crate::bytes::{kilobytes_of, words};
use crate::lazy_free::bounds_of;
use crate::{HostError, Malformed, MapCounts, PageEntry, Pagemap, Proc, machine};

/// Empty places of one process that are looked at beside its huge pages. Pages that are not come to count in full.
const MOST_EMPTY: u64 = 4096;

/// A mapping of such pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Area {
    start: u64,
    end: u64,
    is_shared: bool,
    /// Of one of its pages, bytes.
    size: u64,
    /// What of it is mapped.
    mapped: Bytes,
    /// Of that, what no other process has, not by a page table that both share either.
    own: Bytes,
}

/// What a process maps of the pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HugePages {
    /// So much of it others have: of a page that k processes map each has 1 − 1/k too much.
    pub duplicate: Bytes,
    /// Mapped by this one alone, as far as is known.
    pub own: Bytes,
    /// So many were looked at, present or not.
    pub looked_at: u64,
}

impl Proc {
    /// The huge pages of the pools that a process maps. Of private mappings all is its own: a copy of such a page changes
    /// no counter. So is what is mapped by a page table that processes share, which the kernel counts for one of them.
    /// No page is taken for shared by more than `sharers`. `None`: it has ended.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn huge_pages(
        &self,
        tid: Pid,
        counts: &MapCounts,
        sharers: u64,
    ) -> Result<Option<HugePages>, HostError> {
        let Some(areas) = self.parsed(&format!("{tid}/smaps"), areas)? else {
            return Ok(None);
        };
        let Some(pagemap) = Pagemap::open(self, tid)? else {
            return Ok(None);
        };
        let page = 1 << machine::page_size().shift();
        let pages: u64 = areas.iter().map(|it| it.mapped.get() / it.size).sum();
        let most = pages.saturating_add(MOST_EMPTY);
        let mut left = most;
        let mut found = HugePages::default();
        for area in areas {
            let step = usize::try_from(area.size).unwrap_or(usize::MAX);
            let mut met = Bytes::ZERO;
            for at in (area.start..area.end).step_by(step) {
                if left == 0 || met >= area.mapped || !area.is_shared {
                    break;
                }
                let mut entry = None;
                pagemap.visit(at, at + page, &mut left, |_, it: PageEntry| {
                    entry = Some(it)
                })?;
                let Some(entry) = entry else {
                    continue;
                };
                met = met.saturating_add(Bytes::new(area.size));
                let count = entry.frame().map(|frame| counts.of(frame)).transpose()?;
                let count = count.flatten().unwrap_or(1).clamp(1, sharers.max(1));
                let others = area.size - area.size / count;
                found.duplicate = found.duplicate.saturating_add(Bytes::new(others));
            }
            // What was not looked at, too.
            let unmet = area.mapped.saturating_sub(met);
            found.own = found.own.saturating_add(area.own.max(unmet));
        }
        found.looked_at = most - left;
        Ok(Some(found))
    }
}

/// The mappings of /proc/PID/smaps that have such pages.
fn areas(smaps: &[u8]) -> Result<Vec<Area>, Malformed> {
    let mut areas = Vec::new();
    let (mut bounds, mut size) = (None, Bytes::ZERO);
    for line in smaps.split(|&byte| byte == b'\n') {
        if let Some((start, end)) = bounds_of(line) {
            let is_shared = words(line).nth(1).and_then(|it| it.get(3)) == Some(&b's');
            bounds = Some((start, end, is_shared));
        } else if let Some(found) = kilobytes_of(line, "KernelPageSize")? {
            size = found;
        } else if line.starts_with(b"Shared_Hugetlb:") || line.starts_with(b"Private_Hugetlb:") {
            let own = kilobytes_of(line, "Private_Hugetlb")?.unwrap_or_default();
            let mapped = kilobytes_of(line, "Shared_Hugetlb")?.unwrap_or(own);
            let (Some((start, end, is_shared)), true) = (bounds, size > Bytes::ZERO) else {
                continue;
            };
            if areas.last().is_none_or(|it: &Area| it.start != start) {
                areas.push(Area {
                    start,
                    end,
                    is_shared,
                    size: size.get(),
                    mapped: Bytes::ZERO,
                    own: Bytes::ZERO,
                });
            }
            if let Some(area) = areas.last_mut() {
                area.mapped = area.mapped.saturating_add(mapped);
                area.own = area.own.saturating_add(own);
            }
        }
    }
    areas.retain(|it| it.mapped > Bytes::ZERO);
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
            is_shared: true,
            size: 2 << 20,
            mapped: Bytes::from_mib(12),
            own: Bytes::from_mib(4),
        };
        assert_eq!(areas(SMAPS).unwrap(), [found]);
        let private = String::from_utf8_lossy(SMAPS).replace("rw-s", "rw-p");
        assert!(!areas(private.as_bytes()).unwrap()[0].is_shared);
        assert!(areas(b"Shared_Hugetlb:     8192 kB\n").unwrap().is_empty());
        assert!(areas(b"1000-2000 rw\nShared_Hugetlb:     many kB\n").is_err());
    }
}
