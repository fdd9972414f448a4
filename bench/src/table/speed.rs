// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1 section 6.2: speed of memory allocation, against the plain kernel.
//!
//! In each round a contender runs every case once, for a moment, and the plain kernel does so before and
//! after it, so that what the machine does meanwhile (heat, neighbours) falls out of the ratio: on a shared
//! host a third of a second later is another time, so many short rounds say more than a few long ones. Those
//! that are compared with a bound take part in all rounds, others in each second or eighth.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::allocator::Job;
use crate::arguments;
use crate::figures::{Estimate, Spread, bootstrap, median, median_estimate, median_of};
use crate::load::{Ballast, Load, Raised, Stage, User};
use crate::lock::Lock;
use crate::progress::Progress;

/// One that is compared with the plain kernel.
#[derive(Debug, Clone, Copy)]
struct Entrant {
    key: &'static str,
    what: &'static str,
    load: Load,
    user: User,
    /// Takes part in each so manieth round: what is compared with a bound in all of them.
    every: usize,
}

impl Entrant {
    const fn takes_part(&self, round: usize) -> bool {
        round.is_multiple_of(self.every)
    }

    fn rounds_of(&self, rounds: usize) -> usize {
        (0..rounds).filter(|&round| self.takes_part(round)).count()
    }
}

/// In the order in which they are shown. Those of one load are measured together.
const ENTRANTS: [Entrant; 8] = [
    Entrant {
        key: "empty",
        what: "a BPF program that does nothing, at every RSS event",
        load: Load::Empty,
        user: User::Other,
        every: 2,
    },
    Entrant {
        key: "unlimited",
        what: "bursar's kernel half, a user without a limit",
        load: Load::Loaded,
        user: User::Unlimited,
        every: 1,
    },
    Entrant {
        key: "far",
        what: "bursar's kernel half, a user far below his limit",
        load: Load::Loaded,
        user: User::Far,
        every: 1,
    },
    Entrant {
        key: "near",
        what: "bursar's kernel half, a user near a bound: every event counted exactly",
        load: Load::Loaded,
        user: User::Near,
        every: 2,
    },
    Entrant {
        key: "observed",
        what: "bursar's kernel half, a user above a limit that is only observed",
        load: Load::Loaded,
        user: User::Observed,
        every: 2,
    },
    Entrant {
        key: "trace",
        what: "bursard --trigger trace: S1's notifier at the trace pipe",
        load: Load::Trace,
        user: User::Other,
        every: 8,
    },
    Entrant {
        key: "trivial",
        what: "S1's trivial killer: a scan of all processes at every RSS event",
        load: Load::Trivial,
        user: User::Other,
        every: 8,
    },
    Entrant {
        key: "cgroup",
        what: "a memory cgroup with a limit",
        load: Load::Cgroup,
        user: User::Other,
        every: 8,
    },
];

/// S1's eleven cases: processes, megabytes of each, iterations.
const CASES: [(u64, u64, u64); 11] = [
    (1, 4, 100),
    (1, 32, 50),
    (1, 64, 20),
    (1, 128, 10),
    (4, 1, 100),
    (4, 4, 50),
    (4, 16, 20),
    (4, 64, 10),
    (8, 1, 50),
    (8, 4, 20),
    (8, 16, 10),
];

/// What [`User::Near`] holds besides. A case that takes more than a sixty-fourth of it would leave what is near.
const BALLAST_BYTES: u64 = 5 << 30;
const NEAR_BYTES: u64 = 64 << 20;
/// As many as a case of ours runs at once, and who starts them.
const NEAR_PROGRAMS: u64 = 9;

/// A slow contender does fewer iterations; the figure is of one iteration all the same.
const SLICE: Duration = Duration::from_millis(60);

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Speed {
    pub(crate) rounds: usize,
    pub(crate) contenders: Vec<Contender>,
    pub(crate) cases: Vec<Case>,
    /// The plain kernel against itself, after and before the others: what is noise here.
    pub(crate) noise: Option<Estimate>,
    /// The plain kernel's minor fault, nanoseconds.
    pub(crate) plain_fault_ns: Option<Estimate>,
}

/// One contender over all cases.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Contender {
    pub(crate) key: String,
    pub(crate) what: String,
    /// Why there are no figures.
    pub(crate) cannot: Option<String>,
    /// Median of the eleven cases' ratios to the plain kernel.
    pub(crate) ratio: Option<Estimate>,
    /// The largest of the eleven, and its case.
    pub(crate) worst: Option<(Estimate, String)>,
    /// What a minor fault takes with it, nanoseconds.
    pub(crate) fault_ns: Option<Estimate>,
    /// And how much of it is the contender's, round by round.
    pub(crate) added_ns: Option<Estimate>,
}

/// One of the eleven.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) processes: u64,
    pub(crate) bytes: u64,
    /// The plain kernel, microseconds an iteration.
    pub(crate) plain: Spread,
    pub(crate) figures: BTreeMap<String, Figure>,
}

