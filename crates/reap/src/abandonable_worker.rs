// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that carries out one order after the other for somebody who keeps watch over it: lost in one it is given
//! up, and ends when it is back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use bursar_host::{Proc, sched};
use bursar_model::Pid;

use crate::blocklist::{Blocklist, Guard};
use crate::heartbeat::{Heartbeat, Lost, Monitor, ThreadState};

/// It, as whoever sends it has it. It ends with this.
pub struct AbandonableWorker<I, O> {
    orders: SyncSender<I>,
    answers: Receiver<O>,
    heartbeat: Arc<Heartbeat>,
    monitor: Monitor,
    blocklist: Arc<Blocklist>,
    proc: Proc,
}

/// What was heard of it.
#[derive(Debug)]
pub enum Heard<O> {
    /// It is still at work.
    Nothing,
    /// It has carried out its order.
    Done(O),
    /// It is given up, at this process, which is blocklist.
    Lost(Pid),
    /// It has panicked.
    Broken,
}

impl<I: Send + 'static, O: Send + 'static> AbandonableWorker<I, O> {
    /// Starts a thread of this name, which does `begin` first and `carry_out` for each order.
    ///
    /// # Errors
    /// When no thread can be started, or /proc not be opened.
    pub fn start(
        name: &str,
        blocklist: &Arc<Blocklist>,
        begin: impl FnOnce() + Send + 'static,
        mut carry_out: impl FnMut(I, &Guard) -> Result<O, Lost> + Send + 'static,
    ) -> std::io::Result<Self> {
        let guard = Guard::new(Arc::clone(blocklist));
        let heartbeat = Arc::clone(guard.heartbeat());
        let (orders, received) = sync_channel(1);
        let (sender, answers) = sync_channel(1);
        let (number, its_number) = sync_channel(1);
        let proc = Proc::host().map_err(std::io::Error::other)?;
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                begin();
                let _ = number.send(sched::own_thread());
                for order in received {
                    let Ok(answer) = carry_out(order, &guard) else {
                        guard.report_back();
                        return;
                    };
                    if sender.send(answer).is_err() {
                        return;
                    }
                }
            })?;
        let number = its_number.recv().map_err(std::io::Error::other)?;
        Ok(Self {
            orders,
            answers,
            heartbeat,
            monitor: Monitor::over(number),
            blocklist: Arc::clone(blocklist),
            proc,
        })
    }

    /// Sends it off; false when it has panicked.
    pub fn send(&self, order: I) -> bool {
        self.orders.send(order).is_ok()
    }

    /// Waits for `span`. Having slept at one process for `patience` it is lost.
    pub fn hear(&mut self, span: Duration, patience: Duration) -> Heard<O> {
        match self.answers.recv_timeout(span) {
            Ok(answer) => return Heard::Done(answer),
            Err(RecvTimeoutError::Disconnected) => return Heard::Broken,
            Err(RecvTimeoutError::Timeout) => {}
        }
        match self.monitor.look(&self.proc, &self.heartbeat, patience) {
            ThreadState::Lost(pid) => {
                self.blocklist.block(&self.proc, &self.heartbeat, pid);
                Heard::Lost(pid)
            }
            ThreadState::Idle | ThreadState::Waiting(_) => Heard::Nothing,
        }
    }
}

impl<I, O> std::fmt::Debug for AbandonableWorker<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("AbandonableWorker");
        shown
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
