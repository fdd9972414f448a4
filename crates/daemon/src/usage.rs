// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What accounts hold over time: looked at every quarter of a minute while somebody holds anything, kept by the minute.
//! While nobody does, nothing runs: the kernel half tells when that changes.

mod sampler;
mod writer;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bursar_host::{Timer, clock};
use bursar_model::{AccountId, Bytes, Nanos, UsageSample};
use bursar_usage::{Entry, Wanted};

use crate::accounts::Accounts;
use crate::control::Requester;
use crate::fact::Fact;
use crate::level_watches::LevelWatches;
use crate::recorder::UsageEvent;

use sampler::Sampler;
pub(crate) use writer::{Answered, AskError, Found, Kind};
use writer::{Question, Writer};

/// How often accounts are looked at. Their counters are in memory: a thousand take less than a millisecond, and some on
/// a processor that did something else meanwhile.
const EVERY: Duration = Duration::from_secs(15);
/// The first look after somebody began to hold something.
const SOON: Duration = Duration::from_millis(500);

pub(crate) struct Usage {
    sampler: Sampler,
    timer: Timer,
    /// `None`: nothing is to be kept.
    writer: Option<Writer>,
    /// Nobody holds anything, and the kernel half tells when somebody does.
    is_asleep: bool,
}

impl Usage {
    /// Keeps at most `bound` bytes below the directory of state; with nothing for it, nothing.
    pub(crate) fn start(state: &Path, bound: Bytes) -> Result<Self> {
        let timer = Timer::polled().context("make a timer")?;
        let writer = match bound {
            Bytes::ZERO => None,
            bound => {
                timer.set(SOON, EVERY).context("set a timer")?;
                Some(Writer::start(state.join("usage"), bound, now())?)
            }
        };
        Ok(Self {
            sampler: Sampler::default(),
            timer,
            writer,
            is_asleep: false,
        })
    }

    /// Readable when [`Self::drain`] has something.
    pub(crate) fn answers(&self) -> Option<BorrowedFd<'_>> {
        self.writer.as_ref().map(AsFd::as_fd)
    }

    /// What has been found for whom.
    pub(crate) fn drain(&mut self) -> Vec<Answered> {
        self.writer.as_mut().map(Writer::drain).unwrap_or_default()
    }

    /// What went wrong, as far as it did.
    pub(crate) fn troubles(&self) -> [(u64, &'static str); 3] {
        self.writer
            .as_ref()
            .map(Writer::troubles)
            .unwrap_or_default()
    }

    /// Looks at all accounts.
    pub(crate) fn observe(&mut self, accounts: &mut Accounts, watches: &mut LevelWatches) {
        // Nothing where it was not the timer.
        let _ = self.timer.take_expiry();
        if self.writer.is_none() {
            return;
        }
        let is_held = self.look(accounts);
        if is_held || !watches.await_first(accounts) {
            return;
        }
        let rest = self.sampler.fall_asleep();
        self.keep(rest, accounts);
        self.is_asleep = self.timer.set(Duration::ZERO, Duration::ZERO).is_ok();
    }

    /// Whether somebody holds anything.
    fn look(&mut self, accounts: &mut Accounts) -> bool {
        let mut readings = accounts.backend.readings();
        // Most of a thousand never held anything.
        readings.retain(|it| it.maxheld > Bytes::ZERO);
        let held = readings.iter().filter(|it| it.held > Bytes::ZERO);
        // Names are looked up in the background: they are needed when the minute is over.
        held.for_each(|it| accounts.table.expect_name(it.id));
        let ended = self.sampler.observe(&readings, clock::monotonic(), now());
        self.keep(ended, accounts);
        readings.iter().any(|it| it.held > Bytes::ZERO)
    }

    fn keep(&mut self, samples: Vec<(AccountId, UsageSample)>, accounts: &mut Accounts) {
        if let Some(writer) = self.writer.as_mut().filter(|_| !samples.is_empty()) {
            writer.add(named(samples, accounts), now());
        }
    }

    /// Somebody may hold something again.
    pub(crate) fn hear(&mut self, facts: &[Fact]) {
        if facts.iter().any(|it| it.level().is_some()) {
            self.wake();
        }
    }

    /// Takes note of what accounts have met, and how they stood then: a look may come too late for that.
    pub(crate) fn note(&mut self, events: &[UsageEvent]) {
        events.iter().for_each(|it| self.sampler.note(it));
    }

    /// Accounts may be others now, or hold something.
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.is_asleep)
            && let Err(error) = self.timer.set(SOON, EVERY)
        {
            tracing::error!("usage is not kept: {error}");
        }
    }

    /// Whether anything is kept.
    pub(crate) const fn is_kept(&self) -> bool {
        self.writer.is_some()
    }

    /// Has it looked up; what is found is for [`Self::drain`].
    pub(crate) fn ask(
        &mut self,
        requester: Requester,
        kind: Kind,
        wanted: Wanted,
        accounts: &mut Accounts,
    ) -> Result<(), AskError> {
        self.look(accounts);
        let is_wanted = |id: AccountId, name: &str| {
            let subject = wanted.subject.as_ref();
            subject.is_none_or(|it| it.is_account(id, name))
        };
        let mut current = named(self.sampler.current(), accounts);
        current.retain(|it| is_wanted(it.id, &it.name));
        let Some(writer) = &mut self.writer else {
            return Err(AskError::Gone);
        };
        writer.ask(Question {
            client: requester.client,
            counts_as: requester.counts_as,
            kind,
            wanted,
            current,
            now: now(),
        })
    }

    /// Ends: what was observed is written.
    pub(crate) fn finish(mut self, accounts: &mut Accounts) {
        if self.writer.is_some() {
            self.look(accounts);
            let rest = self.sampler.fall_asleep();
            self.keep(rest, accounts);
        }
        if let Some(writer) = self.writer {
            writer.finish();
        }
    }
}

impl AsFd for Usage {
    /// Readable when [`Self::observe`] is due.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

fn named(samples: Vec<(AccountId, UsageSample)>, accounts: &mut Accounts) -> Vec<Entry> {
    let entries = samples.into_iter().map(|(id, sample)| Entry {
        id,
        name: accounts.name_of(id),
        sample,
    });
    entries.collect()
}

/// By the clock on the wall, seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| it.as_secs())
}

/// Of a span, milliseconds.
const fn milliseconds(span: Nanos) -> u64 {
    span.get() / 1_000_000
}
