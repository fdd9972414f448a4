// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling a program of the administrator's: the events as JSON on stdin, and nothing of them on its command line or
//! in its environment.

use std::time::Duration;

use crate::child;
use crate::config::ExecRule;
use crate::delivery::Outcome;
use crate::telling::{Envelope, Job, Tell};

/// Programs of one rule.
pub(crate) struct Exec {
    rule: ExecRule,
    host: String,
}

impl Exec {
    pub(crate) fn new(rule: &ExecRule, host: &str) -> Self {
        Self {
            rule: rule.clone(),
            host: host.to_owned(),
        }
    }
}

impl Tell for Exec {
    fn tell(&mut self, job: &Job) -> Outcome {
        let json = Envelope::new(job, &self.host).to_json();
        let timeout = Duration::from_secs(self.rule.time_limit.unsigned_abs());
        let environment = [("BURSAR_DELIVERY", job.id.as_str())];
        let ended = child::run(&self.rule.command, &json, &environment, timeout);
        child::outcome("command", &ended)
    }
}
