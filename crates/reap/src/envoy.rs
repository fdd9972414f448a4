// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks processes what they can keep whoever asks waiting with, in a thread of its own: one that is lost at a
//! process is given up, and another one goes on with the next process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bursar_host::{Ask, HostError, Proc, sched};
use bursar_model::Pid;

use crate::barred::{Asker, Barred};
use crate::post::{Lost, Post, Sight, Vigil};

/// Whoever sleeps so long at one process, without a moment of work and for no signal, is lost there.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between two looks at the thread.
const LOOK: Duration = Duration::from_millis(20);

type Errand = Box<dyn FnOnce(&Proc, &Asker) -> Result<(), Lost> + Send>;

/// Whom to send. The thread is started when somebody is asked for the first time, and ends with the envoy.
#[derive(Debug)]
pub struct Envoy {
    name: &'static str,
    patience: Duration,
    barred: Arc<Barred>,
    proc: Proc,
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    errands: SyncSender<Errand>,
    done: Receiver<()>,
    post: Arc<Post>,
    vigil: Vigil,
}

/// One question to many.
struct Round<T, Q> {
    pids: Vec<Pid>,
    question: Q,
    /// How many of them have been begun with.
    begun: AtomicUsize,
    answers: Mutex<Vec<(Pid, T)>>,
}

/// How an errand ended.
enum End {
    Done,
    Lost(Pid),
    /// It has panicked.
    Broken,
}

impl Envoy {
    /// `name` is the thread's.
    ///
    /// # Errors
    /// When /proc cannot be opened.
    pub fn new(name: &'static str, barred: Arc<Barred>) -> Result<Self, HostError> {
        Ok(Self {
            name,
            patience: PATIENCE,
            barred,
            proc: Proc::host()?,
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

    fn start(&self) -> std::io::Result<Thread> {
        let asker = Asker::new(Arc::clone(&self.barred));
        let post = Arc::clone(asker.post());
        let (errands, received) = sync_channel::<Errand>(1);
        let (sender, done) = sync_channel(1);
        let (number, its_number) = sync_channel(1);
        let proc = Proc::host().map_err(std::io::Error::other)?;
        std::thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(move || {
                let _ = number.send(sched::own_thread());
                for errand in received {
                    if errand(&proc, &asker).is_err() {
                        asker.be_back();
                        return;
                    }
                    if sender.send(()).is_err() {
                        return;
                    }
                }
            })?;
        let number = its_number.recv().map_err(std::io::Error::other)?;
        Ok(Thread {
            errands,
            done,
            post,
            vigil: Vigil::over(number),
        })
    }
}

impl Ask for Envoy {
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
            let errand: Errand = Box::new(move |proc, asker| its.go_on(proc, asker));
            if thread.errands.send(errand).is_err() {
                continue;
            }
            match thread.wait(&self.proc, self.patience) {
                End::Done => self.thread = Some(thread),
                End::Lost(pid) => self.barred.bar(&self.proc, &thread.post, pid),
                End::Broken => {}
            }
        }
        std::mem::take(&mut round.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Thread {
    fn wait(&mut self, proc: &Proc, patience: Duration) -> End {
        loop {
            match self.done.recv_timeout(LOOK) {
                Ok(()) => return End::Done,
                Err(RecvTimeoutError::Disconnected) => return End::Broken,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Sight::Lost(pid) = self.vigil.look(proc, &self.post, patience) {
                return End::Lost(pid);
            }
        }
    }
}

impl<T, Q: Fn(&Proc, Pid) -> T> Round<T, Q> {
    /// The place of the next one, and who it is.
    fn next(&self) -> Option<(usize, Pid)> {
        let place = self.begun.load(Ordering::Acquire);
        self.pids.get(place).map(|&pid| (place, pid))
    }

    fn go_on(&self, proc: &Proc, asker: &Asker) -> Result<(), Lost> {
        while let Some((place, pid)) = self.next() {
            self.begun.store(place.saturating_add(1), Ordering::Release);
            // Whoever comes back after he was given up has nothing to say any more.
            if let Some(answer) = asker.ask(proc, pid, || (self.question)(proc, pid))? {
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.push((pid, answer));
            }
        }
        Ok(())
    }
}
