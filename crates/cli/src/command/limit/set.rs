// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit set`.

use std::collections::BTreeMap;
use std::time::Duration;

use bursar_model::{
    BoundsSpec, Mode, Reason, Resource, RowBounds, RowBoundsError, SizeError, SizeSpec, Who,
};
use bursar_protocol::{LimitChange, Operation, Preview, Reply, RowsChange, Terms};
use clap::Args;

use super::{Done, Outcome, change, terms, who};
use crate::caller::Caller;
use crate::command::check::ram;
use crate::failure::Failure;
use crate::since::span;
use crate::until::{self, End};
use crate::view;

const WHO_AND_SIZE: &str = concat!(
    who!(),
    "
SIZE is bytes with K, M, G or T (1024), a percentage of RAM, or none.
RESOURCE is a beancounter (bursar beancounters shows them all). Its bounds are counted in pieces
(numproc=200:220), in pages of 4 KiB or with a unit (shmpages=64M), in bytes (kmemsize=32M:35M);
one number is both, unlimited takes it away.

Examples: bursar limit set alice 8G
          bursar limit set default 25% --notice 80%
          bursar limit set alice numproc=200 numfile=4096
          bursar limit set alice 32G --until \"tomorrow 09:00\" --reason deadline
          bursar limit set @students 8G --observe"
);

/// Give somebody a limit
///
/// It is in force at once, written to limits.toml, and holds until it is changed or cleared, also
/// while bursard does not run. Where a drop-in (limits.toml.d/*.toml) has an entry for WHO, that one
/// holds: nothing is changed then. A limit that is in force already is not set again: --json says "changed": false.
#[derive(Debug, Args)]
#[command(after_help = WHO_AND_SIZE)]
pub(crate) struct Set {
    /// Whose limit
    who: Who,
    /// SIZE: what may be held; above it the largest process is killed. RESOURCE=BARRIER:LIMIT: a
    /// beancounter, in its unit
    #[arg(value_name = "SIZE|RESOURCE=BARRIER:LIMIT", required = true, value_parser = wanted)]
    bounds: Vec<Wanted>,
    /// Above this the user is told; a percentage is of the limit [default: 90%]
    #[arg(long, value_name = "SIZE|PCT")]
    notice: Option<SizeSpec>,
    /// Above this new requests are refused, where the kernel can; a percentage is of the limit
    /// [default: 95%]
    #[arg(long, value_name = "SIZE|PCT")]
    barrier: Option<SizeSpec>,
    /// Set the limit even if somebody is over it already: the largest process is killed at once. Also set one on
    /// root
    #[arg(long)]
    force: bool,
    /// Why, in one line of at most 200 bytes: kept with the limit, shown by limit show and log, and to the
    /// user by quota. Omitting it removes an earlier reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
    /// When it ends: 17:30, tomorrow, "tomorrow 09:00", "2026-12-01 09:00" (local times) or a moment (RFC 3339).
    /// Until then it holds over the limit without an end, which holds again afterwards
    #[arg(long, value_name = "TIME", conflicts_with = "span")]
    until: Option<End>,
    /// The same, as how long from now on: 90m, 4h, 2d
    #[arg(long = "for", value_name = "SPAN", value_parser = span)]
    span: Option<Duration>,
    /// Only observe: events (would_notice, would_refuse, would_kill) tell what enforcing would do, and nobody is
    /// told, refused or killed. Kept until --enforce
    #[arg(long)]
    observe: bool,
    /// Enforce what was only observed
    #[arg(long, conflicts_with = "observe")]
    enforce: bool,
    /// Only show what it would change: who would be over which bound, and who would be killed
    #[arg(long)]
    dry_run: bool,
}

/// What a bound is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Memory(SizeSpec),
    Row(Resource, RowBounds),
}

impl Set {
    pub(super) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Self {
            who,
            bounds,
            notice,
            barrier,
            force,
            reason,
            until,
            span,
            observe,
            enforce,
            dry_run,
        } = self;
        let until = match (until, span) {
            (Some(end), _) => Some(end.as_of(&caller.clock)),
            (None, span) => span.map(|it| until::after(it, &caller.clock)),
        };
        let terms = Terms {
            until: until.transpose().map_err(Failure::usage)?,
            mode: mode(observe, enforce),
            dry_run,
            ..terms(reason)
        };
        let ends = terms.until;
        let (size, rows) = sorted(bounds)?;
        if size.is_none() && (notice.is_some() || barrier.is_some()) {
            let message = "--notice and --barrier belong to a SIZE; a beancounter has its barrier before \
                           the colon";
            return Err(Failure::usage(message));
        }
        let memory = size.map(|limit| BoundsSpec {
            limit,
            notice,
            barrier,
        });
        let asks = asks(&who, memory, &rows, force, &terms);
        if dry_run {
            return try_out(caller, asks);
        }
        let mut all = Outcome::default();
        for (number, ask) in asks.into_iter().enumerate() {
            let done =
                change(caller, ask).map_err(|failure| match memory.filter(|_| number > 0) {
                    Some(BoundsSpec { limit, .. }) => {
                        failure.adding(format!("the SIZE, {limit}, was set before that and stays"))
                    }
                    None => failure,
                })?;
            all.add(done);
        }
        let Outcome {
            mut remarks,
            is_change,
            old,
            new,
        } = all;
        remarks.dedup();
        let done = Done {
            who: &who,
            changed: is_change,
            old,
            new,
            memory,
            rows,
            remarks: &remarks,
        };
        caller.answer(&done, |done| {
            let said = view::limits::set(&who, memory, &done.rows, &remarks, ram(), &caller.style);
            let end = ends.map_or_else(String::new, |it| {
                view::limits::ends(it, &caller.clock, &caller.style)
            });
            match is_change {
                true => said + &end,
                false => view::limits::as_before(&who, &remarks, &caller.style),
            }
        })
    }
}

