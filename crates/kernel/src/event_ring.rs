// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ring buffer of events, read.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;

use bursar_model::{AccountId, Measure, Nanos, Pages, Pid, Request, Resource, Trigger, Uid};
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};

use crate::abi::{self, event, event_kind, measure, request, trigger};
use crate::{Error, Slot};

/// A fact told by the kernel half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelEvent {
    /// What kind.
    pub kind: KernelEventKind,
    /// Which trigger was at work.
    pub trigger: Trigger,
    /// CLOCK_MONOTONIC.
    pub at: Nanos,
    /// The account.
    pub slot: Slot,
    /// Whose account.
    pub account: AccountId,
    /// The process concerned.
    pub pid: Pid,
    /// Its user.
    pub uid: Uid,
    /// Its command name: bytes that its user chose.
    pub comm: Vec<u8>,
    /// When the process began, CLOCK_BOOTTIME: tells it from a later one with the same pid.
    pub started: Nanos,
    /// Its number in pidfs (6.9 and later), which no other process has until the next boot.
    pub number: Option<NonZeroU64>,
    /// The number it has in its own PID namespace, if that is another one. Of victims.
    pub namespace_pid: Option<Pid>,
    /// The process under whose number the memory that they share was chosen, if that is another one. Of victims.
    pub shares_with: Option<Pid>,
    /// Held by living processes when the decision was made, the victim included.
    pub held: Pages,
    /// Held by processes killed before.
    pub dying: Pages,
    /// The limit then.
    pub limit: Option<Pages>,
    /// Whether the account was only observed: what is told would have been so.
    pub is_observed: bool,
    /// The notice level then.
    pub notice: Option<Pages>,
    /// What the victim held.
    pub victim: Pages,
    /// Of that, anonymous memory and swap: what its end gives back.
    pub victim_private: Pages,
    /// Kill: from the trigger to the signal. Freed: from the signal to the end of the memory.
    pub latency: Nanos,
    /// How many processes were weighed.
    pub candidates_met: u32,
    /// The largest of them, largest first.
    pub candidates: Vec<Weighed>,
    /// What was refused.
    pub refusal: Option<Refusal>,
    /// What a beancounter refused.
    pub bill: Option<BillRefusal>,
}

/// A request that a beancounter refused, in the row's own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BillRefusal {
    /// Which row.
    pub resource: Resource,
    /// Held then.
    pub held: u64,
    /// Asked for on top of it.
    pub asked: u64,
    /// The barrier then.
    pub barrier: u64,
    /// This refusal and those of the row since the last one told.
    pub count: u64,
}

/// A request that the gate refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What was asked for.
    pub request: Request,
    /// How many pages.
    pub pages: Pages,
    /// What was compared with the barrier.
    pub measure: Measure,
    /// The barrier then.
    pub barrier: Option<Pages>,
    /// Could be held without asking again then.
    pub committed: Pages,
    /// Granted in advance then.
    pub reserved: Pages,
    /// This refusal and those of the account since the last one told.
    pub count: u64,
}

/// A process that was weighed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// The process.
    pub pid: Pid,
    /// Its command name: bytes that its user chose.
    pub comm: Vec<u8>,
    /// What it held.
    pub pages: Pages,
    /// It goes after others, for the program that it runs.
    pub is_spared: bool,
}

/// Kinds of [`KernelEvent`] (abi.h enum event_kind).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelEventKind {
    /// Held rose over the notice level.
    Notice,
    /// A victim was sent SIGKILL.
    Kill,
    /// A victim was chosen in an account that is only observed: nothing was sent to it.
    WouldKill,
    /// A victim was chosen that the kernel half cannot signal from where it is: do it.
    KillAsked,
    /// Over the limit and nothing that may be killed.
    NoVictim,
    /// A killed process's address space is gone.
    Freed,
    /// A process is dying that the kernel half has not killed.
    Dying,
    /// Processes whose oom_score_adj is not what the limits want.
    OomScoreDue,
    /// The machine may be short of memory.
    Shortage,
    /// A request was refused; one a second and account is told.
    Refused,
    /// Over the limit by files that no kill would free; `victim` is what they hold.
    Files,
    /// More files than a timer may count: count them.
    CountFiles,
    /// No room for a process, and a timer that cannot meet it: a walk over all tasks is asked for.
    Unrecorded,
    /// An account is over a bound, and the event may not decide: run the killer.
    RunKiller,
    /// How much do the account's processes share? A PSS scan is asked for.
    PssScan,
    /// A beancounter refused; one a second, account and row is told.
    RowRefused,
    /// At a level that was asked for with [`crate::AccountTable::watch`].
    WatchReached,
}

