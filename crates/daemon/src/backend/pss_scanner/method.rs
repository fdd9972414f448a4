// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a PSS scan reads of a process, and how much of it counts as shared.

use std::sync::Arc;
use std::time::Duration;

use bursar_host::{HugePages, Rollup, clock};
use bursar_kernel::{Found, Sharer};
use bursar_model::{Bytes, PageSize, Pages};
use bursar_reap::Priority;
use bursar_watchdog::Blocklist;

/// What is scanned, and how.
#[derive(Debug)]
pub(in crate::backend) struct Method {
    pub(in crate::backend) page: PageSize,
    /// S1's literal RSS: file pages count too.
    pub(in crate::backend) count_file: bool,
    /// Answers have to come while memory grows.
    pub(in crate::backend) priority: Priority,
    /// Processes that must not be called: a thread of ours hangs at each.
    pub(in crate::backend) blocklist: Arc<Blocklist>,
}

impl Method {
    /// How much of a process is counted elsewhere too. What it shares is at most twice that: of a page
    /// with k users each user's part is 1 − 1/k too many.
    /// `swap`: its private pages in swap. `huge_pages`: of those that it maps of the pools.
    pub(super) fn weigh(
        &self,
        rollup: &Rollup,
        sharer: Sharer,
        swap: Pages,
        huge_pages: HugePages,
    ) -> Found {
        let less = |full: Bytes, divided: Bytes| full.saturating_sub(divided);
        // In full smaps_rollup has shared memory, too, and divided it has not (fs/proc/task_mmu.c smap_gather_stats()).
        let swap = rollup.swap.min(swap.to_bytes(self.page));
        let swapped = less(swap, rollup.swap_pss);
        // Shared memory as the kernel half knows it: the kernel gives its sum only divided.
        let shmem = less(sharer.shmem.to_bytes(self.page), rollup.pss_shmem);
        let resident = if self.count_file {
            less(rollup.rss, rollup.pss)
        } else {
            less(rollup.anonymous, rollup.pss_anon).saturating_add(shmem)
        };
        let once = if self.count_file {
            rollup.pss
        } else {
            rollup.pss_anon.saturating_add(rollup.pss_shmem)
        };
        let huge = sharer.hugetlb.to_bytes(self.page);
        // What it maps by other processes' page tables is in smaps, and not in what the kernel counts.
        let huge_twice = huge_pages.duplicate.min(less(huge, huge_pages.own));
        let duplicate = resident.saturating_add(swapped).saturating_add(huge_twice);
        let twice = duplicate.saturating_add(duplicate);
        let shared = rollup.shared.saturating_add(swap).saturating_add(huge);
        let shared = shared.min(twice).max(duplicate);
        let pages = |bytes| self.page.pages_within(bytes);
        // Rounded towards what keeps the limit.
        let rounding = u64::from(duplicate.get() > 0);
        Found {
            shared: Pages::new(pages(shared).get().saturating_add(rounding)),
            duplicate: pages(duplicate),
            once: pages(
                once.saturating_add(rollup.swap_pss)
                    .saturating_add(less(huge, huge_twice)),
            ),
            // Rounded up: what is in doubt counts as a file.
            duplicate_shmem: Pages::new(pages(shmem).get().saturating_add(rounding)),
        }
    }
}

/// Processor time of this thread.
pub(super) fn own_work() -> Duration {
    Duration::from_nanos(clock::thread_cpu_time().get())
}
