// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beancounters: the rows of an account's bill beside memory (S5; the names, units and rules are
//! OpenVZ's, docs/explanation/beancounters.md).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Mode, Resource, Uid, Unit};

/// What OpenVZ prints for "no bound": LONG_MAX.
const UBC_UNLIMITED: u64 = i64::MAX as u64;

/// Barrier and limit of a row, in the row's unit; `None` is no bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RowBounds {
    barrier: Option<u64>,
    limit: Option<u64>,
    /// Of the entry that they stand in; no part of how they are written.
    mode: Mode,
}

/// Why a text is no pair of bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowBoundsError {
    /// No number.
    #[error("{0:?} is not a valid bound: write BARRIER:LIMIT, one number for both, or unlimited")]
    Malformed(String),
    /// A suffix on something that is counted in pieces.
    #[error("{0:?} has a unit, but these are counted in pieces: write a bare number")]
    UnitOfPieces(String),
    /// The wrong way round.
    #[error("the barrier ({barrier}) lies above the limit ({limit}): lower it or raise the limit")]
    BarrierTooHigh {
        /// The barrier asked for.
        barrier: u64,
        /// The limit.
        limit: u64,
    },
}

impl RowBounds {
    /// No bound at all.
    pub const UNLIMITED: Self = Self {
        barrier: None,
        limit: None,
        mode: Mode::Enforce,
    };

    /// Bounds that do not contradict each other.
    ///
    /// # Errors
    /// [`RowBoundsError::BarrierTooHigh`].
    pub fn new(barrier: Option<u64>, limit: Option<u64>) -> Result<Self, RowBoundsError> {
        let bounded = |bound: Option<u64>| bound.filter(|&it| it < UBC_UNLIMITED);
        let (barrier, limit) = (bounded(barrier), bounded(limit));
        match (barrier, limit) {
            (Some(barrier), Some(limit)) if barrier > limit => {
                Err(RowBoundsError::BarrierTooHigh { barrier, limit })
            }
            (None, Some(limit)) => Err(RowBoundsError::BarrierTooHigh {
                barrier: UBC_UNLIMITED,
                limit,
            }),
            _ => Ok(Self {
                barrier,
                limit,
                mode: Mode::Enforce,
            }),
        }
    }

    /// `BARRIER:LIMIT` as it is written for a resource: bare numbers are in its unit, pages and bytes may
    /// have a suffix (`64M`, `2.2G`, `100P` pages), and one number is both.
    ///
    /// # Errors
    /// When it is something else.
    pub fn parse(resource: Resource, text: &str) -> Result<Self, RowBoundsError> {
        let one = |part: &str| amount(resource.unit(), part.trim());
        match text.split_once(':') {
            Some((barrier, limit)) => Self::new(one(barrier)?, one(limit)?),
            None => {
                let both = one(text)?;
                Self::new(both, both)
            }
        }
    }

    /// Above this requests are refused.
    pub const fn barrier(&self) -> Option<u64> {
        self.barrier
    }

    /// What is shown beside it; for guarantees nothing.
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// The same, enforced or observed.
    #[must_use]
    pub const fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Whether they are enforced.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether nothing is bounded.
    pub const fn is_unlimited(&self) -> bool {
        self.barrier.is_none() && self.limit.is_none()
    }
}

/// One amount; `None`: no bound.
fn amount(unit: Unit, text: &str) -> Result<Option<u64>, RowBoundsError> {
    let malformed = || RowBoundsError::Malformed(text.to_owned());
    if ["unlimited", "none"].contains(&text) {
        return Ok(None);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Too long for a number is as good as no bound: so did OpenVZ.
        return Ok(Some(text.parse().unwrap_or(UBC_UNLIMITED)));
    }
    let digits = text
        .find(|letter: char| letter.is_ascii_alphabetic())
        .ok_or_else(malformed)?;
    let (number, suffix) = text.split_at(digits);
    let scale: u128 = match suffix.to_ascii_uppercase().as_str() {
        "B" => 1,
        "K" => 1 << 10,
        "P" => u128::from(Unit::PAGE_BYTES),
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return Err(malformed()),
    };
    if unit == Unit::Items {
        return Err(RowBoundsError::UnitOfPieces(text.to_owned()));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return Err(malformed());
    }
    let whole: u128 = whole.parse().unwrap_or(u128::from(u64::MAX));
    let places = u32::try_from(fraction.len()).unwrap_or(0);
    let part: u128 = fraction.parse().unwrap_or(0);
    let bytes = whole
        .saturating_mul(scale)
        .saturating_add(part * scale / 10_u128.pow(places));
    let in_unit = match unit {
        Unit::Pages => bytes / u128::from(Unit::PAGE_BYTES),
        Unit::Bytes | Unit::Items => bytes,
    };
    Ok(Some(u64::try_from(in_unit).unwrap_or(UBC_UNLIMITED)))
}

/// In the row's unit, so that it can be read without knowing which row it is.
impl fmt::Display for RowBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bound: Option<u64>| bound.map_or("unlimited".to_owned(), |it| it.to_string());
        write!(f, "{}:{}", text(self.barrier), text(self.limit))
    }
}

impl FromStr for RowBounds {
    type Err = RowBoundsError;

    fn from_str(text: &str) -> Result<Self, RowBoundsError> {
        Self::parse(Resource::Numproc, text)
    }
}

impl TryFrom<String> for RowBounds {
    type Error = RowBoundsError;

    fn try_from(text: String) -> Result<Self, RowBoundsError> {
        text.parse()
    }
}

impl From<RowBounds> for String {
    fn from(bounds: RowBounds) -> Self {
        bounds.to_string()
    }
}

