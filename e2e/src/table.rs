// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows that stories leave for a table, which the runner prints when all are told.

use std::sync::Mutex;

static ROWS: Mutex<Vec<[String; 4]>> = Mutex::new(Vec::new());

/// Remembers what was tried, what came of it, how far it went and for how long, and says so at once.
pub(crate) fn add(row: [String; 4]) {
    println!("        {}", row.join(" | "));
    if let Ok(mut rows) = ROWS.lock() {
        rows.push(row);
    }
}

/// The rows so far as a table; nothing where there are none.
pub(crate) fn print() {
    let rows = ROWS.lock().map(|rows| rows.clone()).unwrap_or_default();
    if rows.is_empty() {
        return;
    }
    let heading = [
        "way",
        "what came of it",
        "held at most, beyond the limit",
        "longest above 1.25 limits",
    ]
    .map(str::to_owned);
    let all = || std::iter::once(&heading).chain(&rows);
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|column| {
        all()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    println!("\n{} ways to hold more than the limit:", rows.len());
    for (index, [way, outcome, most, above]) in all().enumerate() {
        println!("| {way:first$} | {outcome:second$} | {most:>third$} | {above:>fourth$} |");
        if index == 0 {
            println!(
                "|-{:-<first$}-|-{:-<second$}-|-{:->third$}:|-{:->fourth$}:|",
                "", "", "", ""
            );
        }
    }
    println!();
}
