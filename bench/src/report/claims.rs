// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursar promises, held against what was measured.

use crate::figures::{Estimate, largest_unchosen};
use crate::results::Results;
use crate::table::gate::{Gate, Row};
use crate::table::malloc::{FLOOR, Mallocs};
use crate::table::overcommit::Overcommit;
use crate::table::scale::Scale;
use crate::table::speed::Speed;

/// One promise.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) promise: String,
    pub(crate) found: String,
    pub(crate) is_kept: bool,
}

const KIB: f64 = 1024.0;
/// Below a page a mean is zero.
const PAGE: f64 = 4096.0;

pub(crate) fn claims(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    if let Some(table) = &results.overcommit {
        overcommit(table, &mut claims);
    }
    if let Some(table) = &results.speed {
        speed(table, &mut claims);
    }
    if let Some(table) = &results.scale {
        scale(table, &mut claims);
    }
    if let Some(table) = &results.gate {
        gate(table, &mut claims);
    }
    if let Some(table) = &results.malloc {
        malloc(table, &mut claims);
    }
    claims
}

/// What a program may hold beyond glibc's, however little that is.
const SLACK_KIB: f64 = 64.0 * KIB;

fn malloc(table: &Mallocs, claims: &mut Vec<Claim>) {
    for contender in [
        "tmalloc, no bursard",
        "tmalloc, no limit",
        "tmalloc, with a limit",
    ] {
        let rows = table.patterns.iter().filter_map(|pattern| {
            let row = pattern.rows.iter().find(|it| it.contender == contender)?;
            Some((pattern.about.as_str(), row))
        });
        let rows: Vec<_> = rows.collect();
        let worst = rows
            .iter()
            .max_by(|(_, a), (_, b)| a.cpu.value.total_cmp(&b.cpu.value));
        let Some((about, row)) = worst else {
            continue;
        };
        let floor = table.patterns.iter().find(|it| it.about == *about);
        let floor = floor.and_then(|it| it.rows.iter().find(|it| it.contender == FLOOR));
        let floor = floor.map_or_else(String::new, |it| {
            format!(" ({FLOOR}: {})", it.cpu.to_text(3))
        });
        claims.push(Claim {
            promise: format!("{contender}: user and system time in each pattern ≤ 1.05 × glibc's"),
            found: format!("{}{floor}, {about}", row.cpu.to_text(3)),
            is_kept: row.cpu.value <= 1.05,
        });
        // Where nothing is reserved there is no reason to hold more.
        let (promise, slack_kib, share) = if contender.ends_with("with a limit") {
            ("within 64 MiB or 10 % of glibc's", SLACK_KIB, 0.10)
        } else {
            ("within 5 % of glibc's", 0.0, 0.05)
        };
        let more = rows.iter().map(|(about, it)| {
            let more = it.end_kib - it.glibc_end_kib;
            (more - slack_kib.max(it.glibc_end_kib * share), more, *about)
        });
        let Some((beyond, more, about)) = more.max_by(|a, b| a.0.total_cmp(&b.0)) else {
            continue;
        };
        claims.push(Claim {
            promise: format!("{contender}: resident after the same work {promise}"),
            found: format!("{:.1} MiB more where it is most, {about}", more / KIB),
            is_kept: beyond <= 0.0,
        });
    }
}

fn overcommit(table: &Overcommit, claims: &mut Vec<Claim>) {
    let cases = |key: &str| {
        let contender = table.contenders.iter().find(|it| it.key == key);
        let cases = contender.map_or(&[][..], |it| it.cases.as_slice());
        cases.iter().filter_map(|it| it.over).collect::<Vec<_>>()
    };
    let (event, cgroup) = (cases("event"), cases("cgroup"));
    if event.is_empty() {
        return;
    }
    let max = event
        .iter()
        .map(|it| it.max)
        .fold(f64::NEG_INFINITY, f64::max);
    claims.push(Claim {
        promise: "event trigger: at most 512 KiB over the limit at a kill, in all four cases"
            .into(),
        found: format!("{:.0} KiB", max / KIB),
        is_kept: max <= 512.0 * KIB,
    });
    if cgroup.len() == event.len() {
        let pairs: Vec<_> = event.iter().zip(&cgroup).collect();
        let texts: Vec<String> = pairs
            .iter()
            .map(|(own, other)| format!("{:.0} to {:.0}", own.mean / KIB, other.mean / KIB))
            .collect();
        claims.push(Claim {
            promise: "event trigger: mean no higher than the cgroup limit's, case by case".into(),
            found: format!("{} KiB", texts.join(", ")),
            is_kept: pairs.iter().all(|(own, other)| own.mean <= other.mean),
        });
    }
    for (key, name) in [
        ("timer", "kernel half's 200 ms timer"),
        ("poll-200ms", "200 ms poll"),
    ] {
        let slow = cases(key);
        if slow.len() != event.len() {
            continue;
        }
        let least = event
            .iter()
            .zip(&slow)
            .map(|(own, slow)| slow.mean / own.mean.max(PAGE))
            .fold(f64::INFINITY, f64::min);
        claims.push(Claim {
            promise: format!("event trigger: mean at least 100 times below the {name}'s"),
            found: format!("{least:.0} times in the worst case (below a page counts as a page)"),
            is_kept: least >= 100.0,
        });
    }
}

