// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's state as the control socket tells it.

use bursar_config::{WatermarkMode, WatermarkModel};
use bursar_host::clock::{rfc3339, to_wall};
use bursar_host::machine::page_size;
use bursar_host::vm::Pressure;
use bursar_kernel::StallRow;
use bursar_model::{Bytes, Nanos, Pages, Uid};
use bursar_policy::watermarks::{Forecast, Reason, Sample, unusable_permille};
use bursar_protocol::{
    DecisionReport, ForecastReport, NodeReport, RestoreReport, StallReport, StallTimes,
    TurnedReport, UserStalls, WatermarksReport,
};

use crate::decision_log::{Act, Record};
use crate::engine::{Engine, Standing};
use crate::saved::Restored;

/// Users that are told of; the rest would be a list nobody reads.
const USERS_TOLD: usize = 100;

fn bytes(pages: u64) -> Bytes {
    Pages::new(pages).to_bytes(page_size())
}

fn bytes_of_rate(pages: f64) -> Bytes {
    // Saturates: a cast of a float does.
    bytes(pages.max(0.0) as u64)
}

/// Everything.
pub fn report(engine: &Engine, proc: &std::path::Path, now: Nanos, cpu: Nanos) -> WatermarksReport {
    let settings = engine.settings();
    let sample = engine.sample();
    let effort = engine.effort();
    let last = engine.decision_log().records().next_back();
    let (stalls, users) = stalls(engine, sample, now);
    let turned = engine.turned().iter().map(|it| TurnedReport {
        name: it.knob.name().to_owned(),
        original: it.original,
        value: it.written,
    });
    WatermarksReport {
        mode: match settings.mode {
            WatermarkMode::Off => "off",
            WatermarkMode::Observe => "observe",
            WatermarkMode::Act => "act",
        }
        .to_owned(),
        model: match settings.model {
            WatermarkModel::Bursar => "bursar",
            WatermarkModel::Trend => "trend",
            WatermarkModel::Loop => "loop",
        }
        .to_owned(),
        standing: standing(engine.standing()),
        is_acting: *engine.standing() == Standing::Acting,
        scale: sample.scale,
        scale_original: engine.bounds().lowest(),
        scale_highest: engine.bounds().highest(),
        nodes: nodes(sample),
        forecast: last.map(forecast).unwrap_or_default(),
        stalls,
        users,
        decisions: engine.decision_log().records().map(decision).collect(),
        decisions_dropped: engine.decision_log().dropped(),
        turned: turned.filter(|it| it.original != it.value).collect(),
        negative_dentries: engine.negative_dentries(),
        pressure_avg10: pressure(proc),
        ticks: effort.ticks,
        writes: effort.writes,
        cpu_ns: cpu.get(),
        remarks: engine.remarks(),
    }
}

fn pressure(proc: &std::path::Path) -> Option<u32> {
    let text = std::fs::read(proc.join("pressure/memory")).ok()?;
    Some(Pressure::parse(&text).ok()?.some.avg10)
}

fn nodes(sample: &Sample) -> Vec<NodeReport> {
    let nodes = sample.nodes().map(|node| {
        let sum =
            |of: fn(&bursar_policy::watermarks::Zone) -> u64| bytes(sample.sum_of_node(node, of));
        // The zones of a node together, as one.
        let mut whole = bursar_policy::watermarks::Zone::default();
        for zone in sample.zones.iter().filter(|zone| zone.node == node) {
            for (sum, count) in whole.blocks.iter_mut().zip(&zone.blocks) {
                *sum = sum.saturating_add(*count);
            }
        }
        let orders = whole.blocks.iter().rposition(|&count| count > 0);
        let orders = orders.map_or(0, |last| last.max(10)).min(10);
        NodeReport {
            node,
            free: sum(|zone| zone.free),
            min: sum(|zone| zone.min),
            low: sum(|zone| zone.low),
            high: sum(|zone| zone.high),
            unusable_permille: (0..=orders)
                .map(|order| unusable_permille(&whole, order))
                .collect(),
        }
    });
    nodes.collect()
}

/// A reason for programs.
const fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::TooFewSamples => "too_few_samples",
        Reason::Quiet => "quiet",
        Reason::Enough => "enough",
        Reason::Ahead => "ahead",
        Reason::Stalled => "stalled",
        Reason::AtBound => "at_bound",
        Reason::Overload => "overload",
        Reason::Calm => "calm",
        Reason::Margin => "margin",
        Reason::Fragmented => "fragmented",
    }
}

fn forecast(record: &Record) -> ForecastReport {
    let Forecast {
        demand,
        supply,
        compaction,
        needed,
        margin,
        margin_kept,
        soonest,
        likely,
        ..
    } = record.verdict.forecast;
    ForecastReport {
        reason: reason_name(record.verdict.reason).to_owned(),
        text: record.words(),
        demand: bytes_of_rate(demand),
        supply: bytes_of_rate(supply),
        compaction: bytes_of_rate(compaction),
        needed: bytes(needed),
        margin: bytes(margin),
        margin_kept: bytes(margin_kept),
        soonest_seconds: soonest,
        likely_seconds: likely,
    }
}

