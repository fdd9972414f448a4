// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs stories one after the other and says how each ended.

use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::table;
use crate::world::Binaries;

/// Where a story can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On any kernel: this machine's own and in guests.
    Anywhere,
    /// On a real processor only: it measures time, or is too large for an emulated guest.
    Host,
    /// In a guest only: it changes the machine as a whole.
    Guest,
    /// Only when it is named: it measures a target that is not reached yet, or only on a machine that
    /// does nothing else.
    Named,
}

/// One story.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// A sentence, with underscores.
    pub name: &'static str,
    /// Where it can be told.
    pub place: Place,
    /// The story; it ends well or says what went wrong.
    pub tell: fn(&Binaries) -> Result<()>,
}

/// One guest's part of the stories that several guests tell together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which of them, from 0.
    pub own: usize,
    /// How many there are.
    pub of: usize,
}

impl FromStr for Share {
    type Err = anyhow::Error;

    /// `1/3`: the second of three.
    fn from_str(text: &str) -> Result<Self> {
        let (own, of) = text.split_once('/').context("a share is like 1/3")?;
        let (own, of) = (own.parse()?, of.parse()?);
        ensure!(own < of, "there are {of} shares, the first is 0");
        Ok(Self { own, of })
    }
}

/// Tells the stories whose names contain `filter`, and of those that are not for `everywhere` its
/// share. Returns how many failed.
pub fn run(
    stories: &[Story],
    binaries: &Binaries,
    is_guest: bool,
    filter: &[String],
    share: Option<Share>,
    everywhere: &[&str],
) -> usize {
    let mut failed = Vec::new();
    let mut told = 0;
    let mut left_out = Vec::new();
    let (mut shared, mut others) = (0, 0);
    for story in stories {
        if !filter.is_empty() && !filter.iter().any(|part| story.name.contains(part.as_str())) {
            continue;
        }
        let is_named = filter.iter().any(|part| part == story.name);
        let fits = match story.place {
            Place::Anywhere => true,
            Place::Host => !is_guest || is_named,
            Place::Guest => is_guest,
            Place::Named => is_named,
        };
        if !fits {
            left_out.push(story.name);
            continue;
        }
        if !everywhere.iter().any(|part| story.name.starts_with(part)) {
            shared += 1;
            if share.is_some_and(|it| (shared - 1) % it.of != it.own) {
                others += 1;
                continue;
            }
        }
        told += 1;
        let began = Instant::now();
        let outcome = (story.tell)(binaries);
        let spent = began.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok      {:6.1} s  {}", spent, story.name),
            Err(error) => {
                let told = format!("FAILED  {:6.1} s  {}\n        {error:#}", spent, story.name);
                println!("{told}");
                failed.push((story.name, told));
            }
        }
    }
    table::print();
    if !left_out.is_empty() {
        let place = if is_guest { "a guest" } else { "this machine" };
        println!(
            "left out (not for {place}, or only when named): {}",
            left_out.join(", ")
        );
    }
    if others > 0 {
        println!("{others} stories are told by the other guests");
    }
    // Again, where who reads only the end finds it.
    for (_, told) in &failed {
        println!("{told}");
    }
    let names: Vec<_> = failed.iter().map(|(name, _)| *name).collect();
    println!(
        "{told} stories told, {} failed{}{}",
        names.len(),
        if names.is_empty() { "" } else { ": " },
        names.join(", ")
    );
    names.len()
}
