// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread that carries out one order after the other for somebody who keeps watch over it: lost in one it is given
//! up, and ends when it is back.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use bursar_host::{Proc, sched};
use bursar_model::Pid;

use crate::barred::{Asker, Barred};
use crate::post::{Lost, Post, Sight, Vigil};

/// It, as whoever sends it has it. It ends with this.
pub struct Courier<I, O> {
    orders: SyncSender<I>,
    answers: Receiver<O>,
    post: Arc<Post>,
    vigil: Vigil,
    barred: Arc<Barred>,
    proc: Proc,
}

/// What was heard of it.
#[derive(Debug)]
pub enum Heard<O> {
    /// It is still at work.
    Nothing,
    /// It has carried out its order.
    Done(O),
    /// It is given up, at this process, which is barred.
    Lost(Pid),
    /// It has panicked.
    Broken,
}

impl<I: Send + 'static, O: Send + 'static> Courier<I, O> {
    /// Starts a thread of this name, which does `begin` first and `carry_out` for each order.
    ///
    /// # Errors
    /// When no thread can be started, or /proc not be opened.
    pub fn start(
        name: &str,
        barred: &Arc<Barred>,
        begin: impl FnOnce() + Send + 'static,
        mut carry_out: impl FnMut(I, &Asker) -> Result<O, Lost> + Send + 'static,
    ) -> std::io::Result<Self> {
        let asker = Asker::new(Arc::clone(barred));
        let post = Arc::clone(asker.post());
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
                    let Ok(answer) = carry_out(order, &asker) else {
                        asker.be_back();
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
            post,
            vigil: Vigil::over(number),
            barred: Arc::clone(barred),
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
        match self.vigil.look(&self.proc, &self.post, patience) {
            Sight::Lost(pid) => {
                self.barred.bar(&self.proc, &self.post, pid);
                Heard::Lost(pid)
            }
            Sight::Free | Sight::Asking(_) => Heard::Nothing,
        }
    }
}

impl<I, O> std::fmt::Debug for Courier<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Courier");
        shown.field("vigil", &self.vigil).finish_non_exhaustive()
    }
}
