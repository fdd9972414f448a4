// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sysctls that have a value while a condition holds (S4 "Doing more"), set when it begins to and put back when it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bursar_config::{Quantity, Sysctl, SysctlRule};
use bursar_host::machine::online_cpus;
use bursar_model::Bytes;

use super::{Engine, Standing};
use crate::knob::Knob;

/// What the engine is told from outside, by whoever counts accounts.
#[derive(Debug, Default)]
pub struct AccountFacts {
    margin: AtomicU64,
    held: Mutex<BTreeMap<String, Bytes>>,
}

impl AccountFacts {
    /// What is to stay free for the time of a reap.
    pub fn keep(&self, margin: Bytes) {
        self.margin.store(margin.get(), Ordering::Relaxed);
    }

    pub(super) fn margin(&self) -> Bytes {
        Bytes::new(self.margin.load(Ordering::Relaxed))
    }

    /// What accounts hold, by WHO as rules have it. Who is not in it is not counted.
    pub fn hold(&self, held: BTreeMap<String, Bytes>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    fn held_by(&self, who: &str) -> Option<Bytes> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(who).copied()
    }
}

/// How one sysctl stands with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Followed {
    /// It has a rule's value, for this reason.
    While(String),
    /// It is left alone, for this reason.
    LeftAlone(String),
}

impl Engine {
    /// Brings each sysctl that has rules to where they want it.
    pub(super) fn follow_rules(&mut self) {
        if self.standing != Standing::Acting || self.saved.is_none() {
            return;
        }
        let mut sysctls: Vec<Sysctl> = Vec::new();
        for rule in &self.settings.sysctls_while {
            if !sysctls.contains(&rule.sysctl) {
                sysctls.push(rule.sysctl);
            }
        }
        for sysctl in sysctls {
            if matches!(self.followed.get(&sysctl), Some(Followed::LeftAlone(_))) {
                continue;
            }
            let holding = self.holding_rule(sysctl).cloned();
            match self.bring(sysctl, holding.as_ref()) {
                Ok(()) => {
                    let reason = holding.map(|it| Followed::While(it.when.to_string()));
                    match reason {
                        Some(reason) => self.followed.insert(sysctl, reason),
                        None => self.followed.remove(&sysctl),
                    };
                }
                Err(why) => {
                    tracing::warn!("watermarks: {} is left alone: {why}", sysctl.name());
                    self.followed.insert(sysctl, Followed::LeftAlone(why));
                }
            }
        }
    }

    /// Puts back what rules have set: nobody looks any more whether they hold. What cannot be put back now is when
    /// bursard ends.
    pub(super) fn end_rules(&mut self) {
        for (sysctl, followed) in std::mem::take(&mut self.followed) {
            if matches!(followed, Followed::While(_))
                && let Err(why) = self.bring(sysctl, None)
            {
                tracing::warn!("watermarks: {} is left as it is: {why}", sysctl.name());
            }
        }
    }

    /// The first rule for a sysctl whose condition holds.
    fn holding_rule(&self, sysctl: Sysctl) -> Option<&SysctlRule> {
        let rules = &self.settings.sysctls_while;
        rules.iter().find(|rule| {
            let amount = self.amount_of(&rule.when.quantity);
            rule.sysctl == sysctl && amount.is_some_and(|it| rule.when.holds(it))
        })
    }

    /// `None`: it is not known, and no rule about it holds.
    fn amount_of(&self, quantity: &Quantity) -> Option<u64> {
        let memory = self.observer.memory();
        match quantity {
            Quantity::HugePages => memory.map(|it| it.hugetlb.get()),
            Quantity::Memory => memory.map(|it| it.total.get()),
            Quantity::Swap => memory.map(|it| it.swap_total.get()),
            Quantity::Cpus => online_cpus(&self.paths.sys).ok().map(|it| it.len() as u64),
            Quantity::Held(who) => self.account_facts.held_by(&who.to_string()).map(Bytes::get),
        }
    }

    /// Sets a sysctl to its rule's value; without one to what was configured for always, or to its original.
    fn bring(&mut self, sysctl: Sysctl, rule: Option<&SysctlRule>) -> Result<(), String> {
        let Some(saved) = &mut self.saved else {
            return Ok(());
        };
        let knob = Knob::of(sysctl, &self.paths);
        let Some(current) = knob.read().map_err(|error| error.to_string())? else {
            return Err("this kernel does not have it".to_owned());
        };
        let turned = saved.turned().iter().find(|it| it.knob.sysctl() == sysctl);
        let turned = turned.map(|it| (it.original, it.written));
        if let Some((_, written)) = turned
            && written != current
        {
            saved.give_up(sysctl);
            return Err(format!(
                "bursar had set it to {written}, and somebody else set it to {current}"
            ));
        }
        let mut settings = self.settings.sysctls.iter();
        let always = settings.find(|(of, _)| *of == sysctl);
        let always = always.map(|(_, value)| *value);
        let original = turned.map(|(original, _)| original);
        let Some(wanted) = rule
            .map(|it| it.value)
            .or(always.filter(|_| turned.is_some()))
            .or(original)
        else {
            return Ok(());
        };
        if wanted != current {
            if let Some(obstacle) = knob.obstacle(&self.paths).map_err(|it| it.to_string())? {
                return Err(obstacle);
            }
            saved
                .turn(&knob, current, wanted)
                .map_err(|error| format!("it cannot be set to {wanted}: {error}"))?;
            self.effort.writes = self.effort.writes.saturating_add(1);
            match rule {
                Some(rule) => {
                    tracing::info!(
                        "watermarks: {} is {wanted} while {}",
                        knob.name(),
                        rule.when
                    );
                }
                None => tracing::info!("watermarks: {} is {wanted} again", knob.name()),
            }
        }
        // Put back, it is anybody's.
        if rule.is_none() && always.is_none() && turned.is_some() {
            saved.give_up(sysctl);
        }
        Ok(())
    }

    /// What stands for which reason, and what is left alone.
    pub(super) fn words_on_rules(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (sysctl, followed) in &self.followed {
            let name = sysctl.name();
            words.push(match followed {
                Followed::While(condition) => format!("{name} is set while {condition}"),
                Followed::LeftAlone(why) => {
                    format!("{name} is left alone until bursard starts again: {why}")
                }
            });
        }
        for rule in &self.settings.sysctls_while {
            let quantity = &rule.when.quantity;
            if self.standing == Standing::Acting && self.amount_of(quantity).is_none() {
                let remark = format!("{quantity} is not known, so no rule about it holds");
                if !words.contains(&remark) {
                    words.push(remark);
                }
            }
        }
        words
    }
}
