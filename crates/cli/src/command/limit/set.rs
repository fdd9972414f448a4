// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit set`.

use std::collections::BTreeMap;
use std::time::Duration;

use bursar_model::{
    BoundsSpec, Mode, Reason, Resource, RowBounds, RowBoundsError, SizeError, SizeSpec, Who,
};
use bursar_protocol::{
    LimitAndRowsChange, LimitChange, Operation, Preview, Reply, RowsChange, Terms,
};
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
        let ask = ask(&who, memory, &rows, force, terms);
        if dry_run {
            return try_out(caller, ask);
        }
        let Outcome {
            remarks,
            is_change,
            old,
            new,
        } = change(caller, ask)?;
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

/// What bursard is asked for: one change, which holds as a whole or not at all.
fn ask(
    who: &Who,
    memory: Option<BoundsSpec>,
    rows: &BTreeMap<Resource, RowBounds>,
    force: bool,
    terms: Terms,
) -> Operation {
    let who = who.clone();
    match memory {
        Some(memory) if rows.is_empty() => Operation::SetLimit(LimitChange {
            who,
            memory,
            force,
            terms,
        }),
        memory => {
            let rows = RowsChange {
                who,
                rows: rows.clone(),
                force,
                terms,
            };
            match memory {
                Some(memory) => Operation::SetLimitAndRows(LimitAndRowsChange { memory, rows }),
                None => Operation::SetRows(rows),
            }
        }
    }
}

/// Shows what a change would change.
fn try_out(caller: &Caller, ask: Operation) -> Result<(), Failure> {
    let preview = match caller.ask(ask)? {
        Reply::Preview(preview) => *preview,
        // It is so already.
        Reply::Changed { remarks, .. } => Preview {
            remarks,
            ..Preview::default()
        },
        _ => return Err(Failure::off_topic()),
    };
    caller.answer(&preview, |it| view::preview::preview(it, &caller.style))
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
                return Err(Failure::usage(
                    "one SIZE is enough; give one SIZE, or RESOURCE=BARRIER:LIMIT",
                ));
            }
            Wanted::Memory(limit) => size = Some(limit),
            Wanted::Row(resource, bounds) => {
                if rows.insert(resource, bounds).is_some() {
                    let message = format!("{} is given twice; once is enough", resource.name());
                    return Err(Failure::usage(message));
                }
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
