// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pictures: S1's Figures 7, 8 and 9, and one of growth.

use crate::results::Results;
use crate::table::overcommit::Overcommit;
use crate::table::scale::{Row, Scale};
use crate::table::speed::Speed;

use super::bars::{Axis, Bar, Bars};
use super::lines::Lines;
use super::picture::Picture;

pub(crate) fn all(results: &Results) -> Vec<Picture> {
    let mut pictures = Vec::new();
    if let Some(speed) = &results.speed {
        let one = "Allocation by one process (S1, Figure 7)";
        pictures.push(speed_picture("speed-one-process", one, speed, |it| it == 1));
        let many = "Allocation by several processes (S1, Figure 8)";
        pictures.push(speed_picture("speed-many-processes", many, speed, |it| {
            it > 1
        }));
    }
    if let Some(overcommit) = &results.overcommit {
        pictures.push(overcommit_picture(overcommit));
    }
    if let Some(scale) = &results.scale {
        pictures.push(scale_picture(scale));
    }
    pictures
}

fn speed_picture(
    name: &'static str,
    title: &str,
    table: &Speed,
    is_in: impl Fn(u64) -> bool,
) -> Picture {
    let cases: Vec<_> = table
        .cases
        .iter()
        .filter(|it| is_in(it.processes))
        .collect();
    let series: Vec<String> = table
        .contenders
        .iter()
        .filter(|it| it.cannot.is_none())
        .map(|it| it.key.clone())
        .collect();
    let bars = cases
        .iter()
        .map(|case| {
            let bar = |key: &String| {
                let ratio = case.figures.get(key)?.ratio;
                Some(Bar {
                    value: ratio.value,
                    low: ratio.low,
                    high: ratio.high,
                })
            };
            series.iter().map(bar).collect()
        })
        .collect();
    let chart = Bars {
        title: title.to_owned(),
        unit: "user + system time, plain kernel = 1".to_owned(),
        groups: cases
            .iter()
            .map(|it| format!("{} × {} MB", it.processes, it.bytes >> 20))
            .collect(),
        series,
        bars,
        axis: Axis::Linear {
            top: 2.5,
            step: 0.5,
        },
        reference: Some((1.0, "plain kernel")),
    };
    Picture {
        name,
        title: title.to_owned(),
        svg: chart.draw(),
    }
}

fn overcommit_picture(table: &Overcommit) -> Picture {
    let title = "Over the limit at the kill (S1, Figure 9): mean, whisker to the maximum";
    let shown: Vec<_> = table
        .contenders
        .iter()
        .filter(|it| it.cannot.is_none())
        .collect();
    let mut groups = Vec::new();
    if let Some(first) = shown.first() {
        let name = |processes, limit: u64| format!("{processes} × {} MiB limit", limit >> 20);
        groups = first
            .cases
            .iter()
            .map(|it| name(it.processes, it.limit_bytes))
            .collect();
    }
    let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
    let bars = (0..groups.len())
        .map(|group| {
            let bar = |contender: &&crate::table::overcommit::Contender| {
                let over = contender.cases.get(group)?.over?;
                let (value, high) = (mebibytes(over.mean), mebibytes(over.max));
                Some(Bar {
                    value,
                    low: value,
                    high,
                })
            };
            shown.iter().map(bar).collect()
        })
        .collect();
    let chart = Bars {
        title: title.to_owned(),
        unit: "held − limit, MiB (0.01 or less stands on the ground)".to_owned(),
        groups,
        series: shown.iter().map(|it| it.key.clone()).collect(),
        bars,
        axis: Axis::Log {
            floor: 0.01,
            top: 10_000.0,
        },
        reference: Some((0.5, "512 KiB")),
    };
    Picture {
        name: "overcommit",
        title: title.to_owned(),
        svg: chart.draw(),
    }
}

fn scale_picture(table: &Scale) -> Picture {
    let title = "What grows with the machine";
    let line = |accounts: u32, of: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        let rows = table.rows.iter().filter(|it| it.accounts == accounts);
        rows.filter_map(|it| Some((f64::from(it.processes), of(it)?)))
            .collect()
    };
    let resum = |row: &Row| row.resum.map(|it| it.median / 1e3);
    let search = |row: &Row| row.search.map(|it| it.median / 1e3);
    let series = [1, 1000]
        .into_iter()
        .flat_map(|accounts| {
            let name = |what: &str| {
                format!(
                    "{what}, {accounts} account{}",
                    if accounts == 1 { "" } else { "s" }
                )
            };
            [
                (name("re-sum"), line(accounts, &resum)),
                (name("search and kill"), line(accounts, &search)),
            ]
        })
        .collect();
    let chart = Lines {
        title: title.to_owned(),
        across: "processes",
        up: "microseconds",
        series,
    };
    Picture {
        name: "scale",
        title: title.to_owned(),
        svg: chart.draw(),
    }
}
