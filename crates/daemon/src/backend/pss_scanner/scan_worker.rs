// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A place for one scan at a time, with its reader. A reader that hangs in a process is abandoned and the rest of the
//! scan given to another one; that process counts in full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bursar_kernel::{PssScan, PssScans, Slot};
use bursar_watchdog::Outcome;

use super::schedule::Cost;
use super::smaps_reader::{self, Order, SmapsReader, Wake};
use super::{Method, Reason};

/// A reader that sleeps for so long without a moment of work is lost.
const TIMEOUT: Duration = Duration::from_millis(400);

/// One place for a scan, and the thread that reads for it.
#[derive(Debug)]
pub(super) struct ScanWorker {
    place: u32,
    /// None where the last one was lost, or none was needed yet.
    reader: Option<SmapsReader>,
    scan: Option<Scan>,
}

/// A scan under way, or just ended.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) slot: Slot,
    pub(super) reason: Reason,
    pub(super) pss_scan: PssScan,
    order: Arc<Order>,
    began: Instant,
    pub(super) cost: Cost,
    pub(super) pages: u64,
    pub(super) has_lost: bool,
}

/// Whether a scan goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    UnderWay,
    Ended,
}

impl ScanWorker {
    pub(super) fn new(place: u32) -> Self {
        Self {
            place,
            reader: None,
            scan: None,
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.scan.is_some()
    }

    pub(super) fn reason(&self) -> Option<Reason> {
        self.scan.as_ref().map(|it| it.reason)
    }

    /// False: there is no such account any more.
    pub(super) fn begin(
        &mut self,
        slot: Slot,
        reason: Reason,
        pss_scans: &PssScans,
        method: &Arc<Method>,
        wake: &Wake,
    ) -> Result<bool> {
        let began = Instant::now();
        let Some(pss_scan) = pss_scans.begin(slot, self.place)? else {
            return Ok(false);
        };
        let takes_given_back = reason == Reason::Request;
        let order = Arc::new(Order::of(
            slot,
            pss_scans.sharers(&pss_scan),
            takes_given_back,
        ));
        self.scan = Some(Scan {
            slot,
            reason,
            pss_scan,
            order: Arc::clone(&order),
            began,
            cost: Cost::default(),
            pages: 0,
            has_lost: false,
        });
        self.send(order, pss_scans, method, wake)?;
        Ok(true)
    }

    fn send(
        &mut self,
        order: Arc<Order>,
        pss_scans: &PssScans,
        method: &Arc<Method>,
        wake: &Wake,
    ) -> Result<()> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => smaps_reader::start(pss_scans, method, Arc::clone(wake))?,
        };
        let is_sent = reader.send(order);
        self.reader = Some(reader);
        if !is_sent {
            bail!("the reader of a PSS scan is gone");
        }
        Ok(())
    }

    /// How far it is.
    pub(super) fn check(
        &mut self,
        pss_scans: &PssScans,
        method: &Arc<Method>,
        wake: &Wake,
    ) -> Result<Progress> {
        let (Some(scan), Some(reader)) = (&mut self.scan, &mut self.reader) else {
            return Ok(Progress::UnderWay);
        };
        match reader.wait(Duration::ZERO, TIMEOUT) {
            Outcome::Pending(_) => Ok(Progress::UnderWay),
            Outcome::Done(done) => {
                scan.cost.work += done.work;
                scan.cost.wall = scan.began.elapsed();
                scan.pages = scan.pages.saturating_add(done.pages);
                done.outcome.map(|()| Progress::Ended)
            }
            Outcome::Abandoned(_) => {
                self.reader = None;
                scan.has_lost = true;
                scan.cost.wall = scan.began.elapsed();
                let Some(rest) = scan.order.rest() else {
                    return Ok(Progress::Ended);
                };
                let rest = Arc::new(rest);
                scan.order = Arc::clone(&rest);
                self.send(rest, pss_scans, method, wake)?;
                Ok(Progress::UnderWay)
            }
            Outcome::Panicked => {
                self.reader = None;
                bail!("the reader of a PSS scan is gone")
            }
        }
    }

    /// What has ended; the place is free.
    pub(super) fn take(&mut self) -> Option<Scan> {
        self.scan.take()
    }

    /// What could not be ended. The kernel half gives it up by itself, after a while.
    pub(super) fn give_up(&mut self) -> Option<Slot> {
        self.reader = None;
        self.scan.take().map(|it| it.slot)
    }
}
