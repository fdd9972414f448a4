// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compacts nodes in a thread of its own: the kernel does it synchronously and may take seconds (memoptimizer
//! does it in its only thread and is blind meanwhile). One at a time;
//! a node that gained nothing is left alone for longer and longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::Paths;

/// After a run that gained nothing, nanoseconds; doubled each time.
const FIRST_PAUSE_NS: u64 = 10_000_000_000;
const LONGEST_PAUSE_NS: u64 = 600_000_000_000;

/// The thread, and when it may work again.
#[derive(Debug)]
pub(crate) struct Compactor {
    orders: Option<SyncSender<u16>>,
    thread: Option<JoinHandle<()>>,
    is_busy: Arc<AtomicBool>,
    errno: Arc<AtomicI32>,
    pause_ns: u64,
    not_before_ns: u64,
    /// Whole blocks before the run under way, pages.
    usable_before: Option<u64>,
    /// Runs so far.
    pub(crate) runs: u64,
}

impl Compactor {
    /// Starts the thread; it sleeps until it is asked.
    ///
    /// # Errors
    /// When there is no room for another thread.
    pub(crate) fn start(paths: &Paths) -> std::io::Result<Self> {
        let (orders, inbox) = sync_channel(1);
        let (is_busy, errno) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicI32::new(0)),
        );
        let nodes = paths.sys.join("devices/system/node");
        let (busy, failed) = (is_busy.clone(), errno.clone());
        let thread = bursar_host::thread::spawn("compactor", move || {
            work(&inbox, &nodes, &busy, &failed);
        })?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            is_busy,
            errno,
            pause_ns: FIRST_PAUSE_NS,
            not_before_ns: 0,
            usable_before: None,
            runs: 0,
        })
    }

    /// Asks for a node to be compacted. `usable`: free pages in whole blocks of the order wanted.
    /// `Ok(false)`: not now.
    ///
    /// # Errors
    /// What the kernel answered to the last order, as an errno.
    pub(crate) fn compact(&mut self, node: u16, usable: u64, now_ns: u64) -> Result<bool, i32> {
        if self.is_busy.load(Ordering::Acquire) {
            return Ok(false);
        }
        if let Some(before) = self.usable_before.take() {
            // A sixteenth more is something gained.
            if usable > before.saturating_add(before / 16) {
                self.pause_ns = FIRST_PAUSE_NS;
            } else {
                self.pause_ns = self.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
            }
        }
        if now_ns < self.not_before_ns {
            return Ok(false);
        }
        let errno = self.errno.swap(0, Ordering::AcqRel);
        if errno != 0 {
            self.not_before_ns = now_ns.saturating_add(LONGEST_PAUSE_NS);
            return Err(errno);
        }
        self.is_busy.store(true, Ordering::Release);
        let is_taken = self
            .orders
            .as_ref()
            .is_some_and(|orders| orders.try_send(node).is_ok());
        if is_taken {
            self.runs = self.runs.saturating_add(1);
            self.usable_before = Some(usable);
            self.not_before_ns = now_ns.saturating_add(self.pause_ns);
        } else {
            self.is_busy.store(false, Ordering::Release);
        }
        Ok(is_taken)
    }
}

impl Drop for Compactor {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(inbox: &Receiver<u16>, nodes: &Path, busy: &AtomicBool, failed: &AtomicI32) {
    for node in inbox {
        let path: PathBuf = nodes.join(format!("node{node}/compact"));
        if let Err(error) = std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"1"))
        {
            failed.store(
                error.raw_os_error().unwrap_or(libc_eio()),
                Ordering::Release,
            );
        }
        busy.store(false, Ordering::Release);
    }
}

const fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}
