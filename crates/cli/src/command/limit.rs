// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar limit`: set, show, clear.

use std::convert::Infallible;

use bursar_model::{BoundsSpec, Resource, SizeError, SizeSpec, Who};
use bursar_protocol::{Ask, LimitChange, Reply};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::caller::{Caller, heard};
use crate::failure::Failure;
use crate::view;

/// Set, show and clear limits
#[derive(Debug, Subcommand)]
pub(crate) enum Limit {
    Set(Set),
    Show(Show),
    Clear(Clear),
}

/// Give somebody a limit
///
/// It is in force at once, written to limits.toml, and holds until it is changed or cleared, also
/// while bursard does not run.
#[derive(Debug, Args)]
#[command(after_help = WHO_AND_SIZE)]
pub(crate) struct Set {
    /// Whose limit
    who: Who,
    /// What may be held; above it the largest process is killed
    #[arg(value_parser = limit_size)]
    size: SizeSpec,
    /// Above this the user is told; a percentage is of the limit [default: 90%]
    #[arg(long, value_name = "SIZE|PCT")]
    notice: Option<SizeSpec>,
    /// Above this new requests are refused, where the kernel can; a percentage is of the limit
    /// [default: 95%]
    #[arg(long, value_name = "SIZE|PCT")]
    barrier: Option<SizeSpec>,
    /// Also when more than that is held now, although somebody will be killed
    #[arg(long)]
    force: bool,
    /// Rows of other resources, to come
    #[arg(hide = true, value_parser = no_row)]
    rows: Vec<Infallible>,
}

/// Show the limits as configured
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub(crate) struct Show {
    /// Whose limit; without it, all
    who: Option<Who>,
}

/// Take a limit away
#[derive(Debug, Args)]
#[command(after_help = WHO)]
pub(crate) struct Clear {
    /// Whose limit
    who: Who,
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

Examples: bursar limit set alice 8G
          bursar limit set default 25% --notice 80%"
);

/// What a change did.
#[derive(Debug, Serialize)]
struct Done<'a> {
    who: &'a Who,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<BoundsSpec>,
    remarks: &'a [String],
}

impl Limit {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        match self {
            Self::Set(set) => set.run(caller),
            Self::Show(show) => show.run(caller),
            Self::Clear(clear) => clear.run(caller),
        }
    }
}

impl Set {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Self {
            who,
            size,
            notice,
            barrier,
            force,
            rows: _,
        } = self;
        let memory = BoundsSpec {
            limit: size,
            notice,
            barrier,
        };
        let remarks = change(
            caller,
            Ask::SetLimit(LimitChange {
                who: who.clone(),
                memory,
                force,
            }),
        )?;
        let done = Done {
            who: &who,
            memory: Some(memory),
            remarks: &remarks,
        };
        caller.answer(&done, |_| {
            view::limits::set(&who, memory, &remarks, &caller.look)
        })
    }
}

impl Clear {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let remarks = change(
            caller,
            Ask::ClearLimit {
                who: self.who.clone(),
            },
        )?;
        let done = Done {
            who: &self.who,
            memory: None,
            remarks: &remarks,
        };
        caller.answer(&done, |_| {
            view::limits::cleared(&self.who, &remarks, &caller.look)
        })
    }
}

impl Show {
    fn run(self, caller: &Caller) -> Result<(), Failure> {
        let Reply::Limits(entries) = caller.ask(Ask::Limits { who: self.who })? else {
            return Err(Failure::off_topic());
        };
        caller.answer(&entries, |entries| {
            view::limits::limits(entries, caller.role, &caller.look)
        })
    }
}

fn change(caller: &Caller, ask: Ask) -> Result<Vec<String>, Failure> {
    let mut client = caller.connect()?;
    // Past the connection nobody knows how far the daemon got.
    let unknown = "whether the limit was changed is not known: see bursar limit show";
    let reply = client
        .ask(ask)
        .map_err(|error| Failure::from(error).adding(unknown))?;
    match heard(reply)? {
        Reply::Changed { remarks } => Ok(remarks),
        _ => Err(Failure::off_topic().adding(unknown)),
    }
}

/// SIZE; rows of other resources (`numproc=100:120`) are named so that the refusal is understood.
fn limit_size(text: &str) -> Result<SizeSpec, String> {
    match text.split_once('=') {
        None => text.parse().map_err(|error: SizeError| error.to_string()),
        Some((resource, _)) if resource == Resource::Memory.name() => {
            Err("write the limit as SIZE, and the barrier with --barrier".into())
        }
        Some((resource, _)) => Err(format!(
            "this bursar has no resource {resource:?}; it has: {}",
            Resource::Memory.name()
        )),
    }
}

/// What follows SIZE.
fn no_row(text: &str) -> Result<Infallible, String> {
    match limit_size(text) {
        Err(reason) if text.contains('=') => Err(reason),
        _ => Err("one SIZE is enough".into()),
    }
}
