// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scan of all page maps.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bursar_host::{
    HostError, MapCounts, PageEntry, PageFlags, Pagemap, Proc, ProcessQuery, Walked, expect_frames,
};
use bursar_model::{AccountId, Pid, Uid};
use bursar_policy::{Fractions, Frame, Mapped, NoShare, PageOwner, WHOLE_PAGE};

use crate::frames::Frames;
use crate::pace::{Clock, Pace};
use crate::{Count, Facts, Holding};

/// Shares of shared pages, at most: about 100 MB of ours when 4 GiB are shared.
const MOST_SHARES: u32 = 1 << 20;
/// Of an address space that has to be read from end to end: so many entries for each page that is
/// there, and so many for nothing.
const ENTRIES_A_PAGE: u64 = 64;
const ENTRIES_FREE: u64 = 1 << 20;
/// Entries between two looks at the clock.
const TICK: usize = 1024;
/// Entries read at a time.
const PART: u64 = 1 << 16;
/// Frames that are nobody's, remembered for a round; more are asked for again.
const MOST_NOBODYS: usize = 1 << 16;
/// Frames of the huge zero page: 512 or more, and a multiple of it.
const ZERO_BLOCK: u64 = 512;
/// Threads of a process whose first one is dead that are tried for its memory.
const MOST_THREADS: usize = 64;

/// A process to be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// The process.
    pub pid: Pid,
    /// Its real user.
    pub uid: Uid,
}

/// What one page owner has met with in this round.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    processes: u32,
    resident: u64,
    own: u64,
    /// Whole pages beyond its own: crowded or unseen.
    more: u64,
}

/// Counts, again and again: the rings of shared pages stay in between.
#[derive(Debug)]
pub struct PagemapScanner {
    proc: Proc,
    map_counts: Option<MapCounts>,
    page_flags: Option<PageFlags>,
    fractions: Fractions,
    owners: HashMap<Option<AccountId>, PageOwner>,
    round: u32,
    /// This round's:
    sums: HashMap<PageOwner, Sum>,
    met: Frames,
    nobodys: HashSet<u64>,
    /// Whether a block of [`ZERO_BLOCK`] frames is of the huge zero page.
    zero_blocks: HashMap<u64, bool>,
    facts: Facts,
}

impl PagemapScanner {
    /// Of the machine that `proc` shows.
    pub fn new(proc: Proc) -> Self {
        Self {
            map_counts: MapCounts::open(&proc).ok(),
            page_flags: PageFlags::open(&proc).ok(),
            proc,
            fractions: Fractions::new(MOST_SHARES),
            owners: HashMap::new(),
            round: 0,
            sums: HashMap::new(),
            met: Frames::default(),
            nobodys: HashSet::new(),
            zero_blocks: HashMap::new(),
            facts: Facts::default(),
        }
    }

    /// Looks at every process, by whom `ask` sends. `payer` says whose account pays for one.
    ///
    /// # Errors
    /// When the processes cannot be listed, or the kernel hides from us which frames they map: all would be
    /// found to have nothing.
    pub fn count<A: ProcessQuery>(
        &mut self,
        pace: Pace,
        ask: &mut A,
        mut payer: impl FnMut(&mut A, Looked) -> Option<AccountId>,
    ) -> Result<Count, HostError> {
        expect_frames(&self.proc)?;
        let began = Instant::now();
        let mut clock = Clock::start(pace);
        self.round = self.round.wrapping_add(1);
        self.sums.clear();
        self.met.clear();
        self.nobodys.clear();
        self.zero_blocks.clear();
        self.facts = Facts {
            nobodys_unknown: self.map_counts.is_none(),
            ..Facts::default()
        };
        let pids: Vec<Pid> = self.proc.pids()?.filter_map(Result::ok).collect();
        for pid in pids {
            clock.tick();
            self.look_at(pid, &mut clock, ask, &mut payer);
        }
        self.fractions.forget_unseen(self.round);
        Ok(self.sum_up(began, &clock))
    }

    fn look_at<A: ProcessQuery>(
        &mut self,
        pid: Pid,
        clock: &mut Clock,
        ask: &mut A,
        payer: &mut impl FnMut(&mut A, Looked) -> Option<AccountId>,
    ) {
        let Some((tid, uid, resident)) = self.find_memory(pid) else {
            return;
        };
        let map = match ask.ask(tid, Pagemap::open) {
            Some(Ok(Some(map))) => Arc::new(map),
            Some(Ok(None)) => {
                self.facts.vanished += 1;
                return;
            }
            Some(Err(_)) | None => {
                self.facts.refused += 1;
                return;
            }
        };
        let account = payer(ask, Looked { pid, uid });
        let Some(owner) = self.owner(account) else {
            return;
        };
        self.facts.processes += 1;
        let mut left = ENTRIES_FREE.saturating_add(resident.saturating_mul(ENTRIES_A_PAGE));
        let (mut from, mut found, mut unseen) = (0, 0u64, 0);
        let mut is_hidden = false;
        while left > 0 {
            clock.tick();
            let (its, most) = (Arc::clone(&map), left.min(PART));
            let part = ask.ask(tid, move |proc, _| read(&its, proc, from, most));
            let Some((entries, walked)) = part else {
                is_hidden = true;
                break;
            };
            for some in entries.chunks(TICK) {
                for &entry in some {
                    is_hidden |= entry.frame().is_none();
                    found += u64::from(self.meet(owner, entry));
                }
                clock.tick();
            }
            match walked {
                Ok(Walked::Whole) => break,
                Ok(Walked::Gone) => {
                    self.facts.vanished += 1;
                    break;
                }
                Ok(Walked::Cut(at)) => {
                    from = at;
                    left -= most;
                    if left == 0 {
                        unseen = resident.saturating_sub(found);
                    }
                }
                Err(_) => {
                    is_hidden = true;
                    break;
                }
            }
        }
        self.facts.refused += u32::from(is_hidden);
        self.facts.unseen_pages += unseen;
        let sum = self.sums.entry(owner).or_default();
        sum.processes += u32::from(found > 0);
        sum.resident += found + unseen;
        sum.more += unseen;
    }

