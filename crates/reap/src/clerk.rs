// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finishes reports at leisure: who holds the shared memory that a victim left behind takes a look at
//! every process. A thread of its own at normal priority.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use bursar_host::{Proc, SharedMemory, sched};
use bursar_model::{Bytes, Pid};

use crate::barred::{Asker, Barred};
use crate::bell::Bell;
use crate::overseer::Worker;
use crate::post::Lost;
use crate::report::{News, Report};
use crate::twin;

/// Less shared memory than this is not looked for.
const WORTH_A_LOOK: Bytes = Bytes::from_mib(1);
/// Reports waiting for a look; what does not fit goes out without one.
const WAITING: usize = 256;

pub(crate) type Outbox = Arc<dyn Fn(News) + Send + Sync>;
type Desk = Arc<Mutex<Receiver<(Report, Shared)>>>;

/// What a report may still lack.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pieces: Vec<SharedMemory>,
    pub(crate) bytes: Bytes,
}

/// Where reports go.
#[derive(Clone)]
pub(crate) struct Clerk {
    sender: SyncSender<(Report, Shared)>,
    desk: Desk,
    outbox: Outbox,
    bell: Bell,
}

/// One thread at the desk.
#[derive(Debug)]
pub(crate) struct Scribe {
    pub(crate) asker: Asker,
    /// Who keeps watch hears from it: to look at the clerk, too.
    bell: Bell,
    /// As it is now, while the thread looks for what it lacks.
    report: Mutex<Option<Report>>,
}

impl Clerk {
    pub(crate) fn new(outbox: Outbox, bell: Bell) -> Self {
        let (sender, desk) = sync_channel(WAITING);
        Self {
            sender,
            desk: Arc::new(Mutex::new(desk)),
            outbox,
            bell,
        }
    }

    /// Has a thread sit down; its number.
    pub(crate) fn seat(&self, barred: &Arc<Barred>) -> std::io::Result<(Arc<Scribe>, Pid)> {
        let scribe = Arc::new(Scribe {
            asker: Asker::new(Arc::clone(barred)),
            bell: self.bell.clone(),
            report: Mutex::default(),
        });
        let (own, desk, outbox) = (
            Arc::clone(&scribe),
            Arc::clone(&self.desk),
            Arc::clone(&self.outbox),
        );
        let (number, its_number) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .name("reap-clerk".to_owned())
            .spawn(move || {
                let thread = sched::own_thread();
                // Who has a lost one's place taken is the pacer.
                if let Some(sched::Class::RealTime(_)) = sched::class(thread) {
                    let _ = sched::set_class(thread, sched::Class::Fair(0));
                }
                let _ = number.send(thread);
                if let Err(Lost) = own.work(&desk, &outbox) {
                    own.asker.be_back();
                }
            })?;
        let thread = its_number.recv().map_err(std::io::Error::other)?;
        Ok((scribe, thread))
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

impl Scribe {
    fn work(&self, desk: &Mutex<Receiver<(Report, Shared)>>, outbox: &Outbox) -> Result<(), Lost> {
        let proc = Proc::host().ok();
        loop {
            let next = desk.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((report, shared)) = next else {
                return Ok(());
            };
            let victim = report.pid;
            self.put(Some(report));
            self.bell.ring();
            let stays = match &proc {
                Some(proc) => {
                    twin::what_stays(proc, &shared.pieces, shared.bytes, victim, &self.asker)?
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

impl Worker for Scribe {
    fn asker(&self) -> &Asker {
        &self.asker
    }

    fn is_busy(&self) -> bool {
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.is_some()
    }
}
