// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel half is loaded with. A change of any of these needs another kernel half.

use std::hash::{DefaultHasher, Hash, Hasher};

use bursar_model::{PageSize, Uid};

use crate::skeleton;

/// How to load the kernel half.
#[derive(Debug, Clone)]
pub struct Options {
    /// Processes the ledger has room for.
    pub max_processes: u32,
    /// Accounts it has room for, the template of `default` included.
    pub max_accounts: u32,
    /// Objects that beancounters can be charged for at a time, over all accounts.
    pub max_objects: u32,
    /// Room for events that nobody has read yet, bytes: a power of two, at least a page.
    pub events_bytes: u32,
    /// CPUs this machine may ever have.
    pub possible_cpus: u32,
    /// The machine's page size.
    pub page_size: PageSize,
    /// S1's literal RSS: file pages count too.
    pub count_file: bool,
    /// Decide at the RSS event.
    pub event_trigger: bool,
    /// Decide at the 200 ms timer.
    pub timer_trigger: bool,
    /// Where the RSS event does not decide, have the user half run the killer at it.
    pub notifier_trigger: bool,
    /// Refuse what would pass the barrier, where the kernel lets us.
    pub gate: bool,
}

/// Settings of a running kernel half, which can change at any time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `default` covers users from here on.
    pub uid_min: Uid,
    /// But not these, first and last included; at most eight.
    pub exempt: Vec<(Uid, Uid)>,
    /// Processes in control groups that [`crate::KernelHalf::exempt`] named are nobody's.
    pub exempts_cgroups: bool,
    /// Users measured by what is committed, first and last included, whatever is usual; at most eight.
    pub committed: Vec<(Uid, Uid)>,
    /// oom_score_adj of processes with a limit; `None` leaves it alone.
    pub raised_adj: Option<u16>,
    /// With less than this free, or easily had, the machine may be short; `None`: nobody wants to know.
    pub short_below: Option<bursar_model::Pages>,
    /// Deaths by others' hands of processes with so much are told of; `None`: none is.
    pub deaths_from: Option<bursar_model::Pages>,
}

impl Options {
    /// lib/percpu_counter.c compute_batch_value(): what one CPU may keep back of one counter, less
    /// one page.
    pub fn counter_batch(&self) -> u32 {
        Self::counter_batch_of(self.possible_cpus)
    }

    /// The same with so many CPUs: the kernel reckons with those that are on.
    pub fn counter_batch_of(cpus: u32) -> u32 {
        cpus.saturating_mul(2).max(32)
    }

    /// Whether the RSS event is heard: where it decides or asks, and where nothing else tells a timer of who has
    /// begun.
    pub(crate) const fn hears_events(&self, timer_walks_tasks: bool) -> bool {
        self.event_trigger || self.notifier_trigger || !timer_walks_tasks
    }

    /// The name of the directory of a kernel half loaded with these options by this build.
    pub(crate) fn pin_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        skeleton::FINGERPRINT.hash(&mut hasher);
        (self.max_processes, self.max_accounts).hash(&mut hasher);
        (self.max_objects, self.events_bytes).hash(&mut hasher);
        (self.possible_cpus, self.page_size.shift(), self.count_file).hash(&mut hasher);
        (self.event_trigger, self.timer_trigger).hash(&mut hasher);
        (self.notifier_trigger, self.gate).hash(&mut hasher);
        format!("half-{:016x}", hasher.finish())
    }
}