fn decision(record: &Record) -> DecisionReport {
    let wall = |moment: Nanos| rfc3339(to_wall(moment));
    DecisionReport {
        time: wall(record.at),
        until: wall(record.until),
        times: record.times,
        reason: reason_name(record.verdict.reason).to_owned(),
        text: record.words(),
        act: match record.act {
            Act::Nothing => "nothing to do".to_owned(),
            Act::Done => "done".to_owned(),
            Act::Withheld => "would be done".to_owned(),
            Act::Refused(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                format!("the kernel refused: {error}")
            }
        },
        scale_before: record.scale_before,
        scale: record.verdict.scale,
        compact: record.verdict.compact,
        stalls_after: record.outcome.map(|it| it.stalls),
        stall_ns_after: record.outcome.map(|it| it.stall_ns),
    }
}

fn times(row: &StallRow) -> StallTimes {
    StallTimes {
        reclaims: row.reclaims,
        reclaim_ns: row.reclaim_ns,
        compactions: row.compactions,
        compaction_ns: row.compaction_ns,
        longest_ns: row.longest_ns,
        wakeups: row.wakeups,
    }
}

fn stalls(engine: &Engine, sample: &Sample, now: Nanos) -> (StallReport, Vec<UserStalls>) {
    let mut report = StallReport {
        reclaims_since_boot: sample.counters.alloc_stalls,
        compactions_since_boot: sample.counters.compact_stalls,
        measured: None,
        unmeasured: None,
    };
    match engine.stalls(now) {
        Ok((total, users)) => {
            report.measured = Some(times(&total.all));
            (report, by_user(users))
        }
        Err(why) => {
            report.unmeasured = Some(why.to_owned());
            (report, Vec::new())
        }
    }
}

/// Who waited longest first, then who caused most.
fn by_user(rows: Vec<(Option<Uid>, StallRow)>) -> Vec<UserStalls> {
    let all: u64 = rows.iter().map(|(_, row)| row.wakeups).sum();
    let share = |wakeups: u64| {
        let permille = u128::from(wakeups) * 1000 / u128::from(all.max(1));
        u32::try_from(permille).unwrap_or(1000)
    };
    let users = rows.iter().map(|(uid, row)| UserStalls {
        uid: *uid,
        account: None,
        times: times(row),
        cause_permille: share(row.wakeups),
    });
    let mut users: Vec<UserStalls> = users.collect();
    users.sort_by_key(|it| {
        let waited = it.times.reclaim_ns.saturating_add(it.times.compaction_ns);
        std::cmp::Reverse((waited, it.times.wakeups))
    });
    users.truncate(USERS_TOLD);
    users
}

fn standing(standing: &Standing) -> String {
    match standing {
        Standing::Observing => {
            "observing: nothing is changed (watermarks.mode = \"observe\")".to_owned()
        }
        Standing::Rehearsing(WatermarkMode::Act) => {
            "a rehearsal, nothing is changed: bursard would do what would be done \
             (watermarks.mode = \"act\")"
                .to_owned()
        }
        Standing::Rehearsing(WatermarkMode::Observe) => {
            "a rehearsal: bursard would say what would be done and change nothing either \
             (watermarks.mode = \"observe\")"
                .to_owned()
        }
        Standing::Rehearsing(WatermarkMode::Off) => {
            "a rehearsal, nothing is changed: bursard would not even look (watermarks.mode = \"off\")"
                .to_owned()
        }
        Standing::Acting => "acting".to_owned(),
        Standing::GaveWay { found, written } => format!(
            "gave way: somebody else set vm.watermark_scale_factor to {found} where bursar had set {written}; \
             it is left to them. Stop the other tuner and restart bursard, or set watermarks.mode = \"observe\""
        ),
        Standing::Refused { knob, reason } => {
            format!("observing: {knob} cannot be written: {reason}")
        }
        Standing::PutBack => {
            "observing: original values were put back on request; restart bursard to act again"
                .to_owned()
        }
    }
}

/// What became of putting values back, in words.
pub fn restored(results: &[Restored]) -> RestoreReport {
    let mut report = RestoreReport::default();
    for result in results {
        report.lines.push(match result {
            Restored::Done { name, from, to } => format!("{name}: {to} again, was {from}"),
            Restored::Unchanged { name } => format!("{name}: stood at its original already"),
            Restored::Foreign {
                name,
                found,
                written,
            } => {
                format!("{name}: left at {found}, for bursar had set {written} and somebody else changed it")
            }
            Restored::Failed { name, to, reason } => {
                report.failed = report.failed.saturating_add(1);
                format!("{name}: cannot be put back to {to}: {reason}")
            }
        });
    }
    report
}
