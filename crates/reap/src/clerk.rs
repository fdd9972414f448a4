// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finishes reports at leisure: who holds the shared memory that a victim left behind takes a look at
//! every process. A thread of its own at normal priority.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bursar_host::{Proc, SharedMemory};
use bursar_model::Bytes;

use crate::report::{News, Report};
use crate::twin;

/// Less shared memory than this is not looked for.
const WORTH_A_LOOK: Bytes = Bytes::from_mib(1);
/// Reports waiting for a look; what does not fit goes out without one.
const WAITING: usize = 256;

pub(crate) type Outbox = Arc<dyn Fn(News) + Send + Sync>;

/// What a report may still lack.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pieces: Vec<SharedMemory>,
    pub(crate) bytes: Bytes,
}

/// Where reports go.
#[derive(Clone)]
pub(crate) struct Clerk {
    desk: SyncSender<(Report, Shared)>,
    outbox: Outbox,
}

impl Clerk {
    pub(crate) fn start(outbox: Outbox) -> std::io::Result<Self> {
        let (desk, inbox) = sync_channel(WAITING);
        let out = Arc::clone(&outbox);
        std::thread::Builder::new()
            .name("reap-clerk".to_owned())
            .spawn(move || work(&inbox, &out))?;
        Ok(Self { desk, outbox })
    }

    pub(crate) fn tell(&self, news: News) {
        (self.outbox)(news);
    }

    pub(crate) fn file(&self, report: Report, shared: Option<Shared>) {
        match shared.filter(|it| it.bytes >= WORTH_A_LOOK) {
            Some(shared) => {
                if let Err(error) = self.desk.try_send((report, shared)) {
                    let (std::sync::mpsc::TrySendError::Full((report, _))
                    | std::sync::mpsc::TrySendError::Disconnected((report, _))) = error;
                    self.tell(News::Settled(Box::new(report)));
                }
            }
            None => self.tell(News::Settled(Box::new(report))),
        }
    }
}

fn work(inbox: &Receiver<(Report, Shared)>, outbox: &Outbox) {
    let proc = Proc::host().ok();
    for (mut report, shared) in inbox {
        if let Some(proc) = &proc {
            report.stays = twin::what_stays(proc, &shared.pieces, shared.bytes, report.pid);
        }
        outbox(News::Settled(Box::new(report)));
    }
}