    /// A thread through which a process's memory can be seen, its user, and how much there is in pages.
    fn find_memory(&self, pid: Pid) -> Option<(Pid, Uid, u64)> {
        let page = bursar_host::machine::page_size();
        let look = |tid: Pid| {
            let status = self.proc.status(tid).ok().flatten()?;
            Some((status.memory, status.uid, status.threads))
        };
        let (memory, uid, threads) = look(pid)?;
        if let Some(memory) = memory {
            return Some((pid, uid, page.pages_within(memory.rss()).get()));
        }
        // A kernel thread, a zombie, or one whose first thread is dead and whose others are not.
        if threads < 2 {
            return None;
        }
        let others = self.proc.threads(pid, MOST_THREADS).ok()?;
        others.into_iter().find_map(|tid| {
            let (memory, uid, _) = look(tid)?;
            Some((tid, uid, page.pages_within(memory?.rss()).get()))
        })
    }

    fn owner(&mut self, account: Option<AccountId>) -> Option<PageOwner> {
        let next = u32::try_from(self.owners.len())
            .ok()
            .and_then(PageOwner::new);
        match self.owners.get(&account) {
            Some(&owner) => Some(owner),
            None => {
                let owner = next?;
                self.owners.insert(account, owner);
                Some(owner)
            }
        }
    }

    /// One page of somebody's; false where it is no page.
    fn meet(&mut self, owner: PageOwner, entry: PageEntry) -> bool {
        let Some(frame) = entry.frame().and_then(Frame::new) else {
            return false;
        };
        if entry.is_exclusive() {
            if self.met.insert(frame.get()) {
                self.sums.entry(owner).or_default().own += 1;
            } else {
                // Two processes of one address space, or it has changed hands while we looked.
                self.facts.moved_pages += 1;
            }
            return true;
        }
        if self.nobodys.contains(&frame.get()) {
            self.facts.nobodys_entries += 1;
            return false;
        }
        let is_new = !self.met.contains(frame.get());
        let is_known = self.fractions.is_known(frame);
        let is_nobodys = is_new
            && !is_known
            && if entry.is_file() {
                self.is_of_huge_zero_page(frame.get())
            } else {
                self.is_nobodys(frame.get())
            };
        if is_nobodys {
            self.facts.nobodys_entries += 1;
            return false;
        }
        if !is_new && !is_known {
            // Somebody's alone a moment ago.
            self.facts.moved_pages += 1;
            return true;
        }
        match self.fractions.see(frame, owner, self.round) {
            Ok(Mapped::Alone | Mapped::Shared | Mapped::Already) => {
                self.met.insert(frame.get());
            }
            Err(NoShare::Full(_)) => {
                self.facts.crowded_pages += 1;
                self.sums.entry(owner).or_default().more += 1;
            }
        }
        true
    }

    /// Whether an entry that is mapped elsewhere too is none: the zero page and devices' memory have no
    /// count of mappings.
    fn is_nobodys(&mut self, frame: u64) -> bool {
        let Some(counts) = &self.map_counts else {
            return false;
        };
        match counts.of(frame) {
            Ok(Some(0) | None) => {}
            Ok(Some(_)) | Err(_) => return false,
        }
        if self.nobodys.len() < MOST_NOBODYS {
            self.nobodys.insert(frame);
        }
        true
    }

    /// The huge zero page stands in page maps as a file's page. All of a block is of it, or nothing.
    fn is_of_huge_zero_page(&mut self, frame: u64) -> bool {
        let Some(flags) = &self.page_flags else {
            return false;
        };
        let is_zero = || flags.is_zero_page(frame);
        let block = frame / ZERO_BLOCK;
        *self.zero_blocks.entry(block).or_insert_with(is_zero)
    }

    fn sum_up(&self, began: Instant, clock: &Clock) -> Count {
        let exact = self.fractions.exact();
        let mut holdings: Vec<Holding> = self
            .owners
            .iter()
            .filter_map(|(&account, owner)| {
                let sum = self.sums.get(owner).copied().unwrap_or_default();
                let whole = (sum.own + sum.more) * WHOLE_PAGE;
                let holding = Holding {
                    account,
                    processes: sum.processes,
                    resident_pages: sum.resident,
                    own_pages: sum.own,
                    exact_parts: whole + exact.get(owner).copied().unwrap_or(0),
                    shift_parts: whole + self.fractions.held(*owner),
                };
                (sum.processes > 0).then_some(holding)
            })
            .collect();
        holdings.sort_by_key(|it| (it.account.is_none(), it.account));
        Count {
            holdings,
            mapped_pages: self.met.len(),
            shared_pages: self.fractions.pages() as u64,
            facts: self.facts,
            took: began.elapsed(),
            work: clock.worked(),
        }
    }
}

/// Part of a page map: what is present, and how far it was read.
fn read(
    map: &Pagemap,
    proc: &Proc,
    from: u64,
    most: u64,
) -> (Vec<PageEntry>, Result<Walked, HostError>) {
    let mut entries = Vec::new();
    let walked = map.walk(proc, from, most, |entry| entries.push(entry));
    (entries, walked)
}
