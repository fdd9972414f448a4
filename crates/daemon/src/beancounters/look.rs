// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One look: what of everything that runs, is open, mapped or dirty is on whose bill.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use bursar_host::Proc;
use bursar_kernel::{DirtyMode, SeenFile, SeenKind, SeenTask, Sight};
use bursar_model::{AccountId, How, Resource, Uid, Unit};
use bursar_policy::{Objects, dcachesize, kmemsize};

use crate::dirty;
use crate::governor::Governor;
use crate::physpages::Finished;
use crate::scope::Payers;

/// A look so young is as good as another one: who asks in a loop does not keep us looking.
const FRESH: Duration = Duration::from_secs(1);
const NOBODY_ASKED: &str =
    "dirty pages are counted from the moment somebody first asks for them: bursar dirty";
const CLEANING_UNSEEN: &str =
    "nothing tells when a page becomes clean; bursar dirty shows how many became dirty";

/// What an account holds as of a look.
#[derive(Debug, Clone, Default)]
struct Held {
    objects: Objects,
    /// Resident pages, each mapping in full, and swapped ones.
    resident: u64,
    swapped: u64,
    rows: BTreeMap<Resource, u64>,
}

/// A look, by account.
#[derive(Debug)]
pub(super) struct Look {
    at: Instant,
    accounts: BTreeMap<AccountId, Held>,
    /// It did not see everything.
    pub(super) is_cut: bool,
    /// The last count of mapped pages before it.
    count: Option<Arc<Finished>>,
    /// Whether shared pages are split as that count found them.
    is_counted: bool,
    /// Why dirty pages are not known.
    dirty_unknown: Option<&'static str>,
}

impl Held {
    fn add(&mut self, resource: Resource, more: u64) {
        let row = self.rows.entry(resource).or_default();
        *row = row.saturating_add(more);
    }
}

impl Look {
    /// Looks. `count` is the last one of mapped pages.
    pub(super) fn take(
        governor: &mut dyn Governor,
        payers: &Payers,
        count: Option<Arc<Finished>>,
    ) -> Result<Self> {
        let sight = governor.look()?;
        let mut look = Self {
            at: Instant::now(),
            accounts: BTreeMap::new(),
            is_cut: sight.is_cut,
            is_counted: count.as_ref().is_some_and(|it| it.is_recent()),
            count,
            dirty_unknown: None,
        };
        look.add_tasks(&sight, payers);
        look.add_files(&sight, payers);
        for segment in Proc::host()?.segments()? {
            let pages = segment.size.get().div_ceil(Unit::PAGE_BYTES);
            let held = look.of(segment.creator, payers);
            held.add(Resource::Shmpages, pages);
        }
        look.split_pages();
        look.add_dirty(governor, payers)?;
        Ok(look)
    }

    fn of(&mut self, uid: Uid, payers: &Payers) -> &mut Held {
        self.accounts.entry(payers.account_of(uid)).or_default()
    }

    /// Of pages that others map as well an account has what the last count gave it, or, where that was
    /// long ago, as much of its resident pages as then.
    fn split_pages(&mut self) {
        for (id, held) in &mut self.accounts {
            let count = self.count.as_ref().map(|it| &it.count);
            let holding = count.and_then(|it| it.of(*id));
            let pages = match holding {
                Some(holding) if self.is_counted => holding.exact_pages(),
                Some(holding) => holding.exact_of(held.resident),
                None if self.is_counted => 0,
                None => held.resident,
            };
            held.add(Resource::Physpages, pages);
            held.add(Resource::Oomguarpages, pages.saturating_add(held.swapped));
        }
    }

    fn add_dirty(&mut self, governor: &mut dyn Governor, payers: &Payers) -> Result<()> {
        let Some(pages) = governor.dirty_pages_begun()? else {
            self.dirty_unknown = Some(NOBODY_ASKED);
            return Ok(());
        };
        if pages.mode() != DirtyMode::Exact {
            self.dirty_unknown = Some(CLEANING_UNSEEN);
            return Ok(());
        }
        for (account, sum) in dirty::by_account(&pages.sums()?.0, payers) {
            if let Some(id) = account {
                let held = self.accounts.entry(id).or_default();
                held.add(Resource::Dirtypages, sum.dirty.get() / Unit::PAGE_BYTES);
            }
        }
        Ok(())
    }

