// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is set once or looked at rarely: other sysctls, huge pages, negative dentries.

use bursar_config::Sysctl;
use bursar_host::machine::page_size;
use bursar_policy::watermarks::ScaleBounds;

use super::{Engine, Standing};
use crate::dentries;
use crate::huge_pages::highest_scale;
use crate::knob::Knob;

impl Engine {
    /// Sysctls that are set once (S4 "Doing more").
    pub(super) fn set_sysctls(&mut self) {
        let Some(saved) = &mut self.saved else {
            return;
        };
        for (sysctl, value) in &self.settings.sysctls {
            let knob = Knob::of(*sysctl, &self.paths);
            let done = match knob.read() {
                Ok(Some(current)) if current == *value => Ok(()),
                Ok(Some(current)) => match knob.obstacle(&self.paths) {
                    Ok(None) => saved.turn(&knob, current, *value),
                    Ok(Some(obstacle)) => Err(std::io::Error::other(obstacle)),
                    Err(error) => Err(error),
                },
                Ok(None) => Err(std::io::Error::other("this kernel does not have it")),
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => self.effort.writes = self.effort.writes.saturating_add(1),
                Err(error) => {
                    let remark = format!("{} could not be set to {value}: {error}", knob.name());
                    tracing::warn!("{remark}");
                    self.remarks.push(remark);
                }
            }
        }
    }

    /// Rules, huge pages and negative dentries.
    pub(super) fn look_at_slow_things(&mut self) {
        self.follow_rules();
        let managed = self.observer.sample().managed();
        let shift = page_size().shift();
        let huge = self.observer.memory().map_or(0, |it| it.hugetlb.get());
        let has_changed = huge != self.huge_bytes;
        if has_changed {
            self.huge_bytes = huge;
            let highest = highest_scale(self.settings.max_scale, managed, huge >> shift);
            self.bounds = ScaleBounds::new(self.bounds.lowest(), highest);
            self.model.rebound(self.bounds);
            tracing::info!(
                huge_bytes = huge,
                max_scale = self.bounds.highest(),
                "the number of huge pages changed"
            );
        }
        if self.settings.negative_dentries_permille > 0 {
            self.look_at_dentries(managed << shift, huge, has_changed);
        }
    }

    fn look_at_dentries(&mut self, managed_bytes: u64, huge: u64, has_changed: bool) {
        let share = self.settings.negative_dentries_permille;
        self.dentries = dentries::negative(&self.paths.proc);
        if self.standing != Standing::Acting {
            return;
        }
        let Some(saved) = &mut self.saved else {
            return;
        };
        let limit = Knob::of(Sysctl::NegativeDentryLimit, &self.paths);
        if let Ok(Some(current)) = limit.read() {
            let wanted = dentries::limit_permille(share, managed_bytes, huge);
            let is_ours = saved.original_of(Sysctl::NegativeDentryLimit).is_some();
            if current != wanted && (has_changed || !is_ours) {
                self.effort.writes = self.effort.writes.saturating_add(1);
                if let Err(error) = saved.turn(&limit, current, wanted) {
                    self.refused(limit.name(), &error);
                }
            }
            return;
        }
        // Mainline has no limit; 6.18 can forget a name together with its file.
        let forget = Knob::of(Sysctl::DentryNegative, &self.paths);
        let (Some(count), Ok(Some(current))) = (self.dentries, forget.read()) else {
            return;
        };
        let cap = dentries::cap(share, managed_bytes, huge);
        let wanted = match () {
            () if count > cap => 1,
            () if count < cap / 2 => saved.original_of(Sysctl::DentryNegative).unwrap_or(current),
            () => current,
        };
        if wanted != current {
            self.effort.writes = self.effort.writes.saturating_add(1);
            if let Err(error) = saved.turn(&forget, current, wanted) {
                self.refused(forget.name(), &error);
            }
        }
    }

    /// Negative dentries when they were last looked at, and the most there should be.
    pub fn negative_dentries(&self) -> Option<(u64, u64)> {
        let shift = page_size().shift();
        let managed = self.observer.sample().managed() << shift;
        let share = self.settings.negative_dentries_permille;
        self.dentries
            .map(|count| (count, dentries::cap(share, managed, self.huge_bytes)))
    }
}
