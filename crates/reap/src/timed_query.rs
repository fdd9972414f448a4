// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks processes what they can keep whoever asks waiting with, in a thread of its own: one that is lost at a
//! process is given up, and another one goes on with the next process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bursar_host::{HostError, Proc, ProcessQuery};
use bursar_model::Pid;

use crate::abandonable_worker::{AbandonableWorker, Heard};
use crate::blocklist::{Blocklist, Guard};
use crate::heartbeat::Lost;

/// Whoever sleeps so long at one process, without a moment of work and for no signal, is lost there.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two looks at the thread.
const LOOK: Duration = Duration::from_millis(20);

type Errand = Box<dyn FnOnce(&Proc, &Guard) -> Result<(), Lost> + Send>;

/// The queries of one thread. The thread is started when somebody is asked for the first time, and ends with the query.
#[derive(Debug)]
pub struct TimedQuery {
    name: &'static str,
    patience: Duration,
    blocklist: Arc<Blocklist>,
    proc: Arc<Proc>,
    thread: Option<AbandonableWorker<Errand, ()>>,
}

/// One question to many.
struct Round<T, Q> {
    pids: Vec<Pid>,
    question: Q,
    /// How many of them have been begun with.
    begun: AtomicUsize,
    answers: Mutex<Vec<(Pid, T)>>,
}

impl TimedQuery {
    /// `name` is the thread's.
    ///
    /// # Errors
    /// When /proc cannot be opened.
    pub fn new(name: &'static str, blocklist: Arc<Blocklist>) -> Result<Self, HostError> {
        Ok(Self {
            name,
            patience: PATIENCE,
            blocklist,
            proc: Arc::new(Proc::host()?),
            thread: None,
        })
    }

    /// The same with another patience.
    #[must_use]
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Has its thread started now: later there may be no memory for one.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ready(mut self) -> std::io::Result<Self> {
        self.thread = Some(self.start()?);
        Ok(self)
    }

    fn start(&self) -> std::io::Result<AbandonableWorker<Errand, ()>> {
        let proc = Arc::clone(&self.proc);
        let carry_out = move |errand: Errand, guard: &Guard| errand(&proc, guard);
        AbandonableWorker::start(self.name, &self.blocklist, || {}, carry_out)
    }
}

impl ProcessQuery for TimedQuery {
    fn ask_each<T, Q>(&mut self, pids: Vec<Pid>, question: Q) -> Vec<(Pid, T)>
    where
        T: Send + 'static,
        Q: Fn(&Proc, Pid) -> T + Send + Sync + 'static,
    {
        let round = Arc::new(Round {
            pids,
            question,
            begun: AtomicUsize::new(0),
            answers: Mutex::default(),
        });
        while round.next().is_some() {
            let mut thread = match self.thread.take().map_or_else(|| self.start(), Ok) {
                Ok(thread) => thread,
                Err(error) => {
                    tracing::error!(%error, thread = self.name, "cannot be started: processes are not asked");
                    break;
                }
            };
            let its = Arc::clone(&round);
            let errand: Errand = Box::new(move |proc, guard| its.go_on(proc, guard));
            // Lost or broken it is not sent again.
            if thread.send(errand) && is_back(&mut thread, self.patience) {
                self.thread = Some(thread);
            }
        }
        std::mem::take(&mut round.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_back(thread: &mut AbandonableWorker<Errand, ()>, patience: Duration) -> bool {
    loop {
        match thread.hear(LOOK, patience) {
            Heard::Nothing => {}
            Heard::Done(()) => return true,
            Heard::Lost(_) | Heard::Broken => return false,
        }
    }
}

impl<T, Q: Fn(&Proc, Pid) -> T> Round<T, Q> {
    /// The place of the next one, and who it is.
    fn next(&self) -> Option<(usize, Pid)> {
        let place = self.begun.load(Ordering::Acquire);
        self.pids.get(place).map(|&pid| (place, pid))
    }

    fn go_on(&self, proc: &Proc, guard: &Guard) -> Result<(), Lost> {
        while let Some((place, pid)) = self.next() {
            self.begun.store(place.saturating_add(1), Ordering::Release);
            // Whoever comes back after he was given up has nothing to say any more.
            if let Some(answer) = guard.ask(proc, pid, || (self.question)(proc, pid))? {
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.push((pid, answer));
            }
        }
        Ok(())
    }
}
