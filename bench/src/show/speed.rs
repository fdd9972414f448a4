// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Allocation speed: S1's Figures 7 and 8 as numbers.

use crate::figures::Estimate;
use crate::table::speed::Speed;

use super::Grid;

fn ratio(it: Option<Estimate>) -> String {
    it.map_or_else(String::new, |it| it.to_text(3))
}

fn nanoseconds(it: Option<Estimate>) -> String {
    it.map_or_else(String::new, |it| it.to_text(0))
}

/// The summary, and the eleven cases.
pub(crate) fn speed(table: &Speed) -> Vec<Grid> {
    let mut summary = Grid::new(&[
        "contender",
        "median of 11 cases",
        "worst case",
        "(which)",
        "ns a minor fault",
        "of it added",
        "what it is",
    ]);
    for contender in &table.contenders {
        let which = contender.worst.as_ref().map_or("", |it| it.1.as_str());
        let what = match &contender.cannot {
            Some(why) => format!("cannot: {why}"),
            None => contender.what.clone(),
        };
        summary.row(vec![
            contender.key.clone(),
            ratio(contender.ratio),
            ratio(contender.worst.as_ref().map(|it| it.0)),
            which.to_owned(),
            nanoseconds(contender.fault_ns),
            nanoseconds(contender.added_ns),
            what,
        ]);
    }
    summary.row(vec![
        "plain, again".to_owned(),
        ratio(table.noise),
        String::new(),
        String::new(),
        nanoseconds(table.plain_fault_ns),
        String::new(),
        "the plain kernel after the others, against itself before them: the noise".to_owned(),
    ]);
    let mut head = vec!["case", "plain µs"];
    head.extend(table.contenders.iter().map(|it| it.key.as_str()));
    let mut cases = Grid::new(&head);
    for case in &table.cases {
        let mut row = vec![case.name.clone(), format!("{:.0}", case.plain.median)];
        row.extend(table.contenders.iter().map(|contender| {
            let figure = case.figures.get(&contender.key);
            figure.map_or_else(|| "–".to_owned(), |it| it.ratio.to_text(3))
        }));
        cases.row(row);
    }
    vec![summary, cases]
}
