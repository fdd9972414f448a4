// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit`: set, show, clear, apply, log.

mod apply;
mod log;
mod set;

use std::collections::BTreeMap;

use bursar_model::{BoundsSpec, EntrySpec, Reason, Resource, RowBounds, Who};
use bursar_protocol::{Operation, Reply, Terms};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::caller::{Caller, heard};
use crate::command::check::ram;
use crate::failure::Failure;
use crate::view;

/// Set, show, clear and apply limits, and show who changed them
#[derive(Debug, Subcommand)]
pub(crate) enum Limit {
    Set(set::Set),
    Show(Show),
    Clear(Clear),
    Apply(apply::Apply),
    Log(log::Log),
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
    /// Only the one that ends (--until, --for): what is below it holds again now
    #[arg(long)]
    temporary: bool,
    /// Why, in one line of at most 200 bytes: recorded with the change
    #[arg(long, value_name = "TEXT")]
    reason: Option<Reason>,
}

macro_rules! who {
    () => {
        "\
WHO is a user name, a uid, @group (each member separately), =name (a shared account),
or default (every ordinary user who has no limit of his own)."
    };
}
const WHO: &str = who!();
use who;
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

impl Clear {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let done = change(
            caller,
            Operation::ClearLimit {
                who: self.who.clone(),
                force: self.force,
                terms: Terms {
                    temporary: self.temporary,
                    ..terms(self.reason)
                },
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
            view::limits::cleared(&self.who, self.temporary, &remarks, &caller.style)
        })
    }
}

impl Show {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Limits(entries) = caller.ask(Operation::Limits { who: self.who })? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&entries, |entries| {
            let shown = view::limits::Shown {
                has_origin: self.origin,
                role: caller.role,
                clock: &caller.clock,
                ram: ram(),
            };
            view::limits::limits(entries, &shown, &caller.style)
        })
    }
}

/// What became of an entry.
#[derive(Debug)]
struct Outcome {
    remarks: Vec<String>,
    is_change: bool,
    old: Option<EntrySpec>,
    new: Option<EntrySpec>,
}

/// With for whom sudo or doas began us.
fn terms(reason: Option<Reason>) -> Terms {
    let name = |key: &str| std::env::var(key).ok().filter(|it| !it.is_empty());
    Terms {
        reason,
        said_by: name("SUDO_USER").or_else(|| name("DOAS_USER")),
        ..Terms::default()
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