impl KernelEventKind {
    /// Whether it tells what happened, which is to be recorded; the others ask for something.
    pub const fn is_recorded(self) -> bool {
        match self {
            Self::Notice
            | Self::Kill
            | Self::WouldKill
            | Self::KillAsked
            | Self::NoVictim
            | Self::Freed
            | Self::Refused
            | Self::Files
            | Self::RowRefused => true,
            Self::Dying
            | Self::OomScoreDue
            | Self::Shortage
            | Self::CountFiles
            | Self::Unrecorded
            | Self::RunKiller
            | Self::PssScan
            | Self::WatchReached => false,
        }
    }
}

/// The events, as they come.
pub struct EventRing {
    ring: RingBuffer<'static>,
    arrived: Rc<RefCell<Vec<KernelEvent>>>,
}

impl std::fmt::Debug for EventRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventRing").finish_non_exhaustive()
    }
}

impl EventRing {
    pub(crate) fn new(events: &MapHandle) -> Result<Self, Error> {
        Self::start(events, |_, _| true)
    }

    /// `keep` is asked about each before the ring lets it go.
    pub(crate) fn start(
        events: &MapHandle,
        mut keep: impl FnMut(&[u8], &KernelEvent) -> bool + 'static,
    ) -> Result<Self, Error> {
        let arrived = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&arrived);
        let ring = ring(events, move |bytes| {
            let event = decode(bytes).filter(|event| keep(bytes, event));
            sink.borrow_mut().extend(event);
        })?;
        Ok(Self { ring, arrived })
    }

    /// Everything that has arrived, oldest first.
    ///
    /// # Errors
    /// When the ring buffer is broken.
    pub fn drain(&self) -> Result<Vec<KernelEvent>, Error> {
        self.ring
            .consume()
            .map_err(Error::io("read the kernel half's events"))?;
        Ok(self.arrived.take())
    }
}

/// Readable when something has arrived.
impl AsFd for EventRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the epoll fd lives as long as the ring buffer, which the borrow keeps alive.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd().as_raw_fd()) }
    }
}

