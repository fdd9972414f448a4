// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who would be over his limit the moment other limits hold, and so have a process killed at once.

use anyhow::{Context, Result};
use bursar_model::{AccountId, Bytes, Event, EventKind};
use bursar_policy::Plan;

use super::Daemon;
use crate::payers::present;

/// Accounts told of one by one when limits are read again; a new `default` may concern thousands.
const MOST_NAMED: usize = 100;

/// An account that a changed plan would put over its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Over {
    id: AccountId,
    pub(crate) name: String,
    pub(crate) held: Bytes,
    pub(crate) limit: Bytes,
}

impl Over {
    fn by(&self) -> Bytes {
        self.held.saturating_sub(self.limit)
    }
}

impl Daemon {
    /// Who would have somebody killed at once if this plan were put in force, the one that is furthest over
    /// first: whose account it makes tighter, with what is held now by all who will pay into it.
    pub(crate) fn over_at_once(&mut self, new: &Plan) -> Result<Vec<Over>> {
        let old = self.limit_table.plan();
        let closing = new.closes(old);
        let mut ordinary = old.payers();
        if new.lowers_default(old) {
            ordinary.extend(present(&self.proc, &mut self.query)?);
        }
        let returning = self.backend.entrants(&closing)?;
        ordinary.extend(&returning);
        ordinary.retain(|&uid| self.coverage.covers(uid));
        let tightened = new.tightened(self.limit_table.plan(), &ordinary, &returning);
        if tightened.is_empty() {
            return Ok(Vec::new());
        }
        let projections = tightened
            .iter()
            .map(|(&id, it)| (id, it.payers.clone()))
            .collect();
        let held = self.backend.measure(&projections, &closing)?;
        let mut over: Vec<Over> = held
            .into_iter()
            .filter_map(|(id, held)| {
                let limit = tightened.get(&id)?.limit;
                (held > limit).then(|| Over {
                    id,
                    name: self.name_in(new, id),
                    held,
                    limit,
                })
            })
            .collect();
        over.sort_by_key(|it| std::cmp::Reverse(it.by()));
        Ok(over)
    }

    fn name_in(&mut self, new: &Plan, id: AccountId) -> String {
        match new.accounts.get(&id) {
            Some(planned) if id.uid().is_none() => planned.who.to_string(),
            _ => self.limit_table.name_of(id).0,
        }
    }

    /// Says who is over the limits that are about to be put in force without anybody being asked: what
    /// follows is their kill, and this is what it is for.
    pub(super) fn announce(&mut self, new: &Plan) {
        let over = match self.over_at_once(new).context("look who is over them") {
            Ok(over) => over,
            Err(error) => {
                tracing::warn!(
                    "limits are put in force, and nobody knows who is over them: {error:#}"
                );
                return;
            }
        };
        for it in over.iter().take(MOST_NAMED) {
            let mut event = Event::new(EventKind::LimitChanged);
            event.account = Some(it.name.clone());
            event.uid = it.id.uid();
            event.held = Some(it.held);
            event.limit = Some(it.limit);
            event.overcommit = Some(it.by());
            event.reason = Some("this limit holds from now on".to_owned());
            let event = self.recorder.tell(event);
            self.fresh.push(event);
        }
        let others = over.len().saturating_sub(MOST_NAMED);
        if others > 0 {
            let reason =
                format!("{others} more accounts hold more than the limit that holds from now on");
            self.note(EventKind::LimitChanged, None, reason);
        }
    }
}
