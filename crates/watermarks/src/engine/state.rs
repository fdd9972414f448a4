// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the engine tells of itself.

use bursar_config::Watermarks;
use bursar_kernel::StallTotal;
use bursar_model::Nanos;
use bursar_policy::watermarks::{Sample, ScaleBounds};

use super::{Effort, Engine, Standing, UserRows};
use crate::decision_log::DecisionLog;
use crate::saved::{SavedValues, Turned};

impl Engine {
    /// Whether it acts.
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// What was configured.
    pub const fn settings(&self) -> &Watermarks {
        &self.settings
    }

    /// The last sample.
    pub fn sample(&self) -> &Sample {
        self.observer.sample()
    }

    /// Between which values the factor may be moved; the lowest is its original.
    pub const fn bounds(&self) -> ScaleBounds {
        self.bounds
    }

    /// What was decided.
    pub const fn decision_log(&self) -> &DecisionLog {
        &self.decision_log
    }

    /// How often it looked.
    pub const fn effort(&self) -> Effort {
        self.effort
    }

    /// Knobs that are turned now, with their originals.
    pub fn turned(&self) -> &[Turned] {
        self.saved.as_ref().map_or(&[], SavedValues::turned)
    }

    /// Stalls as the kernel half measured them; an error says why it does not.
    ///
    /// # Errors
    /// Why stalls are not timed.
    pub fn stalls(&self, now: Nanos) -> Result<(StallTotal, UserRows), &str> {
        let meter = self.meter.as_ref().map_err(String::as_str)?;
        Ok((meter.total(now), meter.users()))
    }

    /// What an administrator should know.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.remarks.clone();
        remarks.extend(self.words_on_rules());
        if let Some(failure) = &self.last_failure {
            let count = self.effort.failures;
            remarks.push(format!("{count} looks failed, the last one: {failure}"));
        }
        if let Some((count, cap)) = self.negative_dentries()
            && count > cap
        {
            remarks.push(format!(
                "{count} negative dentries are more than the {cap} of watermarks.negative_dentries_permille"
            ));
        }
        remarks
    }
}
