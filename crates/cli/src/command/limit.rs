// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit`: set, show, clear, apply, log.

mod apply;
mod log;

use std::collections::BTreeMap;

use bursar_model::{
    BoundsSpec, EntrySpec, Reason, Resource, RowBounds, RowBoundsError, SizeError, SizeSpec, Who,
};
use bursar_protocol::{LimitChange, Operation, Reply, RowsChange, Terms};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::caller::{Caller, heard};
use crate::command::check::ram;
use crate::failure::Failure;
use crate::view;

/// Set, show, clear and apply limits, and show who changed them
#[derive(Debug, Subcommand)]
pub(crate) enum Limit {
    Set(Set),
    Show(Show),
    Clear(Clear),
    Apply(apply::Apply),
    Log(log::Log),
}

/// Give somebody a limit
///
/// It is in force at once, written to limits.toml, and holds until it is changed or cleared, also
/// while bursard does not run. Where a drop-in (limits.toml.d/*.toml) has an entry for WHO, that one
/// holds: nothing is changed then. What is so already is not set again: --json says "changed": false.
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
    /// Also when more is held now than is allowed then: somebody is killed
    #[arg(long)]
    force: bool,
    /// Why, in one line of at most 200 bytes: kept with the limit, shown by limit show and log, and to the
    /// user by quota. Without it a reason given before goes
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

/// What a bound is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Memory(SizeSpec),
    Row(Resource, RowBounds),
}

/// Show the limits as configured
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub(crate) struct Show {
    /// Whose limit; without it, all
    who: Option<Who>,
    /// Also show the file and line of each, and which entries it wins over
    #[arg(long)]
    origin: bool,
}

/// Take a limit away
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub(crate) struct Clear {
    /// Whose limit
    who: Who,
    /// Also when somebody falls back to a limit below what he holds, and will be killed for it
    #[arg(long)]
    force: bool,
    /// Why, in one line of at most 200 bytes: recorded with the change
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

macro_rules! who {
    () => {
        "\
WHO is a user name, a uid, @group (each member by himself), =name (a shared account),
or default (every ordinary user who has no limit of his own)."
    };
}
const WHO: &str = who!();
const WHO_AND_SIZE: &str = concat!(
    who!(),
    "
SIZE is bytes with K, M, G or T (1024), a percentage of RAM, or none.
RESOURCE is a beancounter (bursar beancounters shows them all). Its bounds are counted in pieces
(numproc=200:220), in pages of 4 KiB or with a unit (shmpages=64M), in bytes (kmemsize=32M:35M);
one number is both, unlimited takes it away.

Examples: bursar limit set alice 8G
          bursar limit set default 25% --notice 80%
          bursar limit set alice numproc=200 numfile=4096"
);

/// Past the connection nobody knows how far the daemon got.
const UNKNOWN: &str = "whether the limit was changed is not known: see bursar limit show";

/// What a change did.
#[derive(Debug, Serialize)]
struct Done<'a> {
    who: &'a Who,
    /// Whether it was otherwise before.
    changed: bool,
    /// What the entry said before; absent: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<EntrySpec>,
    /// What it says now.
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<EntrySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<BoundsSpec>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    rows: BTreeMap<Resource, RowBounds>,
    remarks: &'a [String],
}

impl Limit {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Set(set) => set.run(caller),
            Self::Show(show) => show.run(caller),
            Self::Clear(clear) => clear.run(caller),
            Self::Apply(apply) => apply.run(caller),
            Self::Log(log) => log.run(caller),
        }
    }
}

impl Set {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Self {
            who,
            bounds,
            notice,
            barrier,
            force,
            reason,
        } = self;
        let terms = terms(reason);
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
        let mut all = Outcome::default();
        if let Some(memory) = memory {
            let ask = LimitChange {
                who: who.clone(),
                memory,
                force,
                terms: terms.clone(),
            };
            all.add(change(caller, Operation::SetLimit(ask))?);
        }
        if !rows.is_empty() {
            let ask = RowsChange {
                who: who.clone(),
                rows: rows.clone(),
                force,
                terms,
            };
            all.add(change(caller, Operation::SetRows(ask))?);
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
            match is_change {
                true => said,
                false => view::limits::as_before(&who, &remarks, &caller.style),
            }
        })
    }
}

impl Clear {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let done = change(
            caller,
            Operation::ClearLimit {
                who: self.who.clone(),
                force: self.force,
                terms: terms(self.reason),
            },
        )?;
        let Outcome {
            remarks, old, new, ..
        } = done;
        let done = Done {
            who: &self.who,
            changed: true,
            old,
            new,
            memory: None,
            rows: BTreeMap::new(),
            remarks: &remarks,
        };
        caller.answer(&done, |_| {
            view::limits::cleared(&self.who, &remarks, &caller.style)
        })
    }
}

impl Show {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Limits(entries) = caller.ask(Operation::Limits { who: self.who })? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&entries, |entries| {
            view::limits::limits(entries, self.origin, caller.role, ram(), &caller.style)
        })
    }
}

/// What became of an entry.
#[derive(Debug, Default)]
struct Outcome {
    remarks: Vec<String>,
    is_change: bool,
    old: Option<EntrySpec>,
    new: Option<EntrySpec>,
}

impl Outcome {
    /// What another request did after this one.
    fn add(&mut self, later: Self) {
        let is_first = self.old.is_none() && self.new.is_none();
        self.remarks.extend(later.remarks);
        self.is_change |= later.is_change;
        if is_first {
            self.old = later.old;
        }
        self.new = later.new;
    }
}

/// With for whom sudo or doas began us.
fn terms(reason: Option<Reason>) -> Terms {
    let name = |key: &str| std::env::var(key).ok().filter(|it| !it.is_empty());
    Terms {
        reason,
        said_by: name("SUDO_USER").or_else(|| name("DOAS_USER")),
    }
}

fn change(caller: &Caller, ask: Operation) -> Result<Outcome, Failure> {
    let mut client = caller.connect()?;
    let reply = client
        .ask(ask)
        .map_err(|error| Failure::from(error).adding(UNKNOWN))?;
    match heard(reply)? {
        Reply::Changed { remarks, change } => {
            // A bursard that does not say so has changed something.
            let is_change = change.as_ref().is_none_or(|it| it.is_change());
            let (old, new) = change.map(|it| (it.old, it.new)).unwrap_or_default();
            Ok(Outcome {
                remarks,
                is_change,
                old,
                new,
            })
        }
        _ => Err(Failure::off_topic().adding(UNKNOWN)),
    }
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
