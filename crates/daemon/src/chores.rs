// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What takes long and nobody waits for: telling users on their terminals, the last defence. A thread
//! of its own with a bounded list; what does not fit is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use bursar_host::{Proc, Terminals};
use bursar_model::Uid;
use bursar_reap::{Barred, Envoy};

use crate::defence::Defence;
use crate::scope::Payers;

/// Chores that may wait.
const WAITING: usize = 256;

#[derive(Debug)]
enum Chore {
    Tell { uids: Vec<Uid>, text: String },
    Defend(Box<Payers>),
    StandDown,
}

/// The thread that does them.
#[derive(Debug)]
pub(crate) struct Chores {
    list: Option<SyncSender<Chore>>,
    thread: Option<JoinHandle<()>>,
    dropped: Arc<AtomicU64>,
    tells: bool,
}

impl Chores {
    /// `tells`: write to terminals. `raised`: the oom_score_adj of the last defence, if there is one.
    pub(crate) fn start(tells: bool, raised: Option<i16>, barred: Arc<Barred>) -> Result<Self> {
        let (list, inbox) = sync_channel(WAITING);
        let proc = Proc::host().context("open /proc")?;
        let envoy = Envoy::new("chores-envoy", barred).context("open /proc")?;
        let envoy = envoy.ready().context("start the thread that asks for it")?;
        let thread = std::thread::Builder::new()
            .name("chores".to_owned())
            .spawn(move || work(&inbox, &proc, envoy, raised.map(Defence::new)))
            .context("start the thread for chores")?;
        let dropped = Arc::default();
        Ok(Self {
            list: Some(list),
            thread: Some(thread),
            dropped,
            tells,
        })
    }

    /// Writes a line to the terminals of these users.
    pub(crate) fn tell(&self, uids: Vec<Uid>, text: String) {
        if self.tells {
            self.add(Chore::Tell { uids, text });
        }
    }

    /// Looks at the last defence of all processes.
    pub(crate) fn defend(&self, payers: Payers) {
        self.add(Chore::Defend(Box::new(payers)));
    }

    /// Puts everything back as it was.
    pub(crate) fn stand_down(&self) {
        self.add(Chore::StandDown);
    }

    fn add(&self, chore: Chore) {
        let is_taken = self
            .list
            .as_ref()
            .is_some_and(|list| list.try_send(chore).is_ok());
        if !is_taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Chores that did not fit.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Does what is still to be done, and ends.
    pub(crate) fn finish(mut self) {
        self.list = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(inbox: &Receiver<Chore>, proc: &Proc, mut envoy: Envoy, mut defence: Option<Defence>) {
    let terminals = Terminals::host(proc);
    for chore in inbox {
        match chore {
            Chore::Tell { uids, text } => {
                for uid in uids {
                    match terminals.tell(uid, &text, &mut envoy) {
                        Ok(told) => tracing::debug!(
                            uid = uid.get(),
                            written = told.written,
                            failed = told.failed,
                            "user told"
                        ),
                        Err(error) => {
                            tracing::warn!(uid = uid.get(), %error, "a user could not be told")
                        }
                    }
                }
            }
            Chore::Defend(payers) => {
                if let Some(defence) = &mut defence {
                    let helpless = defence.review(proc, &payers, &mut envoy);
                    if helpless > 0 {
                        tracing::warn!(
                            processes = helpless,
                            "oom_score_adj could not be changed: the last defence does not cover them"
                        );
                    }
                }
            }
            Chore::StandDown => {
                if let Some(defence) = &mut defence {
                    defence.stand_down(proc, &mut envoy);
                }
            }
        }
    }
}
