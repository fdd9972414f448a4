// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of a WHO's two entries a change is of, the one that ends or the one that does not, and how it is written.

use std::collections::BTreeMap;

use bursar_config::{ConfigError, Limit, Limits, Temporary};
use bursar_model::{BoundsSpec, EntrySpec, Resource, RowBounds, Who};
use bursar_protocol::{ErrorKind, Refusal, Terms};
use jiff::Timestamp;

use super::permission::refusal;

/// An end in the past would be a change without effect.
pub(super) fn may_end(terms: &Terms) -> Result<(), Refusal> {
    let now = Timestamp::now();
    match terms.until {
        Some(until) if until.is_past(now) => {
            let message = format!("the end {until} is past (it is {now:.0}): choose a later one");
            Err(refusal(ErrorKind::BadRequest, message))
        }
        _ => Ok(()),
    }
}

/// The entry that would be changed, as written.
pub(super) fn target<'a>(limits: &'a Limits, who: &Who, terms: &Terms) -> Option<&'a Limit> {
    match terms.until {
        Some(_) => limits.temporary(who),
        None => limits.lasting(who),
    }
}

/// What is told of a change: of an entry without an end what it says, of one with an end what holds.
pub(super) fn told(limits: &Limits, who: &Who, terms: &Terms) -> Option<EntrySpec> {
    let limit = match terms.until {
        Some(_) => limits.get(who),
        None => limits.lasting(who),
    };
    limit.map(Limit::spec)
}

/// Whether an entry says already how the change is to be made: whoever gives no reason leaves the one before.
pub(super) fn are_so(entry: &Limit, terms: &Terms) -> bool {
    let has_reason = terms.reason.is_none() || entry.reason == terms.reason;
    let has_mode = terms.mode.is_none() || entry.mode == terms.mode;
    has_reason && has_mode && entry.until == terms.until
}

/// Changes the entry.
pub(super) fn write(
    limits: &mut Limits,
    who: &Who,
    memory: Option<BoundsSpec>,
    rows: &BTreeMap<Resource, RowBounds>,
    terms: &Terms,
) -> Result<(), ConfigError> {
    let reason = terms.reason.as_ref();
    if let Some(until) = terms.until {
        let temporary = Temporary {
            until,
            memory,
            rows,
            mode: terms.mode,
            reason,
        };
        return limits.set_temporary(who, &temporary);
    }
    if let Some(memory) = memory {
        limits.set(who, memory)?;
    }
    if !rows.is_empty() {
        limits.set_rows(who, rows)?;
    }
    if let Some(mode) = terms.mode {
        limits.set_mode(who, mode)?;
    }
    limits.set_reason(who, reason)
}
