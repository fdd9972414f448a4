// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frees what a burst will need before it comes, through the root cgroup's `memory.reclaim` (5.19): a
//! second hand beside kswapd, and nothing to put back afterwards. In a thread of its own, for the kernel
//! reclaims before the write returns.
//!
//! File pages only: where the kernel takes `swappiness=0` (6.9) it is told so, where it does not and
//! there is swap, we do not reclaim.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::io::Errno;

use crate::Paths;
use crate::knob::Digits;

/// Where cgroup v2 may be mounted, below /sys.
const MOUNTS: [&str; 2] = [
    "fs/cgroup/memory.reclaim",
    "fs/cgroup/unified/memory.reclaim",
];
/// So many failures in a row end it: there is nothing to be had this way.
const MAX_FAILURES: u32 = 50;

/// What the thread says of itself.
#[derive(Debug, Default)]
struct Shared {
    is_busy: AtomicBool,
    /// In a row.
    failures: AtomicU32,
    /// The fastest order since somebody asked, bytes a second; 0: none was carried out.
    rate: AtomicU64,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    orders: Option<SyncSender<u64>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// Bytes asked for so far.
    pub(crate) asked_bytes: u64,
}

impl Reclaimer {
    /// The file that it writes to; `None` where the kernel has none.
    pub(crate) fn file(paths: &Paths) -> Option<PathBuf> {
        let mut paths = MOUNTS.iter().map(|it| paths.sys.join(it));
        paths.find(|path| path.exists())
    }

    /// Starts the thread; it sleeps until it is asked. `None` where the kernel has no such file, or
    /// might swap instead.
    pub(crate) fn start(paths: &Paths, has_swap: bool) -> io::Result<Option<Self>> {
        let Some(path) = Self::file(paths) else {
            return Ok(None);
        };
        let (orders, inbox) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = bursar_host::thread::spawn("reclaimer", move || {
            work(&inbox, &path, has_swap, &theirs);
        })?;
        Ok(Some(Self {
            orders: Some(orders),
            thread: Some(thread),
            shared,
            asked_bytes: 0,
        }))
    }

    /// Whether it still gets anything.
    pub(crate) fn is_useful(&self) -> bool {
        self.shared.failures.load(Ordering::Acquire) < MAX_FAILURES
    }

    /// Asks for so much; `false`: not now, the last order is still being carried out.
    pub(crate) fn reclaim(&mut self, bytes: u64) -> bool {
        if self.shared.is_busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let is_taken = self
            .orders
            .as_ref()
            .is_some_and(|orders| orders.try_send(bytes).is_ok());
        if is_taken {
            self.asked_bytes = self.asked_bytes.saturating_add(bytes);
        } else {
            self.shared.is_busy.store(false, Ordering::Release);
        }
        is_taken
    }

    /// How fast memory came, in the fastest order since this was asked last, bytes a second.
    pub(crate) fn take_rate(&self) -> Option<u64> {
        Some(self.shared.rate.swap(0, Ordering::AcqRel)).filter(|&rate| rate > 0)
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(inbox: &Receiver<u64>, path: &Path, has_swap: bool, shared: &Shared) {
    let mut spares_anonymous = true;
    for bytes in inbox {
        let began = Instant::now();
        let mut done = ask(path, bytes, spares_anonymous);
        if spares_anonymous && !has_swap && is_errno(&done, Errno::INVAL) {
            spares_anonymous = false;
            done = ask(path, bytes, false);
        }
        // EAGAIN: something was freed, though not all of it.
        if done.is_ok() || is_errno(&done, Errno::AGAIN) {
            shared.failures.store(0, Ordering::Release);
        } else {
            shared.failures.fetch_add(1, Ordering::AcqRel);
        }
        if done.is_ok() {
            let nanoseconds = began.elapsed().as_nanos().max(1);
            let rate = u128::from(bytes) * 1_000_000_000 / nanoseconds;
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            shared.rate.fetch_max(rate, Ordering::AcqRel);
        }
        shared.is_busy.store(false, Ordering::Release);
    }
}

fn is_errno(done: &io::Result<()>, errno: Errno) -> bool {
    matches!(done, Err(error) if Errno::from_io_error(error) == Some(errno))
}

fn ask(path: &Path, bytes: u64, spares_anonymous: bool) -> io::Result<()> {
    let digits = Digits::of(i64::try_from(bytes).unwrap_or(i64::MAX));
    let mut line = [0_u8; 48];
    let mut room = &mut line[..];
    room.write_all(digits.bytes())?;
    if spares_anonymous {
        room.write_all(b" swappiness=0")?;
    }
    let length = 48 - room.len();
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(line.get(..length).unwrap_or_default())
}
