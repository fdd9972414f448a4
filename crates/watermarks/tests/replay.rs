// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recorded traces through the pure policy: the same verdicts always, and forecasts judged by what the
//! trace then did, S4's rule and bursar's model side by side. The traces are from guests
//! (`watermarks guest --record`); after a change of a model: `BURSAR_BLESS=1 cargo test -p
//! bursar-watermarks --test replay`, and look at what changed.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use bursar_policy::watermarks::{Model, ModelChoice, Sample, ScaleBounds, Verdict};
use bursar_watermarks::trace;

const TRACES: [&str; 3] = [
    "order0-6.12-untouched",
    "order0-6.12-acting",
    "huge-6.12-untouched",
];
const MODELS: [ModelChoice; 3] = [ModelChoice::Trend, ModelChoice::Loop, ModelChoice::Bursar];

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

fn samples(name: &str) -> Vec<Sample> {
    let path = traces().join(format!("{name}.jsonl"));
    trace::read(BufReader::new(File::open(path).unwrap())).unwrap()
}

fn replay(choice: ModelChoice, samples: &[Sample]) -> Vec<Verdict> {
    let mut model = Model::new(choice, ScaleBounds::new(10, 1000));
    samples.iter().map(|sample| model.look(sample)).collect()
}

/// Seconds since the trace began.
fn second(samples: &[Sample], index: usize) -> f64 {
    (samples[index].at.get() - samples[0].at.get()) as f64 / 1e9
}

struct Score {
    /// Until the model first wants more room.
    first_raise: Option<f64>,
    /// Until somebody first stalls.
    first_stall: Option<f64>,
    /// While memory runs low for the first time: how far the forecasts of that moment are off.
    off: Vec<f64>,
    /// The largest factor wanted.
    highest: u32,
}

fn score(samples: &[Sample], verdicts: &[Verdict]) -> Score {
    let stalls = samples[0].counters.alloc_stalls;
    let stalled = samples
        .iter()
        .position(|it| it.counters.alloc_stalls > stalls);
    let raise = verdicts.iter().zip(samples);
    let raise = raise
        .clone()
        .position(|(verdict, sample)| verdict.scale.is_some_and(|scale| scale > sample.scale));
    // The moment memory is low for the first time, if it was not from the beginning.
    let original_low = samples[0].zones.iter().map(|it| it.low).sum::<u64>();
    let low = samples
        .iter()
        .position(|it| it.free() < original_low)
        .filter(|&index| index > 0);
    let mut off = Vec::new();
    if let Some(low) = low {
        for (index, verdict) in verdicts.iter().enumerate().take(low) {
            let is_near = second(samples, low) - second(samples, index) <= 10.0;
            if let Some(likely) = verdict.forecast.likely.filter(|_| is_near) {
                let truly = second(samples, low) - second(samples, index);
                off.push((likely - truly).abs());
            }
        }
    }
    Score {
        first_raise: raise.map(|index| second(samples, index)),
        first_stall: stalled.map(|index| second(samples, index)),
        off,
        highest: verdicts
            .iter()
            .filter_map(|it| it.scale)
            .max()
            .unwrap_or(10),
    }
}

fn table() -> String {
    let mut text = String::from(
        "trace | model | first stall, s | first wish for room, s | highest factor | forecasts of the last 10 s before memory was low | median error, s\n",
    );
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.1}"));
    for name in TRACES {
        let samples = samples(name);
        for choice in MODELS {
            let mut score = score(&samples, &replay(choice, &samples));
            score.off.sort_by(f64::total_cmp);
            let median = score.off.get(score.off.len() / 2).copied();
            writeln!(
                text,
                "{name} | {} | {} | {} | {} | {} | {}",
                choice.name(),
                shown(score.first_stall),
                shown(score.first_raise),
                score.highest,
                score.off.len(),
                shown(median)
            )
            .unwrap();
        }
    }
    text
}

#[test]
fn replays_give_the_verdicts_they_always_gave() {
    let path = traces().join("replay.txt");
    let now = table();
    if std::env::var_os("BURSAR_BLESS").is_some() {
        fs::write(&path, &now).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap();
    assert_eq!(kept, now, "see the head of this file");
}

#[test]
fn two_replays_are_the_same_verdict_for_verdict() {
    for name in TRACES {
        let samples = samples(name);
        for choice in MODELS {
            assert_eq!(replay(choice, &samples), replay(choice, &samples));
        }
    }
}

#[test]
fn bursar_wants_room_before_the_first_stall_and_the_loop_only_after_it() {
    let samples = samples("order0-6.12-untouched");
    let of = |choice| score(&samples, &replay(choice, &samples));
    let (bursar, naive) = (of(ModelChoice::Bursar), of(ModelChoice::Loop));
    let stall = bursar.first_stall.unwrap();
    assert!(bursar.first_raise.unwrap() < stall - 1.0);
    assert!(naive.first_raise.unwrap() >= stall);
}

#[test]
fn a_trace_is_read_back_as_it_was_written() {
    for name in TRACES {
        let samples = samples(name);
        let mut text = Vec::new();
        for sample in &samples {
            trace::write(&mut text, sample).unwrap();
        }
        assert_eq!(trace::read(&text[..]).unwrap(), samples);
    }
}

#[test]
fn a_damaged_trace_is_refused_with_the_line() {
    let good = fs::read_to_string(traces().join("order0-6.12-untouched.jsonl")).unwrap();
    let first = good.lines().next().unwrap();
    for bad in ["[", "[1,2]", "{}", "nonsense"] {
        let error = trace::read(format!("{first}\n{bad}\n").as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }
}