/// One contender in one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Microseconds of user and system time an iteration.
    pub(crate) spent: Spread,
    /// To the plain kernel in the same round.
    pub(crate) ratio: Estimate,
    /// The ratio of each round.
    pub(crate) ratios: Vec<f64>,
}

/// A contender in one round, and the plain kernel around it; of the plain kernel, itself and before that.
#[derive(Debug, Clone, Copy)]
struct Sample {
    own: f64,
    plain: f64,
}

/// What was measured: by contender ([`PLAIN`] is one) and case, by round.
type Samples = BTreeMap<(&'static str, usize), BTreeMap<usize, Sample>>;

/// The plain kernel's key.
const PLAIN: &str = "plain";

/// The case after the eleven: first touches alone.
const FAULTS: usize = CASES.len();

pub(crate) fn measure(
    stage: &Stage,
    rounds: usize,
    is_quick: bool,
    only: &arguments::Speed,
    lock: &Lock,
) -> Result<Speed> {
    let entrants: Vec<Entrant> = ENTRANTS
        .into_iter()
        .filter(|it| only.only.is_empty() || only.only.iter().any(|key| key == it.key))
        .collect();
    let mut cannot = BTreeMap::new();
    let mut samples = Samples::new();
    let chosen = |case: &usize| only.cases.is_empty() || only.cases.contains(&(case + 1));
    let cases: Vec<usize> = (0..=FAULTS).filter(chosen).collect();
    let is_near = entrants.iter().any(|it| it.user == User::Near);
    let ballast = is_near.then(|| Ballast::hold(stage, BALLAST_BYTES));
    let plan = Plan {
        stage,
        ballast: ballast.transpose()?,
        cases,
        is_quick,
        entrants,
    };
    // Warms caches and the allocator's free lists; not counted.
    plan.pass(User::Other, None)?;
    let mut progress = Progress::new("speed", rounds);
    for round in 0..rounds {
        lock.keep()?;
        plan.round(round, &mut samples, &mut cannot)?;
        progress.step(&format!("round {}", round + 1));
    }
    Ok(sum_up(rounds, &plan.entrants, &samples, &cannot))
}

/// Who runs what.
struct Plan<'a> {
    stage: &'a Stage,
    ballast: Option<Ballast>,
    cases: Vec<usize>,
    is_quick: bool,
    entrants: Vec<Entrant>,
}

impl Plan<'_> {
    /// Every case once; a figure of each that the user can run.
    fn pass(&self, user: User, entrance: Option<&Path>) -> Result<Vec<Option<f64>>> {
        let cases = self.cases.iter();
        cases
            .map(|&case| {
                let job = job_of(case, self.is_quick);
                if user == User::Near && job.at_once() > NEAR_BYTES {
                    return Ok(None);
                }
                let taken = job.run(self.stage, self.stage.uid(user), entrance)?;
                Ok(Some(figure_of(case, &taken)))
            })
            .collect()
    }

    fn raise(&self, load: Load) -> Result<Raised> {
        let raised = load.raise(self.stage)?;
        if let (Raised::Loaded(loaded), Some(ballast)) = (&raised, &self.ballast) {
            ballast.bring_near(loaded, NEAR_BYTES, NEAR_PROGRAMS)?;
        }
        Ok(raised)
    }

    /// Every contender once, each load between two passes of the plain kernel. Who comes first changes from
    /// round to round.
    fn round(
        &self,
        round: usize,
        samples: &mut Samples,
        cannot: &mut BTreeMap<&'static str, String>,
    ) -> Result<()> {
        let mut loads: Vec<Load> = Vec::new();
        let here = || self.entrants.iter().filter(|it| it.takes_part(round));
        for entrant in here() {
            if !loads.contains(&entrant.load) && !cannot.contains_key(entrant.key) {
                loads.push(entrant.load);
            }
        }
        let count = loads.len().max(1);
        loads.rotate_left(round % count);
        let mut keep = |key: &'static str, own: &[Option<f64>], plain: &[Option<f64>]| {
            for ((&case, own), plain) in self.cases.iter().zip(own).zip(plain) {
                let (&Some(own), &Some(plain)) = (own, plain) else {
                    continue;
                };
                let of_case = samples.entry((key, case)).or_default();
                of_case.entry(round).or_insert(Sample { own, plain });
            }
        };
        let mut before = self.pass(User::Other, None)?;
        for load in loads {
            let raised = match self.raise(load) {
                Ok(raised) => raised,
                Err(error) => {
                    for entrant in here().filter(|it| it.load == load) {
                        cannot.insert(entrant.key, format!("{error:#}"));
                    }
                    continue;
                }
            };
            let mut of_load: Vec<&Entrant> = here().filter(|it| it.load == load).collect();
            let count = of_load.len().max(1);
            of_load.rotate_left(round % count);
            let entrance = raised.entrance();
            let passes: Result<Vec<_>> = of_load
                .iter()
                .map(|it| Ok((it.key, self.pass(it.user, entrance.as_deref())?)))
                .collect();
            drop(raised);
            let after = self.pass(User::Other, None)?;
            let both = before.iter().zip(&after);
            let around: Vec<Option<f64>> = both
                .map(|(a, b)| Some(f64::midpoint((*a)?, (*b)?)))
                .collect();
            for (key, own) in passes? {
                keep(key, &own, &around);
            }
            keep(PLAIN, &after, &before);
            before = after;
        }
        Ok(())
    }
}