    fn add_tasks(&mut self, sight: &Sight, payers: &Payers) {
        let mut spaces = HashSet::new();
        let mut users = HashSet::new();
        for task in &sight.tasks {
            let is_new = |mark: u64| spaces.insert(mark);
            self.of(task.payer, payers).add_task(task, is_new);
            if users.insert(task.uid) {
                // The kernel counts these by user, whoever of his processes is asked.
                let held = self.of(task.uid, payers);
                held.add(Resource::Numsiginfo, task.pending_signals);
            }
        }
    }

    fn add_files(&mut self, sight: &Sight, payers: &Payers) {
        let mut files = HashSet::new();
        let mut inodes = HashSet::new();
        for file in &sight.files {
            // One open file may have many descriptors, in many processes.
            if files.insert(file.mark) {
                let is_new = |inode: u64| inode != 0 && inodes.insert(inode);
                self.of(file.payer, payers).add_file(file, is_new);
            }
        }
    }

    /// Whether another one would hardly find anything else; `count` is the last one of mapped pages.
    pub(super) fn is_fresh(&self, count: Option<&Arc<Finished>>) -> bool {
        let is_same_count = match (&self.count, count) {
            (Some(own), Some(last)) => Arc::ptr_eq(own, last),
            (None, None) => true,
            _ => false,
        };
        self.at.elapsed() < FRESH && is_same_count
    }

    /// The accounts that it met.
    pub(super) fn accounts(&self) -> impl Iterator<Item = AccountId> + '_ {
        self.accounts.keys().copied()
    }

    /// How pages are known that several may map.
    pub(super) fn how_of_pages(&self) -> How {
        match self.is_counted {
            true => How::Sampled { every: None },
            false => How::Modelled,
        }
    }

    /// How dirty pages are known.
    pub(super) fn how_of_dirty(&self) -> How {
        match self.dirty_unknown {
            Some(why) => How::Unavailable(why.to_owned()),
            None => How::Exact,
        }
    }

    /// In the row's unit.
    pub(super) fn held(&self, id: AccountId, resource: Resource) -> u64 {
        let Some(held) = self.accounts.get(&id) else {
            return 0;
        };
        match resource {
            Resource::Kmemsize => kmemsize(&held.objects).get(),
            Resource::Dcachesize => dcachesize(&held.objects).get(),
            _ => held.rows.get(&resource).copied().unwrap_or(0),
        }
    }
}

impl Held {
    fn add_task(&mut self, task: &SeenTask, is_new: impl FnOnce(u64) -> bool) {
        self.add(Resource::Numproc, 1);
        self.objects.tasks = self.objects.tasks.saturating_add(1);
        let Some(space) = task.space.filter(|space| is_new(space.mark)) else {
            return;
        };
        self.resident = self.resident.saturating_add(space.resident.get());
        self.swapped = self.swapped.saturating_add(space.swapped.get());
        self.add(Resource::Privvmpages, space.private.get());
        self.add(Resource::Lockedpages, space.locked.get());
        let objects = &mut self.objects;
        objects.spaces = objects.spaces.saturating_add(1);
        objects.areas = objects.areas.saturating_add(space.areas);
        objects.tables = objects.tables.saturating_add(space.tables);
    }

    fn add_file(&mut self, file: &SeenFile, is_new: impl FnOnce(u64) -> bool) {
        self.add(Resource::Numfile, 1);
        self.add(Resource::Numflock, file.locks);
        let (sending, received) = (file.sending.get(), file.received.get());
        match file.kind {
            SeenKind::Tcp => {
                self.add(Resource::Numtcpsock, 1);
                self.add(Resource::Tcpsndbuf, sending);
                self.add(Resource::Tcprcvbuf, received);
            }
            SeenKind::Datagram | SeenKind::Socket => {
                self.add(Resource::Numothersock, 1);
                self.add(Resource::Othersockbuf, sending);
                if file.kind == SeenKind::Datagram {
                    self.add(Resource::Dgramrcvbuf, received);
                }
            }
            SeenKind::Terminal => self.add(Resource::Numpty, 1),
            SeenKind::Pipe | SeenKind::Other => {}
        }
        let objects = &mut self.objects;
        let count = match file.kind {
            SeenKind::Tcp => &mut objects.tcp,
            SeenKind::Datagram => &mut objects.datagram,
            SeenKind::Socket => &mut objects.other_sockets,
            SeenKind::Pipe => &mut objects.pipe_ends,
            SeenKind::Terminal | SeenKind::Other => &mut objects.files,
        };
        *count = count.saturating_add(1);
        if is_new(file.inode) {
            objects.inodes = objects.inodes.saturating_add(1);
        }
    }
}
