// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One scan: what of everything that runs, is open, mapped or dirty is on whose bill.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use bursar_kernel::{DirtyMode, SeenFile, SeenKind, SeenTask};
use bursar_model::{AccountId, How, Resource, Unit};
use bursar_policy::{Objects, dcachesize, kmemsize};

use super::resource_scanner::Scan;
use crate::backend::Backend;
use crate::dirty;
use crate::payers::Payers;
use crate::physpages::Finished;

const NOBODY_ASKED: &str =
    "dirty pages are counted from the moment somebody first asks for them: bursar dirty";
const CLEANING_UNSEEN: &str =
    "nothing tells when a page becomes clean; bursar dirty shows how many became dirty";

/// What an account holds as of a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    objects: Objects,
    /// Resident pages, each mapping in full, and swapped ones.
    resident: u64,
    swapped: u64,
    rows: BTreeMap<Resource, u64>,
}

/// A scan, by account.
#[derive(Debug)]
pub(super) struct Snapshot {
    scan: Arc<Scan>,
    /// With what the count of mapped pages adds.
    accounts: BTreeMap<AccountId, Held>,
    /// The last count of mapped pages before it.
    count: Option<Arc<Finished>>,
    /// Whether shared pages are split as that count found them.
    is_counted: bool,
    /// Why dirty pages are not known.
    dirty_unknown: Option<&'static str>,
}

impl Held {
    pub(super) fn add(&mut self, resource: Resource, more: u64) {
        let row = self.rows.entry(resource).or_default();
        *row = row.saturating_add(more);
    }
}

impl Snapshot {
    /// Of what was found. `count` is the last one of mapped pages.
    pub(super) fn of(
        scan: Arc<Scan>,
        backend: &mut dyn Backend,
        payers: &Payers,
        count: Option<Arc<Finished>>,
    ) -> Result<Self> {
        let mut snapshot = Self {
            accounts: scan.accounts.clone(),
            is_counted: count.as_ref().is_some_and(|it| it.is_recent()),
            scan,
            count,
            dirty_unknown: None,
        };
        snapshot.split_pages();
        snapshot.add_dirty(backend, payers)?;
        Ok(snapshot)
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

    fn add_dirty(&mut self, backend: &mut dyn Backend, payers: &Payers) -> Result<()> {
        let Some(pages) = backend.dirty_pages_begun()? else {
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

    /// What was found.
    pub(super) fn scan(&self) -> &Arc<Scan> {
        &self.scan
    }

    /// Whether it went by this count of mapped pages.
    pub(super) fn is_by(&self, count: Option<&Arc<Finished>>) -> bool {
        match (&self.count, count) {
            (Some(own), Some(last)) => Arc::ptr_eq(own, last),
            (None, None) => true,
            _ => false,
        }
    }

    /// It did not see everything.
    pub(super) fn is_cut(&self) -> bool {
        self.scan.is_cut
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
    /// `is_new`: nobody has told of its address space yet.
    pub(super) fn add_task(&mut self, task: &SeenTask, is_new: bool) {
        self.add(Resource::Numproc, 1);
        self.objects.tasks = self.objects.tasks.saturating_add(1);
        let Some(space) = task.space.filter(|_| is_new) else {
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

    /// `is_new`: it is the first file of its inode.
    pub(super) fn add_file(&mut self, file: &SeenFile, is_new: bool) {
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
        if is_new {
            objects.inodes = objects.inodes.saturating_add(1);
        }
    }
}
