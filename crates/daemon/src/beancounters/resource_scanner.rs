// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scans of all tasks and open files, made by a thread of their own when somebody asks: how long one takes is
//! for users to say, and nobody else waits for it. Nothing runs while nobody asks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bursar_host::{Cgroups, Proc, kernel_memory_of_slice};
use bursar_kernel::{ResourceIterator, Seen, SeenFile, SeenTask};
use bursar_model::{AccountId, Bytes, Resource, Uid, Unit};

use super::held::Held;
use crate::payers::Payers;

/// A scan so young is as good as another one: who asks in a loop does not keep us scanning …
const FRESH: Duration = Duration::from_secs(1);
/// … or so many times as long as it took: a fifth of a processor at most, whoever asks and how often.
const REST: u32 = 4;
/// So long a scan goes on: some millions of open files.
const MOST_TIME: Duration = Duration::from_secs(10);
/// So many files, and as many inodes, are told apart: what a scan needs of memory.
const MOST_FILES: usize = 1 << 20;

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) accounts: BTreeMap<AccountId, Held>,
    /// It did not see everything.
    pub(super) is_cut: bool,
    at: Instant,
    took: Duration,
}

impl Scan {
    /// Whether another one would hardly find anything else, or cost too much.
    pub(super) fn is_fresh(&self) -> bool {
        self.at.elapsed() < self.took.saturating_mul(REST).max(FRESH)
    }
}

#[derive(Debug)]
struct Order {
    iterator: Arc<ResourceIterator>,
    payers: Payers,
}

#[derive(Debug, Default)]
struct ScanState {
    is_scanning: bool,
    found: Option<Result<Scan>>,
}

#[derive(Debug, Default)]
struct Shown {
    state: Mutex<ScanState>,
    changed: Condvar,
}

/// Has scans made.
#[derive(Debug)]
pub(super) struct ResourceScanner {
    orders: SyncSender<Order>,
    shown: Arc<Shown>,
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, ScanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourceScanner {
    /// Starts the thread. It ends with this.
    pub(super) fn start() -> Result<Self> {
        let (orders, received) = sync_channel(1);
        let shown = Arc::new(Shown::default());
        let ours = Arc::clone(&shown);
        bursar_host::thread::spawn("resource-scan", move || work(&received, &ours))
            .context("start the thread that scans tasks and files")?;
        Ok(Self { orders, shown })
    }

    /// Begins a scan, unless one is under way or its finding has not been taken; returns whether it has.
    pub(super) fn begin(&self, iterator: Arc<ResourceIterator>, payers: &Payers) -> Result<bool> {
        let mut state = self.shown.lock();
        if state.is_scanning || state.found.is_some() {
            return Ok(false);
        }
        let payers = payers.clone();
        match self.orders.try_send(Order { iterator, payers }) {
            Ok(()) => state.is_scanning = true,
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                return Err(anyhow!("the thread that scans tasks and files is gone"));
            }
        }
        Ok(state.is_scanning)
    }

    /// What was found and not yet taken; of a scan under way that ends within `timeout`, too.
    pub(super) fn take(&self, timeout: Duration) -> Option<Result<Scan>> {
        let state = self.shown.lock();
        let waited = self
            .shown
            .changed
            .wait_timeout_while(state, timeout, |state| state.is_scanning);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.found.take()
    }
}

fn work(orders: &Receiver<Order>, shown: &Shown) {
    while let Ok(order) = orders.recv() {
        let found = scan(&order);
        crate::log::trim_memory();
        let mut state = shown.lock();
        state.is_scanning = false;
        state.found = Some(found);
        drop(state);
        shown.changed.notify_all();
    }
}

/// What was met so far.
struct Meeting<'a> {
    payers: &'a Payers,
    accounts: BTreeMap<AccountId, Held>,
    spaces: HashSet<u64>,
    users: HashSet<Uid>,
    namespaces: HashMap<Uid, Bytes>,
    files: HashSet<u64>,
    inodes: HashSet<u64>,
    is_cut: bool,
}

impl Meeting<'_> {
    fn of(&mut self, payer: impl Into<AccountId>) -> &mut Held {
        let account = self.payers.account_of(payer);
        self.accounts.entry(account).or_default()
    }

    fn meet_task(&mut self, task: &SeenTask) {
        let is_new = task
            .space
            .is_some_and(|space| self.spaces.insert(space.mark));
        self.of(task.payer).add_task(task, is_new);
        if self.users.insert(task.uid) {
            // The kernel counts these by user, whoever of his processes is asked.
            let held = self.of(task.uid);
            held.add(Resource::Numsiginfo, task.pending_signals);
        }
        // How large his are depends on which of them the process is in.
        let most = self.namespaces.entry(task.uid).or_default();
        *most = task.namespaces.max(*most);
    }

    fn meet_file(&mut self, file: &SeenFile) {
        self.is_cut |= file.is_cut;
        // One open file may have many descriptors, in many processes.
        if self.files.contains(&file.mark) {
            return;
        }
        if self.files.len() >= MOST_FILES {
            self.is_cut = true;
            return;
        }
        self.files.insert(file.mark);
        let is_new = file.inode != 0 && self.inodes.insert(file.inode);
        self.of(file.payer).add_file(file, is_new);
    }
}

fn scan(order: &Order) -> Result<Scan> {
    let began = Instant::now();
    let mut meeting = Meeting {
        payers: &order.payers,
        accounts: BTreeMap::new(),
        spaces: HashSet::new(),
        users: HashSet::new(),
        namespaces: HashMap::new(),
        files: HashSet::new(),
        inodes: HashSet::new(),
        is_cut: false,
    };
    let until = began.checked_add(MOST_TIME).unwrap_or(began);
    let is_late = order.iterator.iterate(until, |seen| match seen {
        Seen::Task(task) => meeting.meet_task(&task),
        Seen::File(file) => meeting.meet_file(&file),
    })?;
    for segment in Proc::host()?.segments()? {
        let pages = segment.size.get().div_ceil(Unit::PAGE_BYTES);
        meeting.of(segment.creator).add(Resource::Shmpages, pages);
    }
    for (uid, bytes) in mem::take(&mut meeting.namespaces) {
        meeting.of(uid).add_namespaces(bytes);
    }
    let unified = Cgroups::find().ok().and_then(|it| it.unified());
    if let Some((mount, _)) = unified {
        for (account, held) in &mut meeting.accounts {
            let user = account.uid();
            if let Some(bytes) = user.and_then(|uid| kernel_memory_of_slice(&mount, uid)) {
                held.set_kernel_figure(bytes);
            }
        }
    }
    Ok(Scan {
        accounts: meeting.accounts,
        is_cut: meeting.is_cut || is_late,
        at: Instant::now(),
        took: began.elapsed(),
    })
}