fn job_of(case: usize, is_quick: bool) -> Job {
    let slice = if is_quick { SLICE / 4 } else { SLICE };
    match CASES.get(case) {
        Some(&(processes, megabytes, iterations)) => Job {
            processes: Some(processes),
            bytes: megabytes << 20,
            iterations,
            budget: slice,
        },
        None => Job {
            processes: None,
            bytes: 64 << 20,
            iterations: 10,
            budget: slice,
        },
    }
}

fn figure_of(case: usize, taken: &crate::allocator::Taken) -> f64 {
    if case == FAULTS {
        taken.fault_ns
    } else {
        taken.microseconds
    }
}

fn name_of(case: usize) -> String {
    match CASES.get(case) {
        Some((processes, megabytes, iterations)) => {
            format!("{processes} × {megabytes} MB × {iterations}")
        }
        None => "first touches".to_owned(),
    }
}

/// A contender against the plain kernel around it, one a round.
fn against_plain(
    samples: &Samples,
    key: &'static str,
    case: usize,
    compare: impl Fn(f64, f64) -> f64,
) -> Vec<f64> {
    let rounds = samples.get(&(key, case)).into_iter();
    let all = rounds.flat_map(BTreeMap::values);
    all.map(|it| compare(it.own, it.plain)).collect()
}

fn ratios(samples: &Samples, key: &'static str, case: usize) -> Vec<f64> {
    against_plain(samples, key, case, |own, plain| own / plain)
}

fn figures(samples: &Samples, key: &'static str, case: usize) -> Vec<f64> {
    against_plain(samples, key, case, |own, _| own)
}

fn sum_up(
    rounds: usize,
    entrants: &[Entrant],
    samples: &Samples,
    cannot: &BTreeMap<&'static str, String>,
) -> Speed {
    let cases = (0..FAULTS)
        .filter_map(|case| {
            let (processes, megabytes, _) = CASES[case];
            let of_entrants = entrants
                .iter()
                .filter_map(|entrant| {
                    let ratios = ratios(samples, entrant.key, case);
                    let figure = Figure {
                        spent: Spread::of(&figures(samples, entrant.key, case))?,
                        ratio: median_estimate(&ratios)?,
                        ratios,
                    };
                    Some((entrant.key.to_owned(), figure))
                })
                .collect();
            Some(Case {
                name: name_of(case),
                processes,
                bytes: megabytes << 20,
                plain: Spread::of(&figures(samples, PLAIN, case))?,
                figures: of_entrants,
            })
        })
        .collect::<Vec<_>>();
    let contenders = entrants
        .iter()
        .map(|entrant| contender(rounds, *entrant, samples, &cases, cannot))
        .collect();
    let noise = over_cases(rounds, |case| Some(ratios(samples, PLAIN, case)));
    Speed {
        rounds,
        contenders,
        cases,
        noise,
        plain_fault_ns: median_estimate(&figures(samples, PLAIN, FAULTS)),
    }
}

/// The median over the cases of the medians over the rounds.
fn over_cases(rounds: usize, of: impl Fn(usize) -> Option<Vec<f64>>) -> Option<Estimate> {
    let all: Vec<Vec<f64>> = (0..FAULTS)
        .filter_map(of)
        .filter(|it| it.len() == rounds)
        .collect();
    if all.is_empty() {
        return None;
    }
    bootstrap(rounds, |drawn| {
        let medians: Vec<f64> = all.iter().map(|case| median_of(case, drawn)).collect();
        median(&medians)
    })
}

fn contender(
    rounds: usize,
    entrant: Entrant,
    samples: &Samples,
    cases: &[Case],
    cannot: &BTreeMap<&'static str, String>,
) -> Contender {
    let worst = cases
        .iter()
        .filter_map(|case| Some((case.figures.get(entrant.key)?.ratio, case.name.clone())))
        .max_by(|a, b| a.0.value.total_cmp(&b.0.value));
    Contender {
        key: entrant.key.to_owned(),
        what: entrant.what.to_owned(),
        cannot: cannot.get(entrant.key).cloned(),
        ratio: over_cases(entrant.rounds_of(rounds), |case| {
            Some(ratios(samples, entrant.key, case))
        }),
        worst,
        fault_ns: median_estimate(&figures(samples, entrant.key, FAULTS)),
        added_ns: median_estimate(&against_plain(
            samples,
            entrant.key,
            FAULTS,
            |own, plain| own - plain,
        )),
    }
}
