// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page faults as tables.

use bursar_faults::Resident;
use bursar_faults::measure::Measurement;
use bursar_faults::report::{LatencyReport, ProcessReport, Report};

use bursar_model::{Bytes, Nanos};

use crate::style::{Charset, Style, Tone};
use crate::view::table::{Align, Cell, Table};
use crate::view::words::{narrow_count, span};

/// Processes and mappings shown at once.
const SHOWN: usize = 12;
/// Of a histogram's bar, columns.
const BAR: u64 = 40;

/// S3's table.
pub(crate) fn measurements(pages: u64, found: &[Measurement], style: &Style) -> String {
    let mut table = Table::new(&[
        ("CASE", Align::Left),
        ("PAGES", Align::Right),
        ("FAULTS", Align::Right),
        ("EXPECTED", Align::Right),
        ("NS/PAGE", Align::Right),
        ("MIN", Align::Right),
        ("MAX", Align::Right),
        ("PREPARED", Align::Right),
    ]);
    for each in found {
        let per_page = |nanos: u64| (nanos / each.pages.max(1)).to_string();
        let mut cells = vec![Cell::new(each.case.title())];
        match (each.median(), each.spread_ns()) {
            (Some(pass), Some((min, max))) => {
                let tone = (!each.is_right()).then_some(Tone::Bad);
                cells.extend([
                    Cell::new(each.pages.to_string()),
                    Cell::toned(pass.faults.total().to_string(), tone),
                    Cell::toned(pass.expected.to_string(), tone),
                    Cell::new(per_page(pass.touch_ns)),
                    Cell::new(per_page(min)),
                    Cell::new(per_page(max)),
                    Cell::new(format!(
                        "{}, {} faults",
                        span(Nanos::new(pass.prepare_ns), style.charset),
                        pass.prepare_faults.total()
                    )),
                ]);
            }
            _ => cells.extend(std::iter::repeat_n(Cell::new("-"), 7)),
        }
        table.push(cells);
    }
    let mut text = format!("{pages} pages of {} bytes\n", rustix::param::page_size());
    text.push_str(&table.lines(2, style));
    text.push_str(&remarks(found, style));
    if found.iter().any(|each| !each.is_right()) {
        text.push_str(
            "a count differs from what had to come: something else touched or moved these pages\n",
        );
    }
    text
}

/// A line for each remark, with the cases that it is about.
fn remarks(found: &[Measurement], style: &Style) -> String {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for each in found {
        let Some(remark) = each.remark.as_deref() else {
            continue;
        };
        let title = each.case.title().trim();
        match lines.iter_mut().find(|(known, _)| *known == remark) {
            Some((_, titles)) => titles.push(title),
            None => lines.push((remark, vec![title])),
        }
    }
    let lines = lines.iter();
    lines
        .map(|(remark, titles)| format!("{}: {}\n", titles.join("; "), style.shown(remark)))
        .collect()
}

/// One look at who faults.
pub(crate) fn report(report: &Report, style: &Style) -> String {
    let mut text = format!(
        "{:.1} s  {} faults/s  {} minor, {} major{}\n",
        seconds(report.elapsed_ns),
        narrow_count(report.per_second),
        report.faults.minor,
        report.faults.major,
        if report.source == "proc" {
            "  (rates of /proc/PID/stat)"
        } else {
            ""
        },
    );
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("UID", Align::Right),
        ("FAULTS/S", Align::Right),
        ("MINOR", Align::Right),
        ("MAJOR", Align::Right),
        ("COMMAND", Align::Left),
        ("MOST IN", Align::Left),
    ]);
    for process in report.processes.iter().take(SHOWN) {
        table.push(vec![
            Cell::new(process.pid.to_string()),
            Cell::new(process.uid.to_string()),
            Cell::new(narrow_count(process.per_second)),
            Cell::new(process.faults.minor.to_string()),
            Cell::toned(
                process.faults.major.to_string(),
                (process.faults.major > 0).then_some(Tone::Warning),
            ),
            Cell::new(style.shown(&process.comm)),
            Cell::new(process.mappings.first().map_or(String::new(), |first| {
                format!(
                    "{} {} ({})",
                    style.shown(&first.name),
                    first.permissions,
                    first.faults.total()
                )
            })),
        ]);
    }
    text.push_str(&table.lines(2, style));
    for (name, latency) in [
        ("minor", &report.minor_latency),
        ("major", &report.major_latency),
    ] {
        if let Some(latency) = latency {
            text.push_str(&latency_line(name, latency, style.charset));
        }
    }
    text
}

