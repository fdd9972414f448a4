// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of what holds that nobody set: names that stand for others, groups with other members, temporary limits that end.
//! Where one would kill, who is over is told first, and it waits.

use std::collections::BTreeSet;
use std::time::Instant;

use bursar_config::Limits;
use bursar_model::AccountId;
use bursar_policy::Plan;
use jiff::Timestamp;

use crate::accounts::OverLimit;
use crate::daemon::Daemon;
use crate::delay::Verdict;
use crate::retries::Task;

/// Why limits change that nobody set.
const NAMES_CHANGED: &str = "a user or group name in the limits now means somebody else";
const LIMIT_ENDED: &str = "a temporary limit has ended";

impl Daemon {
    /// A name in the limits has another answer.
    pub(crate) fn names_answered(&mut self) {
        if self.accounts.table.names().take_news() {
            self.look_up_again(NAMES_CHANGED);
        }
    }

    /// Whether the files that say who is a user and who is in which group have changed.
    pub(crate) fn account_files_changed(&mut self) -> bool {
        let have_changed = self.accounts.table.files().take_news();
        if have_changed {
            self.accounts.table.review_names();
        }
        have_changed
    }

    /// A change that waited has its time.
    pub(crate) fn delay_is_over(&mut self) {
        if let Some(why) = self.delay.take_due() {
            self.look_up_again(why);
            self.read_written();
        }
    }

    /// What failed has its time again.
    pub(crate) fn try_again(&mut self) {
        for (task, why) in self.retries.take_due(Instant::now()) {
            match task {
                Task::Limits => self.look_up_again(why),
                Task::ExemptCgroups => self.exempt_cgroups(),
                Task::Arrivals => self.accounts.retry_arrivals(),
            }
        }
    }

    /// A temporary limit has come to its end, or the clock was set.
    pub(crate) fn limit_ends(&mut self) {
        self.expiry.take();
        self.look_up_again(LIMIT_ENDED);
    }

    /// The file that says whose subordinate uids are has changed.
    pub(crate) fn subuid_changed(&mut self) {
        if self.accounts.table.subuid().take_news() {
            self.look_up_again("whose subordinate uids are was read again");
        }
    }

    /// Somebody may be here who is a user, though another one was given the uid as a subordinate one.
    pub(crate) fn look_for_subuid_users(&mut self) {
        match self.accounts.have_subuids_users() {
            Ok(true) => {
                let limits = self.accounts.table.limits().as_of(Timestamp::now());
                let plan = self.accounts.table.plan_with(&limits);
                self.change_to(
                    limits,
                    plan,
                    "a user's uid lies in another user's subordinate range",
                );
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!("users are not looked for among subordinate uids: {error:#}")
            }
        }
    }

    /// What has changed by itself while no bursard ran, or was told of and waited when it ended.
    pub(crate) fn catch_up(&mut self) {
        if !self.accounts.table.is_as_before() {
            return;
        }
        let limits = self.accounts.table.limits().as_of(Timestamp::now());
        let have_ended = !limits
            .changes_since(self.accounts.table.limits())
            .is_empty();
        let plan = self.accounts.table.plan_with(&limits);
        self.accounts.table.remark_as(&plan);
        let why = if have_ended {
            LIMIT_ENDED
        } else {
            NAMES_CHANGED
        };
        self.change_to(limits, plan, why);
    }

    /// What the names in the limits stand for may have changed, or what of them holds at this moment.
    fn look_up_again(&mut self, why: &'static str) {
        self.accounts.forget_absent();
        let limits = self.accounts.table.limits().as_of(Timestamp::now());
        let plan = self.accounts.table.plan_anew(&limits);
        self.change_to(limits, plan, why);
    }

    /// Puts a change in force that nobody set, unless it has to wait.
    fn change_to(&mut self, limits: Limits, plan: Plan, why: &'static str) {
        let before = self.accounts.table.limits().clone();
        if !self.holds_now(&plan, why) {
            self.accounts.table.watch_names();
            return;
        }
        let is_other = plan != *self.accounts.table.plan();
        let count = limits.len();
        match self.adopt(limits, plan) {
            Ok(()) => {
                self.note_read(&before);
                if is_other {
                    self.note_reloaded(format!("{why}; {count} limits in force"));
                }
            }
            Err(error) => {
                self.accounts.table.watch_names();
                if self.retries.note(Task::Limits, why, &error, Instant::now()) {
                    tracing::error!("{why}, and the limits stay as they were for now: {error:#}");
                }
            }
        }
    }

    /// Whether a change that nobody set holds at once. Where it would kill, who is over is told first.
    pub(crate) fn holds_now(&mut self, plan: &Plan, why: &'static str) -> bool {
        let over = match self.accounts.over_at_once(plan) {
            Ok(over) => over,
            Err(error) => {
                tracing::warn!(
                    "{why}: put in force, and it is not known which accounts are over their limits: {error:#}"
                );
                return true;
            }
        };
        let limits = over.iter().map(|it| (it.id, it.limit)).collect();
        let those = |ids: &BTreeSet<AccountId>| -> Vec<OverLimit> {
            let over = over.into_iter();
            over.filter(|it| ids.contains(&it.id)).collect()
        };
        match self.delay.judge(why, &limits, Instant::now()) {
            Verdict::Now(new) => {
                self.responder.announce(&those(&new));
                true
            }
            Verdict::Later(fresh, within) => {
                let over = those(&fresh);
                self.responder.warn_of(&over, why, within, &self.accounts);
                false
            }
        }
    }
}
