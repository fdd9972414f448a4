// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three bounds of a row: notice ≤ barrier ≤ limit, checked once, here.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Mode, Percent, SizeSpec};

/// S1 section 4.3: the soft limit is 90 % of the limit unless said otherwise.
pub const DEFAULT_NOTICE: SizeSpec = percent(90);
/// The barrier is 95 % of the limit unless said otherwise.
pub const DEFAULT_BARRIER: SizeSpec = percent(95);

const fn percent(value: u32) -> SizeSpec {
    match Percent::new(value) {
        Some(percent) => SizeSpec::Percent(percent),
        None => SizeSpec::None,
    }
}

/// The bounds of one row as an administrator wrote them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundsSpec {
    /// An amount, a share of RAM, or none.
    pub limit: SizeSpec,
    /// An amount or a share of the limit; absent: [`DEFAULT_NOTICE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<SizeSpec>,
    /// An amount or a share of the limit; absent: [`DEFAULT_BARRIER`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier: Option<SizeSpec>,
}

/// The bounds of one row on this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    notice: Option<Bytes>,
    barrier: Option<Bytes>,
    limit: Option<Bytes>,
    mode: Mode,
}

/// Bounds that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// Someone would be told too late.
    #[error(
        "the notice ({notice}) lies above the {above} ({bound}): lower it or raise the {above}"
    )]
    NoticeTooHigh {
        /// The notice asked for.
        notice: Bytes,
        /// What it exceeds: `barrier` or `limit`.
        above: &'static str,
        /// That bound.
        bound: Bytes,
    },
    /// Someone would be refused after having been killed.
    #[error("the barrier ({barrier}) lies above the limit ({limit}): lower it or raise the limit")]
    BarrierTooHigh {
        /// The barrier asked for.
        barrier: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// A share of a limit that is not there.
    #[error("{what} is a percentage of the limit, but the limit is none: give it as a size")]
    ShareOfNothing {
        /// `notice` or `barrier`.
        what: &'static str,
    },
}

impl Bounds {
    /// No bound at all.
    pub const NONE: Self = Self {
        notice: None,
        barrier: None,
        limit: None,
        mode: Mode::Enforce,
    };

    /// Bounds that do not contradict each other.
    ///
    /// # Errors
    /// When notice ≤ barrier ≤ limit does not hold among those that are given.
    pub fn new(
        notice: Option<Bytes>,
        barrier: Option<Bytes>,
        limit: Option<Bytes>,
    ) -> Result<Self, BoundsError> {
        if let (Some(barrier), Some(limit)) = (barrier, limit)
            && barrier > limit
        {
            return Err(BoundsError::BarrierTooHigh { barrier, limit });
        }
        for (bound, above) in [(limit, "limit"), (barrier, "barrier")] {
            if let (Some(notice), Some(bound)) = (notice, bound)
                && notice > bound
            {
                return Err(BoundsError::NoticeTooHigh {
                    notice,
                    above,
                    bound,
                });
            }
        }
        Ok(Self {
            notice,
            barrier,
            limit,
            mode: Mode::Enforce,
        })
    }

    /// The same, enforced or observed.
    #[must_use]
    pub const fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Above this the user is told.
    pub const fn notice(&self) -> Option<Bytes> {
        self.notice
    }

    /// Above this new requests are refused.
    pub const fn barrier(&self) -> Option<Bytes> {
        self.barrier
    }

    /// Above this a process is killed.
    pub const fn limit(&self) -> Option<Bytes> {
        self.limit
    }

    /// Whether they are enforced.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether nobody is told, refused or killed.
    pub const fn is_observed(&self) -> bool {
        self.mode.is_observed()
    }

    /// The limit, if a process is killed above it.
    pub const fn enforced_limit(&self) -> Option<Bytes> {
        match self.mode {
            Mode::Enforce => self.limit,
            Mode::Observe => None,
        }
    }

    /// Whether any of them is set.
    pub const fn is_some(&self) -> bool {
        self.notice.is_some() || self.barrier.is_some() || self.limit.is_some()
    }
}

impl BoundsSpec {
    /// Only a limit, with the default notice and barrier.
    pub const fn of_limit(limit: SizeSpec) -> Self {
        Self {
            limit,
            notice: None,
            barrier: None,
        }
    }

    /// What this means on a machine with `ram` bytes of memory.
    ///
    /// A default notice or barrier yields to the other bounds where they conflict (a notice of 90 %
    /// beside an explicit barrier of 50 % becomes 50 %): only what was written can be wrong.
    ///
    /// # Errors
    /// When what was written contradicts itself.
    pub fn resolve(&self, ram: Bytes) -> Result<Bounds, BoundsError> {
        let limit = self.limit.resolve(ram);
        let share = |what, spec: Option<SizeSpec>, default: SizeSpec| match (spec, limit) {
            (Some(SizeSpec::Percent(_)), None) => Err(BoundsError::ShareOfNothing { what }),
            (Some(spec), limit) => Ok(spec.resolve(limit.unwrap_or_default())),
            (None, Some(limit)) => Ok(default.resolve(limit)),
            (None, None) => Ok(None),
        };
        let mut barrier = share("barrier", self.barrier, DEFAULT_BARRIER)?;
        let mut notice = share("notice", self.notice, DEFAULT_NOTICE)?;
        if self.barrier.is_none()
            && let (Some(written), Some(default)) = (self.notice.and(notice), barrier)
        {
            barrier = Some(default.max(written).min(limit.unwrap_or(default)));
        }
        if self.notice.is_none()
            && let (Some(default), Some(bound)) = (notice, barrier)
        {
            notice = Some(default.min(bound));
        }
        Bounds::new(notice, barrier, limit)
    }

