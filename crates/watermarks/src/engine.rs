// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One tick: observe, decide, act, note. Whoever runs it gives it the time and asks when to come again.

mod restoration;
mod rules;
mod slow;
mod state;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bursar_config::{Sysctl, WatermarkMode, WatermarkModel, Watermarks};
use bursar_host::HostError;
use bursar_host::machine::page_size;
use bursar_kernel::{StallMeter, StallRow};
use bursar_model::{Nanos, Pages, Uid};
use bursar_policy::watermarks::{Model, ModelChoice, Reason, Sample, ScaleBounds, Verdict};

pub use self::restoration::recover;
pub use self::rules::AccountFacts;
use self::rules::Followed;
use crate::compactor::Compactor;
use crate::decision_log::{Act, DecisionLog, Record, StallCounters, is_news};
use crate::knob::Knob;
use crate::reclaimer::Reclaimer;
use crate::saved::{SavedError, SavedValues};
use crate::{Detail, Measured, Observer, Paths};

/// Between two samples while memory may run short.
const CLOSE: Duration = Duration::from_millis(100);
/// Between two samples otherwise: memory that would last longer at the largest rate a machine can ask
/// for is looked at later, within these.
const CALM: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// That rate, bytes a second: what one node's memory bus lets be written.
const FASTEST_DEMAND: u64 = 4 << 30;
/// What changes slowly is looked at this often.
const SLOW_NS: u64 = 10_000_000_000;
/// What is not done goes into the log this often.
const TOLD_EVERY_NS: u64 = 60_000_000_000;
/// A file that cannot be read is said once in so many failures.
const FAILURES_SAID: u64 = 600;

/// When to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// After this, or when asked.
    For(Duration),
    /// When [`Engine::wakeup`] is readable, or when asked: nothing is changed here, so nothing is lost
    /// by not looking while the kernel needs no room.
    UntilKnock,
}

/// Whether we act, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Only observing was asked for.
    Observing,
    /// A rehearsal: nothing is changed, whatever this mode would have us do.
    Rehearsing(WatermarkMode),
    /// What is decided is done.
    Acting,
    /// Somebody else sets the same value: it is left to them until bursard starts again.
    GaveWay {
        /// What was found.
        found: u32,
        /// What we had written.
        written: u32,
    },
    /// The kernel, or what confines us, does not let us write.
    Refused {
        /// The knob's name.
        knob: &'static str,
        /// Why not.
        reason: String,
    },
    /// SavedValues were put back on request; observing until bursard starts again.
    PutBack,
}

/// Stalls by user; `None` is the row of those who found no room of their own.
pub type UserRows = Vec<(Option<Uid>, StallRow)>;

/// How often the engine looked, and what that cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Effort {
    /// Looks so far.
    pub ticks: u64,
    /// Looks that failed.
    pub failures: u64,
    /// Values written so far.
    pub writes: u64,
}