/// A kernel half's events, each given to `each` as it lies there.
pub(crate) fn ring(
    events: &MapHandle,
    mut each: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, Error> {
    let failed = || Error::io("read the kernel half's events");
    let mut builder = RingBufferBuilder::new();
    builder
        .add(events, move |bytes| {
            each(bytes);
            0
        })
        .map_err(failed())?;
    builder.build().map_err(failed())
}

fn text(raw: &[i8]) -> Vec<u8> {
    raw.iter()
        .map(|&byte| byte.cast_unsigned())
        .take_while(|&byte| byte != 0)
        .collect()
}

pub(crate) fn decode(bytes: &[u8]) -> Option<KernelEvent> {
    let raw: event = abi::read(bytes)?;
    if raw.account_id == crate::selftest_account::SELFTEST_ACCOUNT.get() {
        return None; // our own self-test's
    }
    let kind = match raw.kind {
        event_kind::EVENT_NOTICE => KernelEventKind::Notice,
        event_kind::EVENT_KILL => KernelEventKind::Kill,
        event_kind::EVENT_WOULD_KILL => KernelEventKind::WouldKill,
        event_kind::EVENT_KILL_ASKED => KernelEventKind::KillAsked,
        event_kind::EVENT_NO_VICTIM => KernelEventKind::NoVictim,
        event_kind::EVENT_DYING => KernelEventKind::Dying,
        event_kind::EVENT_FREED => KernelEventKind::Freed,
        event_kind::EVENT_OOM_SCORE_DUE => KernelEventKind::OomScoreDue,
        event_kind::EVENT_SHORTAGE => KernelEventKind::Shortage,
        event_kind::EVENT_UNRECORDED => KernelEventKind::Unrecorded,
        event_kind::EVENT_REFUSED => KernelEventKind::Refused,
        event_kind::EVENT_FILES => KernelEventKind::Files,
        event_kind::EVENT_COUNT_FILES => KernelEventKind::CountFiles,
        event_kind::EVENT_PSS_SCAN => KernelEventKind::PssScan,
        event_kind::EVENT_RUN_KILLER => KernelEventKind::RunKiller,
        event_kind::EVENT_ROW_REFUSED => KernelEventKind::RowRefused,
        event_kind::EVENT_WATCH_REACHED => KernelEventKind::WatchReached,
        _ => return None,
    };
    let by = match raw.trigger {
        trigger::TRIGGER_TIMER => Trigger::Timer,
        trigger::TRIGGER_NOTIFIER | trigger::TRIGGER_PSS_SCAN | trigger::TRIGGER_KILLER => {
            Trigger::Notifier
        }
        _ => Trigger::Event,
    };
    Some(KernelEvent {
        kind,
        trigger: by,
        at: Nanos::new(raw.time_ns),
        slot: Slot(raw.account),
        account: AccountId::new(raw.account_id),
        pid: Pid::new(raw.pid),
        uid: Uid::new(raw.uid),
        comm: text(&raw.comm),
        started: Nanos::new(raw.start_boottime_ns),
        number: NonZeroU64::new(raw.pidfs_number),
        namespace_pid: (raw.namespace_pid != 0).then(|| Pid::new(raw.namespace_pid)),
        shares_with: (raw.shares_with != 0).then(|| Pid::new(raw.shares_with)),
        held: abi::count(raw.held_pages),
        dying: abi::count(raw.dying_pages),
        limit: abi::bound_from_pages(raw.limit_pages),
        is_observed: raw.observed != 0,
        notice: abi::bound_from_pages(raw.notice_pages),
        victim: abi::count(raw.victim_pages),
        victim_private: abi::count(raw.victim_private_pages),
        latency: Nanos::new(raw.latency_ns),
        candidates_met: raw.candidates_met,
        candidates: raw
            .candidates
            .iter()
            .take(raw.candidates_kept as usize)
            .map(|it| Weighed {
                pid: Pid::new(it.pid),
                comm: text(&it.comm),
                pages: abi::count(it.pages),
                is_spared: it.is_spared != 0,
            })
            .collect(),
        refusal: (kind == KernelEventKind::Refused).then(|| refusal(&raw)),
        bill: match kind {
            KernelEventKind::RowRefused => Some(bill_refusal(&raw)?),
            _ => None,
        },
    })
}

fn bill_refusal(raw: &event) -> Option<BillRefusal> {
    Some(BillRefusal {
        resource: crate::beancounters::resource_of(raw.request)?,
        held: abi::count(raw.held_pages).get(),
        asked: abi::count(raw.request_pages).get(),
        barrier: abi::count(raw.barrier_pages).get(),
        count: raw.refusals,
    })
}

fn refusal(raw: &event) -> Refusal {
    Refusal {
        request: match request(raw.request) {
            request::REQUEST_BRK => Request::Brk,
            request::REQUEST_MREMAP => Request::Mremap,
            request::REQUEST_MPROTECT => Request::Mprotect,
            request::REQUEST_FORK => Request::Fork,
            request::REQUEST_EXEC => Request::Exec,
            request::REQUEST_SECRET => Request::Secret,
            request::REQUEST_RESERVE => Request::Reserve,
            request::REQUEST_FILE => Request::File,
            _ => Request::Mmap,
        },
        pages: abi::count(raw.request_pages),
        measure: if raw.measure == measure::MEASURE_COMMITTED.0 {
            Measure::Committed
        } else {
            Measure::Resident
        },
        barrier: abi::bound_from_pages(raw.barrier_pages),
        committed: abi::count(raw.committed_pages),
        reserved: abi::count(raw.reserved_pages),
        count: raw.refusals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_too_short_or_of_unknown_kind_is_none() {
        assert_eq!(decode(&[0; 12]), None);
        let raw = event {
            kind: event_kind(99),
            ..Default::default()
        };
        assert_eq!(decode(abi::bytes_of(&raw)), None);
    }

    #[test]
    fn no_bound_arrives_as_none_and_text_ends_at_nul() {
        let mut raw = event {
            kind: event_kind::EVENT_KILL,
            limit_pages: i64::MAX,
            ..Default::default()
        };
        raw.comm[0] = b'a'.cast_signed();
        raw.comm[1] = -1;
        let event = decode(abi::bytes_of(&raw)).unwrap();
        assert_eq!((event.limit, event.comm), (None, vec![b'a', 0xff]));
    }
}