/// Absent: as before.
const fn mode(observe: bool, enforce: bool) -> Option<Mode> {
    match (observe, enforce) {
        (true, _) => Some(Mode::Observe),
        (false, true) => Some(Mode::Enforce),
        (false, false) => None,
    }
}

/// What bursard is asked for: memory, then rows.
fn asks(
    who: &Who,
    memory: Option<BoundsSpec>,
    rows: &BTreeMap<Resource, RowBounds>,
    force: bool,
    terms: &Terms,
) -> Vec<Operation> {
    let of_memory = memory.map(|memory| {
        Operation::SetLimit(LimitChange {
            who: who.clone(),
            memory,
            force,
            terms: terms.clone(),
        })
    });
    let of_rows = (!rows.is_empty()).then(|| {
        Operation::SetRows(RowsChange {
            who: who.clone(),
            rows: rows.clone(),
            force,
            terms: terms.clone(),
        })
    });
    of_memory.into_iter().chain(of_rows).collect()
}

/// Shows what a change would change, as one answer.
fn try_out(caller: &Caller, asks: Vec<Operation>) -> Result<(), Failure> {
    let mut all: Option<Preview> = None;
    for ask in asks {
        let one = previewed(caller, ask).map_err(|failure| match all {
            Some(_) => failure.adding("it was tried without the SIZE, which is not set yet"),
            None => failure,
        })?;
        all = Some(match all {
            Some(of_memory) => both(of_memory, one),
            None => one,
        });
    }
    let all = all.unwrap_or_default();
    caller.answer(&all, |it| view::preview::preview(it, &caller.style))
}

fn previewed(caller: &Caller, ask: Operation) -> Result<Preview, Failure> {
    match caller.ask(ask)? {
        Reply::Preview(preview) => Ok(*preview),
        // It is so already.
        Reply::Changed { remarks, .. } => Ok(Preview {
            remarks,
            ..Preview::default()
        }),
        _ => Err(Failure::off_topic()),
    }
}

/// Rows beside a SIZE change nobody's limit on memory: tried without it they may seem to.
fn both(of_memory: Preview, of_rows: Preview) -> Preview {
    let mut remarks = of_memory.remarks;
    for remark in of_rows.remarks {
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }
    Preview {
        remarks,
        ..of_memory
    }
}

/// The SIZE, if there is one, and rows.
fn sorted(
    bounds: Vec<Wanted>,
) -> Result<(Option<SizeSpec>, BTreeMap<Resource, RowBounds>), Failure> {
    let mut size = None;
    let mut rows = BTreeMap::new();
    for wanted in bounds {
        match wanted {
            Wanted::Memory(_) if size.is_some() => {
                return Err(Failure::usage("one SIZE is enough"));
            }
            Wanted::Memory(limit) => size = Some(limit),
            Wanted::Row(resource, bounds) => {
                rows.insert(resource, bounds);
            }
        }
    }
    Ok((size, rows))
}

/// SIZE, or RESOURCE=BARRIER:LIMIT.
fn wanted(text: &str) -> Result<Wanted, String> {
    let Some((name, bounds)) = text.split_once('=') else {
        let size = text.parse().map_err(|error: SizeError| error.to_string())?;
        return Ok(Wanted::Memory(size));
    };
    if name == Resource::Memory.name() {
        return Err("write the limit as SIZE, and the barrier with --barrier".into());
    }
    let Some(resource) = Resource::beancounter(name) else {
        let names: Vec<&str> = Resource::BEANCOUNTERS.iter().map(|it| it.name()).collect();
        return Err(format!(
            "this bursar has no resource {name:?}; it has: {}",
            names.join(", ")
        ));
    };
    let bounds = RowBounds::parse(resource, bounds)
        .map_err(|error: RowBoundsError| format!("{name}: {error}"))?;
    Ok(Wanted::Row(resource, bounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_size_and_rows_together_the_size_says_what_becomes_of_memory() {
        let preview = |left_out, refused, remarks: &[&str]| Preview {
            accounts: Vec::new(),
            left_out,
            refused,
            remarks: remarks.iter().map(|&it| it.to_owned()).collect(),
        };
        let of_memory = preview(1, false, &["ghost: nobody", "memory"]);
        let of_rows = preview(2, true, &["ghost: nobody", "rows"]);
        assert_eq!(
            both(of_memory, of_rows),
            preview(1, false, &["ghost: nobody", "memory", "rows"])
        );
    }
}