/// What it came to: worst offenders, where, and what to do.
pub(crate) fn summary(report: &Report, style: &Style) -> String {
    let mut text = format!(
        "\nin {:.1} s: {} minor and {} major faults\n",
        seconds(report.elapsed_ns),
        report.faults.minor,
        report.faults.major
    );
    for process in report.processes.iter().take(SHOWN) {
        text.push_str(&process_lines(process, style));
    }
    if report.processes.len() > SHOWN {
        text.push_str(&format!(
            "and {} other processes\n",
            report.processes.len() - SHOWN
        ));
    }
    for (name, latency) in [
        ("minor", &report.minor_latency),
        ("major", &report.major_latency),
    ] {
        if let Some(latency) = latency {
            text.push('\n');
            text.push_str(&latency_line(name, latency, style.charset));
            text.push_str(&bars(latency, style.charset));
        }
    }
    if report.shared_out > 0 {
        text.push_str(&format!(
            "a flood: where {} of the minor faults came from was not looked at one by one, they are shared \
             out as the others were (--time-each looks at each)\n",
            report.shared_out
        ));
    }
    if let Some(losses) = &report.losses {
        text.push_str(&format!(
            "not told apart: {} processes, {} mappings, {} look-ups, {} instructions, {} records; {} \
             threads not watched, {} whose last faults are missing (still ending)\n",
            losses.processes,
            losses.mappings,
            losses.lookups,
            losses.sites,
            losses.records,
            losses.threads,
            losses.unfinished
        ));
    }
    text
}

/// One process: its mappings, who touched them, what to do.
pub(crate) fn process_lines(process: &ProcessReport, style: &Style) -> String {
    let mut text = format!(
        "\n{} ({}), uid {}: {} minor, {} major\n",
        process.pid,
        style.shown(&process.comm),
        process.uid,
        process.faults.minor,
        process.faults.major
    );
    for mapping in process.mappings.iter().take(SHOWN) {
        text.push_str(&format!(
            "  {:>9}  {}\n",
            mapping.faults.total(),
            style.shown(&mapping.place())
        ));
        if let Some(resident) = &mapping.resident {
            text.push_str(&format!("             {}\n", residency(resident)));
        }
        for site in &mapping.sites {
            text.push_str(&format!("             by {}\n", style.shown(&site.symbol)));
        }
        if !mapping.advice.is_empty() && mapping.faults.total() > 0 {
            text.push_str(&format!("             {}\n", mapping.advice));
        }
    }
    if process.mappings.len() > SHOWN {
        text.push_str(&format!(
            "  and {} other mappings\n",
            process.mappings.len() - SHOWN
        ));
    }
    text
}

/// `12 KiB of 40 KiB resident, 4 KiB locked`.
pub(crate) fn residency(resident: &Resident) -> String {
    let mut text = format!(
        "{} of {} resident",
        Bytes::new(resident.resident_bytes),
        Bytes::new(resident.size_bytes)
    );
    for (bytes, word) in [
        (resident.locked_bytes, "locked"),
        (resident.swapped_bytes, "swapped out"),
    ] {
        if bytes > 0 {
            text.push_str(&format!(", {} {word}", Bytes::new(bytes)));
        }
    }
    text
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn latency_line(name: &str, latency: &LatencyReport, charset: Charset) -> String {
    let said =
        |nanos: Option<u64>| nanos.map_or("-".to_owned(), |it| span(Nanos::new(it), charset));
    format!(
        "{name} faults took {} on average, half up to {}, 99 % up to {}, at most {} ({} timed)\n",
        said(latency.mean_ns),
        said(latency.p50_ns),
        said(latency.p99_ns),
        said(latency.max_ns),
        latency.timed
    )
}

/// A bar for each power of two.
fn bars(latency: &LatencyReport, charset: Charset) -> String {
    let mut powers: Vec<(u64, u64)> = Vec::new();
    for bucket in &latency.histogram {
        let from = 1u64.checked_shl(bucket.from_ns.max(1).ilog2()).unwrap_or(1);
        match powers.last_mut() {
            Some((last, count)) if *last == from => *count = count.saturating_add(bucket.count),
            _ => powers.push((from, bucket.count)),
        }
    }
    let most = powers
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(1)
        .max(1);
    let lines = powers.iter().map(|(from, count)| {
        let length = count.saturating_mul(BAR).div_ceil(most);
        let bar = "#".repeat(usize::try_from(length).unwrap_or(0));
        format!(
            "{:>9}  {:>9}  {bar}\n",
            span(Nanos::new(*from), charset),
            count
        )
    });
    lines.collect()
}
