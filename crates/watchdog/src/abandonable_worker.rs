// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that carries out one order after the other, and is abandoned when it hangs in one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use bursar_host::{Proc, sched, thread};
use bursar_model::Pid;

use crate::blocklist::Blocklist;
use crate::guard::{Abandoned, Guard};
use crate::monitor::{Monitor, ThreadState};

/// The worker as its owner has it. The thread ends with this.
pub struct AbandonableWorker<I, O> {
    orders: SyncSender<I>,
    answers: Receiver<O>,
    monitor: Monitor,
    proc: Proc,
}

/// What became of an order.
#[derive(Debug)]
pub enum Outcome<O> {
    /// The worker is still at it; if it is in a call, it may be worth another check after so long.
    Pending(Option<Duration>),
    /// It is carried out.
    Done(O),
    /// The worker hung in a call to this process, which is blocked, and is abandoned.
    Abandoned(Pid),
    /// The worker has panicked, or the kernel has ended it.
    Panicked,
}

impl<I: Send + 'static, O: Send + 'static> AbandonableWorker<I, O> {
    /// Starts a thread of this name, which does `begin` first, `carry_out` for each order, and `notify` when its
    /// answer can be had.
    ///
    /// # Errors
    /// When no thread can be started, or /proc not be opened.
    pub fn start(
        name: &str,
        blocklist: &Arc<Blocklist>,
        begin: impl FnOnce() + Send + 'static,
        mut carry_out: impl FnMut(I, &Guard) -> Result<O, Abandoned> + Send + 'static,
        notify: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let guard = Guard::new(Arc::clone(blocklist));
        let (orders, received) = sync_channel(1);
        let (sender, answers) = sync_channel(1);
        let (monitors, monitor) = sync_channel(1);
        let proc = Proc::host().map_err(std::io::Error::other)?;
        thread::spawn(name, move || {
            begin();
            let _ = monitors.send(Monitor::of(sched::own_thread(), &guard));
            for order in received {
                let Ok(answer) = carry_out(order, &guard) else {
                    return;
                };
                if sender.send(answer).is_err() {
                    return;
                }
                notify();
            }
        })?;
        Ok(Self {
            orders,
            answers,
            monitor: monitor.recv().map_err(std::io::Error::other)?,
            proc,
        })
    }

    /// Gives it an order; false when it has panicked.
    pub fn send(&self, order: I) -> bool {
        self.orders.send(order).is_ok()
    }

    /// Waits for the answer for `span`. A worker that has hung in one call for `timeout` is abandoned. Does not return
    /// when the kernel has ended a thread of a supervised process ([`thread::check`]).
    pub fn wait(&mut self, span: Duration, timeout: Duration) -> Outcome<O> {
        match self.answers.recv_timeout(span) {
            Ok(answer) => return Outcome::Done(answer),
            Err(RecvTimeoutError::Disconnected) => return Outcome::Panicked,
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Who waits here does not come to where the end of a thread is heard of. Before 6.9 nobody hears of it.
        thread::check();
        if self.monitor.is_gone(&self.proc) {
            return Outcome::Panicked;
        }
        match self.monitor.check(&self.proc, timeout) {
            ThreadState::Abandoned(pid) => Outcome::Abandoned(pid),
            ThreadState::InCall(left) => Outcome::Pending(Some(left)),
            ThreadState::Idle => Outcome::Pending(None),
        }
    }
}

impl<I, O> std::fmt::Debug for AbandonableWorker<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AbandonableWorker")
            .field("monitor", &self.monitor)
            .finish_non_exhaustive()
    }
}