/// How a row's numbers are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum How {
    /// Every charge is seen by the kernel half when it is made.
    Exact,
    /// Counted by a look at all tasks and files: now, or every so many seconds. What came and went
    /// between two looks is not in maxheld.
    Sampled {
        /// Seconds between two looks; `None`: only when somebody asks.
        every: Option<u32>,
    },
    /// Worked out from other rows.
    Modelled,
    /// Not known, and why.
    Unavailable(String),
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Sampled { every: None } => f.write_str("sampled when asked"),
            Self::Sampled { every: Some(every) } => write!(f, "sampled every {every} s"),
            Self::Modelled => f.write_str("modelled"),
            Self::Unavailable(why) => write!(f, "not available on this kernel: {why}"),
        }
    }
}

impl From<How> for String {
    fn from(how: How) -> Self {
        how.to_string()
    }
}

impl From<String> for How {
    fn from(text: String) -> Self {
        let every = text
            .strip_prefix("sampled every ")
            .and_then(|rest| rest.strip_suffix(" s")?.parse().ok());
        match text.as_str() {
            "exact" => Self::Exact,
            "modelled" => Self::Modelled,
            "sampled when asked" => Self::Sampled { every: None },
            _ if every.is_some() => Self::Sampled { every },
            _ => {
                let why = text.strip_prefix("not available on this kernel: ");
                Self::Unavailable(why.unwrap_or(&text).to_owned())
            }
        }
    }
}

/// One row of a bill, in the unit of its resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bean {
    /// Held now; absent where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// The most ever held, as far as anybody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxheld: Option<u64>,
    /// Above this requests are refused; `None`: no bound.
    pub barrier: Option<u64>,
    /// `None`: no bound.
    pub limit: Option<u64>,
    /// Whether requests above the barrier are refused, or only told of.
    #[serde(default, skip_serializing_if = "Mode::is_usual")]
    pub mode: Mode,
    /// Requests refused.
    pub failcnt: u64,
    /// What the numbers count.
    pub unit: Unit,
    /// How they are known.
    pub how: How,
    /// What should be known about its bounds: that nothing is refused at them, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Bean {
    /// A row of which nothing is known.
    pub fn unavailable(resource: Resource, why: &str) -> Self {
        Self {
            held: None,
            maxheld: None,
            barrier: None,
            limit: None,
            mode: Mode::Enforce,
            failcnt: 0,
            unit: resource.unit(),
            how: How::Unavailable(why.to_owned()),
            note: None,
        }
    }
}

/// All that an account holds, row by row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bill {
    /// Its name: the user's, or the shared account's with `=`.
    pub account: String,
    /// Its user; absent for a shared account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Its id: the uid, or from 2^32 on that of a shared account.
    pub id: u64,
    /// Its rows by name.
    pub resources: BTreeMap<Resource, Bean>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_read_as_openvz_reads_them() {
        let table = [
            (Resource::Numproc, "200:220", "200:220"),
            (Resource::Numproc, "240", "240:240"),
            (Resource::Privvmpages, "256M:272M", "65536:69632"),
            (Resource::Privvmpages, "65536:69632", "65536:69632"),
            (Resource::Lockedpages, "8p:8p", "8:8"),
            (Resource::Kmemsize, "2.5k:3K", "2560:3072"),
            (Resource::Vmguarpages, "33792:unlimited", "33792:unlimited"),
            (Resource::Physpages, "0:9223372036854775807", "0:unlimited"),
            (
                Resource::Numfile,
                "99999999999999999999999",
                "unlimited:unlimited",
            ),
        ];
        for (resource, text, shown) in table {
            let bounds = RowBounds::parse(resource, text).unwrap();
            assert_eq!(bounds.to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_bound_says_so() {
        for text in ["", "x", "1:2:3", "-1", "1.5", "1:", "1e3", "1:2x"] {
            let error = RowBounds::parse(Resource::Numproc, text).unwrap_err();
            assert!(
                matches!(error, RowBoundsError::Malformed(_)),
                "{text:?} {error}"
            );
        }
        assert!(matches!(
            RowBounds::parse(Resource::Numproc, "1K"),
            Err(RowBoundsError::UnitOfPieces(_))
        ));
        assert!(matches!(
            RowBounds::parse(Resource::Numproc, "3:2"),
            Err(RowBoundsError::BarrierTooHigh { .. })
        ));
        assert!(matches!(
            RowBounds::parse(Resource::Numproc, "unlimited:2"),
            Err(RowBoundsError::BarrierTooHigh { .. })
        ));
    }

    #[test]
    fn how_is_read_as_it_was_written() {
        for how in [
            How::Exact,
            How::Modelled,
            How::Sampled { every: None },
            How::Sampled { every: Some(10) },
            How::Unavailable("no reason".to_owned()),
        ] {
            assert_eq!(How::from(how.to_string()), how);
        }
    }

    #[test]
    fn every_beancounter_is_found_by_its_name() {
        for resource in Resource::BEANCOUNTERS {
            assert_eq!(Resource::beancounter(resource.name()), Some(resource));
            let json = serde_json::to_string(&resource).unwrap();
            assert_eq!(json, format!("{:?}", resource.name()));
        }
        assert_eq!(Resource::beancounter("memory"), None);
    }

    proptest! {
        #[test]
        fn bounds_show_as_they_can_be_read(barrier in 0_u64..1 << 50, more in 0_u64..1 << 50) {
            let bounds = RowBounds::new(Some(barrier), Some(barrier + more)).unwrap();
            prop_assert_eq!(bounds.to_string().parse(), Ok(bounds));
        }
    }
}
