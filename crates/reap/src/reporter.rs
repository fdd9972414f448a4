// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finishes reports at leisure: who holds the shared memory that a victim left behind takes a look at
//! every process. A thread of its own at normal priority.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bursar_host::{Proc, SharedMemory, sched};
use bursar_model::{Bytes, Pid};

use crate::report::{News, Report};
use crate::shared_mm;
use crate::supervisor::Supervised;
use crate::waker::Waker;
use bursar_watchdog::Abandoned;
use bursar_watchdog::{Blocklist, Guard};

/// Less shared memory than this is not looked for.
const WORTH_A_LOOK: Bytes = Bytes::from_mib(1);
/// Reports waiting for a look; what does not fit goes out without one.
const WAITING: usize = 256;

pub(crate) type Outbox = Arc<dyn Fn(News) + Send + Sync>;
type Queue = Arc<Mutex<Receiver<(Report, Shared)>>>;

/// What a report may still lack.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pieces: Vec<SharedMemory>,
    pub(crate) bytes: Bytes,
}

/// Where reports go.
#[derive(Clone)]
pub(crate) struct Reporter {
    sender: SyncSender<(Report, Shared)>,
    queue: Queue,
    outbox: Outbox,
    waker: Waker,
}

/// One reporter thread.
#[derive(Debug)]
pub(crate) struct ReporterThread {
    pub(crate) guard: Guard,
    /// Who keeps watch hears from it: to look at the reporter, too.
    waker: Waker,
    /// As it is now, while the thread looks for what it lacks.
    report: Mutex<Option<Report>>,
}

impl Reporter {
    pub(crate) fn new(outbox: Outbox, waker: Waker) -> Self {
        let (sender, queue) = sync_channel(WAITING);
        Self {
            sender,
            queue: Arc::new(Mutex::new(queue)),
            outbox,
            waker,
        }
    }

    /// Has a thread sit down; its number.
    pub(crate) fn cpu_slot(
        &self,
        blocklist: &Arc<Blocklist>,
    ) -> std::io::Result<(Arc<ReporterThread>, Pid)> {
        let reporter_thread = Arc::new(ReporterThread {
            guard: Guard::new(Arc::clone(blocklist)),
            waker: self.waker.clone(),
            report: Mutex::default(),
        });
        let (own, queue, outbox) = (
            Arc::clone(&reporter_thread),
            Arc::clone(&self.queue),
            Arc::clone(&self.outbox),
        );
        let (number, its_number) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("reap-reporter".to_owned())
            .spawn(move || {
                let thread = sched::own_thread();
                // Who has a lost one's place taken is the controller.
                if let Some(sched::Class::RealTime(_)) = sched::class(thread) {
                    let _ = sched::set_class(thread, sched::Class::Fair(0));
                }
                let _ = number.send(thread);
                if let Err(Abandoned) = own.work(&queue, &outbox) {}
            })?;
        let thread = its_number.recv().map_err(std::io::Error::other)?;
        Ok((reporter_thread, thread))
    }

    pub(crate) fn tell(&self, news: News) {
        (self.outbox)(news);
    }

    pub(crate) fn file(&self, report: Report, shared: Option<Shared>) {
        match shared.filter(|it| it.bytes >= WORTH_A_LOOK) {
            Some(shared) => {
                if let Err(error) = self.sender.try_send((report, shared)) {
                    let (std::sync::mpsc::TrySendError::Full((report, _))
                    | std::sync::mpsc::TrySendError::Disconnected((report, _))) = error;
                    self.tell(News::Settled(Box::new(report)));
                }
            }
            None => self.tell(News::Settled(Box::new(report))),
        }
    }
}

impl ReporterThread {
    fn work(
        &self,
        queue: &Mutex<Receiver<(Report, Shared)>>,
        outbox: &Outbox,
    ) -> Result<(), Abandoned> {
        let proc = Proc::host().ok();
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((report, shared)) = next else {
                return Ok(());
            };
            let victim = report.pid;
            self.put(Some(report));
            self.waker.wake();
            let stays = match &proc {
                Some(proc) => {
                    shared_mm::what_stays(proc, &shared.pieces, shared.bytes, victim, &self.guard)?
                }
                None => None,
            };
            if let Some(mut report) = self.put(None) {
                report.stays = stays;
                outbox(News::Settled(Box::new(report)));
            }
        }
    }

    /// Takes the report off a lost one's hands.
    pub(crate) fn take(&self) -> Option<Report> {
        self.put(None)
    }

    fn put(&self, report: Option<Report>) -> Option<Report> {
        let mut own = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut own, report)
    }
}

impl Supervised for ReporterThread {
    fn is_busy(&self) -> bool {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.is_some()
    }
}