    /// The same with what holds where nothing is written, in the words of what was: a default, or the
    /// bound that it yields to on a machine with `ram` bytes of memory. What contradicts itself stays as
    /// it is.
    pub fn spelled_out(&self, ram: Bytes) -> Self {
        let Ok(bounds) = self.resolve(ram) else {
            return *self;
        };
        let held = |default: SizeSpec, is: Option<Bytes>, yields_to: Option<SizeSpec>| match bounds
            .limit
        {
            None => SizeSpec::None,
            Some(limit) if default.resolve(limit) == is => default,
            Some(_) => yields_to.unwrap_or(default),
        };
        let barrier = self
            .barrier
            .unwrap_or_else(|| held(DEFAULT_BARRIER, bounds.barrier, self.notice));
        let notice = self
            .notice
            .unwrap_or_else(|| held(DEFAULT_NOTICE, bounds.notice, Some(barrier)));
        Self {
            limit: self.limit,
            notice: Some(notice),
            barrier: Some(barrier),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAM: Bytes = Bytes::from_mib(1000);

    fn spec(limit: &str, notice: Option<&str>, barrier: Option<&str>) -> BoundsSpec {
        let size = |text: &str| text.parse().unwrap();
        BoundsSpec {
            limit: size(limit),
            notice: notice.map(size),
            barrier: barrier.map(size),
        }
    }

    fn mib(count: u64) -> Option<Bytes> {
        Some(Bytes::from_mib(count))
    }

    #[test]
    fn defaults_are_ninety_and_ninety_five_percent_of_the_limit() {
        let bounds = spec("100M", None, None).resolve(RAM).unwrap();
        assert_eq!(
            (bounds.notice(), bounds.barrier(), bounds.limit()),
            (mib(90), mib(95), mib(100))
        );
    }

    #[test]
    fn a_percentage_is_of_ram_for_a_limit_and_of_the_limit_for_the_rest() {
        let bounds = spec("50%", Some("10%"), Some("20%")).resolve(RAM).unwrap();
        assert_eq!(
            (bounds.notice(), bounds.barrier(), bounds.limit()),
            (mib(50), mib(100), mib(500))
        );
    }

    #[test]
    fn a_default_yields_to_what_was_written() {
        let low_barrier = spec("100M", None, Some("50M")).resolve(RAM).unwrap();
        assert_eq!(low_barrier.notice(), mib(50));
        let high_notice = spec("100M", Some("99M"), None).resolve(RAM).unwrap();
        assert_eq!(high_notice.barrier(), mib(99));
    }

    #[test]
    fn what_holds_is_spelled_as_what_it_comes_from() {
        for (written, notice, barrier) in [
            (spec("100M", None, None), "90%", "95%"),
            (spec("100M", None, Some("50%")), "50%", "50%"),
            (spec("100M", None, Some("50M")), "50M", "50M"),
            (spec("100M", None, Some("93M")), "90%", "93M"),
            // 100M of 1000M.
            (spec("10%", None, Some("80M")), "80M", "80M"),
            (spec("100M", Some("97%"), None), "97%", "97%"),
            (spec("100M", Some("80%"), None), "80%", "95%"),
            (spec("100M", None, Some("none")), "90%", "none"),
            (spec("none", None, None), "none", "none"),
            (spec("none", Some("10M"), None), "10M", "none"),
        ] {
            let held = written.spelled_out(RAM);
            let said = [held.notice, held.barrier].map(|it| it.unwrap().to_string());
            assert_eq!(said, [notice, barrier], "{written:?}");
            assert_eq!(held.resolve(RAM), written.resolve(RAM), "{written:?}");
        }
    }

    #[test]
    fn none_takes_every_bound_away() {
        assert_eq!(spec("none", None, None).resolve(RAM), Ok(Bounds::NONE));
        let notice_only = spec("none", Some("10M"), None).resolve(RAM).unwrap();
        assert_eq!((notice_only.notice(), notice_only.limit()), (mib(10), None));
    }

    #[test]
    fn contradictions_are_refused() {
        let error = spec("100M", Some("101M"), None).resolve(RAM).unwrap_err();
        assert!(
            matches!(error, BoundsError::NoticeTooHigh { above: "limit", .. }),
            "{error}"
        );
        let error = spec("100M", None, Some("200%")).resolve(RAM).unwrap_err();
        assert!(
            matches!(error, BoundsError::BarrierTooHigh { .. }),
            "{error}"
        );
        let error = spec("none", Some("90%"), None).resolve(RAM).unwrap_err();
        assert_eq!(error, BoundsError::ShareOfNothing { what: "notice" });
    }
}