/// Watermarks, watched and moved.
#[derive(Debug)]
pub struct Engine {
    settings: Watermarks,
    paths: Paths,
    observer: Observer,
    model: Model,
    meter: Result<StallMeter, String>,
    saved: Option<SavedValues>,
    compactor: Option<Compactor>,
    reclaimer: Option<Reclaimer>,
    decision_log: DecisionLog,
    /// What whoever counts accounts knows.
    account_facts: Arc<AccountFacts>,
    /// Sysctls with rules, as far as a rule holds or they are left alone.
    followed: BTreeMap<Sysctl, Followed>,
    knob: Knob,
    standing: Standing,
    bounds: ScaleBounds,
    /// The factor as we know it.
    known_scale: u32,
    huge_bytes: u64,
    dentries: Option<u64>,
    slow_at: u64,
    tell_again_at: u64,
    effort: Effort,
    /// What an administrator should know, from the start.
    remarks: Vec<String>,
    last_failure: Option<String>,
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file of /proc is missing or says nothing that can be understood.
    #[error("cannot watch the watermarks: {0}")]
    Blind(#[from] HostError),
    /// SavedValues cannot be kept.
    #[error("cannot move the watermarks: {0}")]
    SavedValues(#[from] SavedError),
}

impl Engine {
    /// Starts to watch, and in [`WatermarkMode::Act`] to move. An earlier run's originals should have
    /// been put back before ([`recover`]).
    ///
    /// # Errors
    /// When the machine cannot be watched, or moved although that was asked for.
    pub fn start(settings: Watermarks, paths: Paths, now: Nanos) -> Result<Self, StartError> {
        let detail = match settings.model {
            WatermarkModel::Bursar | WatermarkModel::Loop => Detail::Sums,
            WatermarkModel::Trend => Detail::Orders,
        };
        let mut observer = Observer::open(&paths, detail)?;
        let scale = observer.look(now, Measured::default())?.scale;
        let acts = settings.mode == WatermarkMode::Act;
        let saved = acts.then(|| SavedValues::open(&paths)).transpose()?;
        let mut remarks = Vec::new();
        let compactor = match acts && settings.compact {
            true => Compactor::start(&paths)
                .map_err(|error| remarks.push(format!("nodes are not compacted: {error}")))
                .ok(),
            false => None,
        };
        let reclaimer = if acts && settings.reclaim {
            let has_swap = observer
                .memory()
                .is_some_and(|memory| memory.swap_total.get() > 0);
            Reclaimer::start(&paths, has_swap).unwrap_or_else(|error| {
                remarks.push(format!("nothing is reclaimed ahead: {error}"));
                None
            })
        } else {
            None
        };
        let meter = if settings.stall_time {
            StallMeter::start().map_err(|error| error.to_string())
        } else {
            Err("watermarks.stall_time = false".to_owned())
        };
        let bounds = ScaleBounds::new(scale, settings.max_scale);
        let mut engine = Self {
            model: Model::new(choice(settings.model), bounds),
            knob: Knob::scale(&paths),
            standing: if acts {
                Standing::Acting
            } else {
                Standing::Observing
            },
            settings,
            paths,
            observer,
            meter,
            saved,
            compactor,
            reclaimer,
            decision_log: DecisionLog::new(),
            account_facts: Arc::default(),
            followed: BTreeMap::new(),
            bounds,
            known_scale: scale,
            huge_bytes: 0,
            dentries: None,
            slow_at: 0,
            tell_again_at: 0,
            effort: Effort::default(),
            remarks,
            last_failure: None,
        };
        engine.model.set_prefrees(engine.reclaimer.is_some());
        engine.set_sysctls();
        Ok(engine)
    }

    /// Watches, opens nothing for writing whatever `settings` say, and decides as they would have it.
    ///
    /// # Errors
    /// When the machine cannot be watched.
    pub fn rehearse(settings: Watermarks, paths: Paths, now: Nanos) -> Result<Self, StartError> {
        let mode = settings.mode;
        // The hand that frees memory ahead leaves the factor less to do.
        let prefrees =
            mode == WatermarkMode::Act && settings.reclaim && Reclaimer::file(&paths).is_some();
        let observing = Watermarks {
            mode: WatermarkMode::Observe,
            ..settings
        };
        let mut engine = Self::start(observing, paths, now)?;
        engine.settings.mode = mode;
        engine.standing = Standing::Rehearsing(mode);
        engine.model.set_prefrees(prefrees);
        Ok(engine)
    }

    /// Looks once, and does what follows from it. `now`: CLOCK_MONOTONIC.
    pub fn tick(&mut self, now: Nanos) -> Pause {
        self.effort.ticks = self.effort.ticks.saturating_add(1);
        let measured = self.measured(now);
        let sample = match self.observer.look(now, measured) {
            Ok(sample) => sample,
            Err(error) => {
                self.fail(&error);
                return Pause::For(CALM.1);
            }
        };
        if sample.scale != self.known_scale {
            let (found, written) = (sample.scale, self.known_scale);
            self.give_way(found, written);
        }
        let sample = self.observer.sample();
        let (scale_before, before) = (sample.scale, stall_counters(sample));
        if self.settings.keep_reap_margin {
            let margin = self.account_facts.margin();
            self.model.set_margin(margin.get() >> page_size().shift());
        }
        let verdict = self.model.look(sample);
        self.prefree(&verdict);
        let act = self.act(now, &verdict);
        let record = Record {
            at: now,
            until: now,
            times: 1,
            scale_before,
            verdict,
            act,
            before,
            outcome: None,
        };
        if self.decision_log.note(record) {
            self.tell(&record);
        }
        if now.get() >= self.slow_at {
            self.slow_at = now.get().saturating_add(SLOW_NS);
            self.look_at_slow_things();
        }
        self.pause(now)
    }

    fn pause(&self, now: Nanos) -> Pause {
        if self.model.is_close(now.get()) {
            return Pause::For(CLOSE);
        }
        let (shortest, longest) = CALM;
        if self.standing == Standing::Acting {
            let sample = self.observer.sample();
            let low = sample.sum(|zone| zone.low);
            let above = Pages::new(sample.free().saturating_sub(low)).to_bytes(page_size());
            let lasts = Duration::from_secs(above.get() / FASTEST_DEMAND);
            return Pause::For(lasts.clamp(shortest, longest));
        }
        match &self.meter {
            Ok(meter) if meter.listen().is_ok() => Pause::UntilKnock,
            _ => Pause::For(longest),
        }
    }

    /// Readable when kswapd was woken, or somebody stalled, after [`Pause::UntilKnock`]; `None` where
    /// nobody wakes it.
    pub fn wakeup(&self) -> Option<BorrowedFd<'_>> {
        self.meter.as_ref().ok().map(AsFd::as_fd)
    }

    /// Where whoever counts accounts writes what it knows.
    pub fn account_facts(&self) -> Arc<AccountFacts> {
        Arc::clone(&self.account_facts)
    }

    /// When it looked last.
    pub fn looked_at(&self) -> Nanos {
        self.observer.sample().at
    }

    fn measured(&self, now: Nanos) -> Measured {
        let mut measured = Measured {
            prefree_rate: self.reclaimer.as_ref().and_then(Reclaimer::take_rate),
            ..Measured::default()
        };
        if let Ok(meter) = &self.meter {
            let total = meter.total(now);
            measured.stall_ns = Some(total.all.time_ns());
            measured.reaction_ns = total.slow_reaction_ns;
        }
        measured
    }

    fn fail(&mut self, error: &HostError) {
        if self.effort.failures.is_multiple_of(FAILURES_SAID) {
            tracing::warn!(%error, "the machine could not be looked at; the watermarks stay as they are");
        }
        self.effort.failures = self.effort.failures.saturating_add(1);
        self.last_failure = Some(error.to_string());
    }

    /// Somebody else has set the factor. While we only observe that is nothing to us.
    fn give_way(&mut self, found: u32, written: u32) {
        self.known_scale = found;
        if self.standing == Standing::Acting {
            tracing::warn!(
                found,
                written,
                "somebody else sets vm.watermark_scale_factor: it is left to them until bursard starts again"
            );
            if let Some(saved) = &mut self.saved {
                saved.give_up(Sysctl::WatermarkScaleFactor);
            }
            self.standing = Standing::GaveWay { found, written };
            self.end_rules();
        }
        let highest = self.bounds.highest();
        self.bounds = ScaleBounds::new(found, highest.max(found));
        self.model.rebound(self.bounds);
    }

    /// Whether nobody else has set the factor since it was looked at; gives way otherwise.
    fn is_still_ours(&mut self) -> bool {
        match self.observer.scale_now() {
            Ok(found) if found == self.known_scale => true,
            Ok(found) => {
                self.give_way(found, self.known_scale);
                false
            }
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    fn act(&mut self, now: Nanos, verdict: &Verdict) -> Act {
        if !Act::is_wanted(verdict) {
            return Act::Nothing;
        }
        if self.standing != Standing::Acting {
            return Act::Withheld;
        }
        let mut act = Act::Nothing;
        if verdict.scale.is_some() && !self.is_still_ours() {
            return Act::Withheld;
        }
        if let (Some(scale), Some(saved)) = (verdict.scale, &mut self.saved) {
            let before = i64::from(self.known_scale);
            match saved.turn(&self.knob, before, i64::from(scale)) {
                Ok(()) => {
                    self.known_scale = scale;
                    self.observer.forget();
                    self.effort.writes = self.effort.writes.saturating_add(1);
                    act = Act::Done;
                }
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0);
                    self.refused(self.knob.name(), &error);
                    return Act::Refused(errno);
                }
            }
        }
        if let (Some(node), Some(compactor)) = (verdict.compact, &mut self.compactor) {
            let order = usize::from(verdict.forecast.order.unwrap_or(9));
            let usable = self
                .observer
                .sample()
                .sum_of_node(node, |zone| zone.pages_from(order));
            match compactor.compact(node, usable, now.get()) {
                Ok(true) => {
                    self.effort.writes = self.effort.writes.saturating_add(1);
                    act = Act::Done;
                }
                Ok(false) => {}
                Err(errno) => return Act::Refused(errno),
            }
        }
        act
    }

    /// Frees what the model wants in stock. No decision of its own: the factor says how much.
    fn prefree(&mut self, verdict: &Verdict) {
        let Some(reclaimer) = &mut self.reclaimer else {
            return;
        };
        if self.standing != Standing::Acting || !reclaimer.is_useful() {
            self.model.set_prefrees(false);
            self.reclaimer = None;
            return;
        }
        if let Some(pages) = verdict.reclaim {
            reclaimer.reclaim(Pages::new(pages).to_bytes(page_size()).get());
        }
    }

    /// Bytes that were asked to be freed ahead so far.
    pub fn prefreed_bytes(&self) -> u64 {
        self.reclaimer.as_ref().map_or(0, |it| it.asked_bytes)
    }

    fn refused(&mut self, knob: &'static str, error: &std::io::Error) {
        tracing::error!(
            knob,
            %error,
            "the value cannot be written: from now on watermarks are only observed; is /proc/sys read-only?"
        );
        self.standing = Standing::Refused {
            knob,
            reason: error.to_string(),
        };
        self.end_rules();
    }

    /// Into the log: what was done; what would be done, or cannot be helped, once a minute.
    fn tell(&mut self, record: &Record) {
        let acted = matches!(record.act, Act::Done | Act::Refused(_));
        if !acted {
            let is_due = record.at.get() >= self.tell_again_at;
            if !is_news(record.verdict.reason) || !is_due {
                return;
            }
            self.tell_again_at = record.at.get().saturating_add(TOLD_EVERY_NS);
        }
        let text = record.words();
        match record.verdict.reason {
            Reason::Overload | Reason::AtBound => tracing::warn!("watermarks: {text}"),
            Reason::Stalled => tracing::info!("watermarks: {text}"),
            _ => tracing::debug!("watermarks: {text}"),
        }
    }
}

const fn choice(model: WatermarkModel) -> ModelChoice {
    match model {
        WatermarkModel::Bursar => ModelChoice::Bursar,
        WatermarkModel::Trend => ModelChoice::Trend,
        WatermarkModel::Loop => ModelChoice::Loop,
    }
}

const fn stall_counters(sample: &Sample) -> StallCounters {
    StallCounters {
        stalls: sample.counters.stalls(),
        stall_ns: match sample.counters.stall_ns {
            Some(ns) => ns,
            None => 0,
        },
    }
}