fn speed(table: &Speed, claims: &mut Vec<Claim>) {
    let contender = |key: &str| table.contenders.iter().find(|it| it.key == key);
    let mut claim = |promise: &str, found: Option<Estimate>, bound: f64, beside: &str| {
        if let Some(it) = found {
            claims.push(Claim {
                promise: format!("{promise} ≤ {bound:.2} × the plain kernel"),
                found: it.to_text(3) + beside,
                is_kept: it.value <= bound,
            });
        }
    };
    let far = contender("far");
    // The least that anything costs which hears of each RSS event on this machine.
    let floor = contender("empty").and_then(|it| it.ratio);
    let floor = floor.map_or_else(String::new, |it| {
        format!("; a program that does nothing: {}", it.to_text(3))
    });
    claim(
        "user with a limit: median of the eleven cases",
        far.and_then(|it| it.ratio),
        1.05,
        &floor,
    );
    let worst = far.and_then(|it| it.worst.as_ref().map(|it| it.0));
    let cases = table.cases.iter();
    let cases: Option<Vec<&[f64]>> = cases
        .map(|it| Some(it.figures.get("far")?.ratios.as_slice()))
        .collect();
    let unchosen = cases.and_then(|it| largest_unchosen(&it));
    claim(
        "user with a limit: worst of the eleven cases",
        worst,
        1.08,
        &unchosen.map_or_else(String::new, |it| {
            format!(
                "; {it:.3} where it is chosen in one half of the rounds and measured in the other"
            )
        }),
    );
    let unlimited = contender("unlimited").and_then(|it| it.ratio);
    claim(
        "user without a limit: median of the eleven cases",
        unlimited,
        1.03,
        &floor,
    );
}

fn gate(table: &Gate, claims: &mut Vec<Claim>) {
    let mut claim = |calls: &str, promise: &str, own: fn(&Row) -> f64, bound: f64| {
        let rows = table.rows.iter().filter(|it| it.calls.starts_with(calls));
        let costs = rows.map(|it| {
            let [value, low, high] =
                [it.whole.value, it.whole.low, it.whole.high].map(|ns| own(it) + ns);
            (
                Estimate { value, low, high },
                it.nothing.median - it.plain.median,
            )
        });
        if let Some((worst, floor)) = costs.max_by(|a, b| a.0.value.total_cmp(&b.0.value)) {
            claims.push(Claim {
                promise: format!("{promise} ≤ {bound:.0} ns"),
                found: format!(
                    "{} ns, of the user with the highest cost; a program that does nothing there: {floor:.0}",
                    worst.to_text(0)
                ),
                is_kept: worst.value <= bound,
            });
        }
    };
    claim(
        "mmap",
        "the gate, called at the beginning of mmap and munmap of 1 MiB, which is dearer than its hook,",
        |_| 0.0,
        400.0,
    );
    claim(
        "reserve",
        "reserve and commit by prctl, called there too, the calls themselves included",
        |it| it.plain.median,
        1000.0,
    );
}

fn scale(table: &Scale, claims: &mut Vec<Claim>) {
    for (processes, bound) in [(1000, 0.5), (10_000, 5.0)] {
        let rows = table.rows.iter().filter(|it| it.processes == processes);
        let medians: Vec<f64> = rows.filter_map(|it| Some(it.resum?.median / 1e6)).collect();
        let worst = medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if worst.is_finite() {
            claims.push(Claim {
                promise: format!("re-sum of {processes} processes ≤ {bound} ms"),
                found: format!(
                    "{worst:.2} ms, median, with the number of accounts that suits it least"
                ),
                is_kept: worst <= bound,
            });
        }
    }
    let costs: Vec<f64> = table.rows.iter().filter_map(|it| it.event_ns).collect();
    if let (Some(first), Some(last)) = (costs.first(), costs.last()) {
        let all: Vec<String> = costs.iter().map(|it| format!("{it:.0}")).collect();
        claims.push(Claim {
            promise: "an event costs the same whatever the number of accounts and processes: with 10,000 \
                      of 1,000 accounts at most 20 ns more than with 100 of one"
                .into(),
            found: format!("{} ns, in the order of the table", all.join(", ")),
            is_kept: last - first <= 20.0,
        });
    }
}
