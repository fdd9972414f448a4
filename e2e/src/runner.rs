// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs stories one after the other and says how each ended.

use std::ops::Range;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::hog::WrongDeath;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Which of every `of` stories, from 0.
    own: Range<usize>,
    of: usize,
}

impl Share {
    fn has(&self, index: usize) -> bool {
        self.own.contains(&(index % self.of))
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    /// `1..3/8`: the second and third of every eight.
    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(own, of)| Some((own.split_once("..")?, of)));
        let ((from, to), of) = parts.context("a share is like 1..3/8")?;
        let (own, of) = (from.parse()?..to.parse()?, of.parse()?);
        ensure!(
            own.start < own.end && own.end <= of,
            "a share is like 1..3/8, the second and third of every eight"
        );
        Ok(Self { own, of })
    }
}

/// So many stories of a run may hold in two of three tellings only; more is no noise. A run tells up to 290; on a
/// machine that others use too one of a hundred misses a time that it has to keep.
const MOST_UNSURE: usize = 3;

/// Tells the stories whose names contain `filter`, and of those that are not for everywhere its
/// share. A story that fails is told twice more, and has failed unless both hold: it kills real processes
/// on a machine on which others work too, or on an emulated one. Each such story is named at the end, with
/// what went wrong. That somebody died who should live is no noise: such a story has failed. Returns whether
/// all is well.
pub fn run(
    stories: &[Story],
    binaries: &Binaries,
    is_guest: bool,
    filter: &[String],
    share: Option<&Share>,
    is_for_everywhere: fn(&str) -> bool,
) -> bool {
    let mut failed = Vec::new();
    let mut unsure = Vec::new();
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
        if !is_for_everywhere(story.name) {
            shared += 1;
            if share.is_some_and(|it| !it.has(shared - 1)) {
                others += 1;
                continue;
            }
        }
        told += 1;
        let Err(failure) = tell(story, binaries) else {
            continue;
        };
        if !failure.is_wrong_death && (0..2).all(|_| tell(story, binaries).is_ok()) {
            unsure.push((story.name, failure.told));
        } else {
            failed.push((story.name, failure.told));
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
    for (_, failure) in unsure.iter().chain(&failed) {
        println!("{failure}");
    }
    println!(
        "{told} stories told, {} failed{}; {} held in two of three tellings only{}",
        failed.len(),
        names(&failed),
        unsure.len(),
        names(&unsure)
    );
    failed.is_empty() && unsure.len() <= MOST_UNSURE
}

struct Failure {
    told: String,
    is_wrong_death: bool,
}

/// Once. How it went wrong is said, and is the error.
fn tell(story: &Story, binaries: &Binaries) -> Result<(), Failure> {
    let began = Instant::now();
    let outcome = (story.tell)(binaries);
    let spent = began.elapsed().as_secs_f64();
    // What a story needed for a while goes: a child that becomes a user before its execve has for that moment, and its
    // account is charged with, all that we hold.
    // SAFETY: gives free memory back; touches none that is in use.
    unsafe { libc::malloc_trim(0) };
    let Err(error) = outcome else {
        println!("ok      {spent:6.1} s  {}", story.name);
        return Ok(());
    };
    let told = format!("FAILED  {spent:6.1} s  {}\n        {error:#}", story.name);
    println!("{told}");
    Err(Failure {
        told,
        is_wrong_death: error.downcast_ref::<WrongDeath>().is_some(),
    })
}

fn names(stories: &[(&str, String)]) -> String {
    let names: Vec<_> = stories.iter().map(|(name, _)| *name).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(": {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn run_alone(name: &'static str, tell: fn(&Binaries) -> Result<()>) -> bool {
        let story = Story {
            name,
            place: Place::Anywhere,
            tell,
        };
        run(
            &[story],
            &Binaries::beside_us().unwrap(),
            false,
            &[],
            None,
            |_| true,
        )
    }

    #[test]
    fn a_story_that_fails_once_is_told_twice_more() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        assert!(run_alone("once", |_| {
            ensure!(TOLD.fetch_add(1, Ordering::Relaxed) != 0, "noise");
            Ok(())
        }));
        assert_eq!(TOLD.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_wrong_death_is_no_noise() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        assert!(!run_alone("a neighbour dies", |_| {
            TOLD.fetch_add(1, Ordering::Relaxed);
            Err(WrongDeath("the neighbour".to_owned())).context("while another grew")
        }));
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_story_that_fails_twice_has_failed() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        assert!(!run_alone("every other time", |_| {
            ensure!(TOLD.fetch_add(1, Ordering::Relaxed) % 2 == 1, "wrong");
            Ok(())
        }));
    }

    #[test]
    fn many_that_are_unsure_are_no_noise() {
        static TOLD: AtomicUsize = AtomicUsize::new(0);
        let story = Story {
            name: "noisy",
            place: Place::Anywhere,
            tell: |_| {
                ensure!(
                    !TOLD.fetch_add(1, Ordering::Relaxed).is_multiple_of(3),
                    "noise"
                );
                Ok(())
            },
        };
        let binaries = Binaries::beside_us().unwrap();
        assert!(run(
            &[story; MOST_UNSURE],
            &binaries,
            false,
            &[],
            None,
            |_| true
        ));
        assert!(!run(
            &[story; MOST_UNSURE + 1],
            &binaries,
            false,
            &[],
            None,
            |_| true
        ));
    }
}
