// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What our autogroup weighs among others while a reaper is urgent.
//!
//! Without CAP_SYS_ADMIN the kernel takes one change in a tenth of a second, all sessions together: a change that is
//! refused is done without or made later, so neither weight may be one that would harm if it stayed.

use bursar_host::OwnAutogroup;
use bursar_model::Nanos;
use bursar_policy::{AUTOGROUP_STAYS, URGENT_AUTOGROUP_NICE};

/// What it comes to where the weight cannot be changed.
const AS_ONE: &str = "reapers share CPUs with other sessions as one autogroup among many";

/// As it was, or raised.
#[derive(Debug, Default)]
pub(crate) struct Autogroup {
    own: Option<OwnAutogroup>,
    is_raised: bool,
    /// When it was changed last, or that was tried last.
    changed: Option<Nanos>,
}

impl Autogroup {
    /// The one that this process leads, if it does.
    pub(crate) fn own() -> Self {
        let own = OwnAutogroup::led();
        if let Err(error) = &own {
            tracing::info!(%error, "{AS_ONE}");
        }
        Self {
            own: own.ok().flatten(),
            ..Self::default()
        }
    }

    /// A reaper is urgent.
    pub(crate) fn raise(&mut self, now: Nanos) {
        if !self.is_raised && self.may_change(now) {
            self.is_raised = self.weigh(now, |_| URGENT_AUTOGROUP_NICE);
        }
    }

    /// None is; when to ask again, if that is to be.
    pub(crate) fn rest(&mut self, now: Nanos) -> Option<Nanos> {
        if self.is_raised && self.may_change(now) {
            self.is_raised = !self.weigh(now, OwnAutogroup::first_nice);
        }
        let changed = self.changed.filter(|_| self.is_raised)?;
        Some(Nanos::new(
            changed.get().saturating_add(AUTOGROUP_STAYS.get()),
        ))
    }

    fn may_change(&self, now: Nanos) -> bool {
        let is_due = |it: Nanos| now.get().saturating_sub(it.get()) >= AUTOGROUP_STAYS.get();
        self.changed.is_none_or(is_due)
    }

    fn weigh(&mut self, now: Nanos, nice: impl Fn(&OwnAutogroup) -> i8) -> bool {
        self.changed = Some(now);
        let Some(own) = &self.own else {
            return false;
        };
        match own.weigh(nice(own)) {
            Ok(()) => true,
            // Another autogroup's was changed a moment ago.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
            Err(error) => {
                tracing::info!(%error, "{AS_ONE}");
                self.own = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_we_do_not_lead_is_left_alone() {
        let mut autogroup = Autogroup::default();
        let now = Nanos::new(1_000_000_000);
        autogroup.raise(now);
        assert_eq!(autogroup.rest(now), None);
    }
}
