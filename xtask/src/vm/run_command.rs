// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm run`: one command in one guest, or in a guest of every kernel.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::guest::{Guest, Options};
use super::output::Stream;
use super::report::Report;
use crate::archive::Fetch;
use crate::interrupt;
use crate::kernel::{Cache, fetch};
use crate::suite::Suites;

/// What `run` takes.
#[derive(Args)]
pub struct RunArgs {
    /// bookworm, trixie, newest, one of the others, several with commas, or all for these three
    #[arg(long)]
    suite: Suites,
    #[command(flatten)]
    options: Options,
    /// A guest file to copy out when the command has ended; {suite} in HOST is replaced
    #[arg(long, value_name = "GUEST:HOST", value_parser = out_argument)]
    out: Vec<(PathBuf, PathBuf)>,
    /// How long it may take, boot included
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Guests at once, when there are several suites
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Pass although the kernel complained
    #[arg(long)]
    allow_kernel_warnings: bool,
    /// How much each suite's guest is to do of what need be done once, in their order; alike otherwise
    #[arg(long, value_name = "N", value_delimiter = ',')]
    shares: Vec<u32>,
    /// A word of one suite's command, in the place of {only}; the others' have none there
    #[arg(long, value_name = "SUITE=WORD", value_parser = word_argument)]
    only: Vec<(String, String)>,
    /// The command, run as root in /root; {share} in it is replaced by what each guest is to do of what need
    /// be done once: of three guests 0..1/3, 1..2/3 and 2..3/3, with --shares 2,1,1 0..2/4, 2..3/4 and 3..4/4
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// So many lines of a guest that failed are printed again, behind everything.
const LAST_LINES: usize = 24;
/// So much of each, in bytes.
const LAST_LINE_LEN: usize = 600;

pub(super) fn run(cache: &Cache, args: &RunArgs) -> Result<ExitCode> {
    let suites = args.suite.as_slice();
    let shares = shares(suites.len(), &args.shares)?;
    let names: Vec<String> = suites.iter().map(|suite| suite.name()).collect();
    let mut guests = Vec::new();
    for ((&suite, name), share) in suites.iter().zip(&names).zip(&shares) {
        let named = |to: &PathBuf| to.display().to_string().replace("{suite}", name).into();
        let kernel = fetch(cache, suite, &Fetch::default())?;
        let guest = Guest {
            options: args.options.clone(),
            command: args.command_of(name, share),
            out: args
                .out
                .iter()
                .map(|(from, to)| (from.clone(), named(to)))
                .collect(),
            timeout: Duration::from_secs(args.timeout),
            allow_kernel_warnings: args.allow_kernel_warnings,
            ..Guest::new(&kernel, &[])
        };
        guests.push(guest.run_printing(if suites.len() > 1 { name } else { "" }));
    }
    let runs = side_by_side(guests, args.jobs)?;
    let mut status = 0;
    for (report, _) in &runs {
        for line in report.story() {
            eprintln!("vm: {line}");
        }
        if status == 0 {
            status = report.status();
        }
    }
    // Who reads only the end of a log, as CI's readers do, finds there why it failed.
    for (report, last) in runs.iter().filter(|(report, _)| report.status() != 0) {
        eprintln!("vm: the last lines of {}:", report.suite);
        for line in last {
            eprintln!("vm: | {}", String::from_utf8_lossy(line));
        }
    }
    Ok(ExitCode::from(status))
}

impl RunArgs {
    fn command_of(&self, suite: &str, share: &str) -> Vec<String> {
        let only = |word: &str| match word {
            "{only}" => {
                let own = self.only.iter().find(|(name, _)| name == suite);
                own.map(|(_, word)| word.clone())
            }
            word => Some(word.replace("{share}", share)),
        };
        self.command.iter().filter_map(|word| only(word)).collect()
    }
}

/// Each guest's part of everything, as a half-open range of so many.
fn shares(guests: usize, sizes: &[u32]) -> Result<Vec<String>> {
    let sizes = if sizes.is_empty() {
        vec![1; guests]
    } else {
        sizes.to_vec()
    };
    ensure!(
        sizes.len() == guests,
        "--shares has {} numbers for {guests} suites; write one for each",
        sizes.len()
    );
    let total: u32 = sizes.iter().sum();
    let mut from = 0;
    let share = |size| {
        let part = format!("{from}..{}/{total}", from + size);
        from += size;
        part
    };
    Ok(sizes.into_iter().map(share).collect())
}

impl Guest {
    /// A run whose output is ours, behind its name if it has one, in which case its last lines come with
    /// the report: alone it has the end of the log to itself.
    fn run_printing<'a>(
        self,
        name: &'a str,
    ) -> impl FnOnce() -> Result<(Report, VecDeque<Vec<u8>>)> + Send + 'a {
        move || {
            let mut last = VecDeque::new();
            let report = self.run(&mut |stream, line| {
                if !name.is_empty() {
                    keep(&mut last, line);
                }
                // Who reads us may have gone; the guest runs on, its status counts.
                let _ = match stream {
                    Stream::Out => print(&mut std::io::stdout().lock(), name, line),
                    Stream::Err => print(&mut std::io::stderr().lock(), name, line),
                };
            })?;
            Ok((report, last))
        }
    }
}

/// One more of the last lines, and the first of them gone when they are too many.
fn keep(last: &mut VecDeque<Vec<u8>>, line: &[u8]) {
    let line = line.trim_ascii_end();
    if line.is_empty() {
        return;
    }
    if last.len() == LAST_LINES {
        last.pop_front();
    }
    last.push_back(line[..line.len().min(LAST_LINE_LEN)].to_vec());
}

fn print(to: &mut impl Write, name: &str, line: &[u8]) -> std::io::Result<()> {
    if !name.is_empty() {
        write!(to, "{name:9}| ")?;
    }
    to.write_all(line)?;
    // Beside another guest's lines an unfinished one would be glued to them.
    if !name.is_empty() && !line.ends_with(b"\n") {
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Runs all, so many at once, and gives their results in order.
pub(crate) fn side_by_side<T: Send>(
    runs: Vec<impl FnOnce() -> Result<T> + Send>,
    jobs: usize,
) -> Result<Vec<T>> {
    let mut results: Vec<_> = runs.iter().map(|_| None).collect();
    let next = Mutex::new(runs.into_iter().zip(&mut results));
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                // Not held while the run goes on.
                let take = || next.lock().ok().and_then(|mut next| next.next());
                while let Some((run, result)) = take().filter(|_| !interrupt::came()) {
                    *result = Some(run());
                }
            });
        }
    });
    let begun = |result: Option<Result<T>>| result.context("interrupted before this run began")?;
    results.into_iter().map(begun).collect()
}

/// `SUITE=WORD`.
fn word_argument(text: &str) -> Result<(String, String)> {
    let (suite, word) = text
        .split_once('=')
        .with_context(|| format!("{text:?} is not SUITE=WORD"))?;
    Ok((suite.to_owned(), word.to_owned()))
}

/// `GUEST:HOST`.
fn out_argument(text: &str) -> Result<(PathBuf, PathBuf)> {
    match text.split_once(':') {
        Some((guest, host)) if guest.starts_with('/') && !host.is_empty() => {
            Ok((guest.into(), host.into()))
        }
        _ => bail!("{text:?} is not GUEST:HOST with an absolute GUEST"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_to_copy_out_name_both_sides() {
        let (guest, host) = out_argument("/root/r.json:out/r.json").unwrap();
        assert_eq!((guest, host), ("/root/r.json".into(), "out/r.json".into()));
        for text in ["r.json:x", "/root/r.json", "/root/r.json:"] {
            assert!(out_argument(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_suite_has_a_word_of_its_own() {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            run: RunArgs,
        }
        let words = "run --suite newest,trixie --only trixie=--shared -- tell {share} {only} all";
        let run = <Alone as clap::Parser>::parse_from(words.split(' ')).run;
        let told = ["tell", "0..1/2", "--shared", "all"];
        assert_eq!(run.command_of("trixie", "0..1/2"), told);
        assert_eq!(
            run.command_of("newest", "0..1/2"),
            ["tell", "0..1/2", "all"]
        );
    }

    #[test]
    fn runs_keep_their_order_whatever_ends_first() {
        for jobs in [1, 2, 9] {
            let runs: Vec<_> = (0..5).map(|number| move || Ok(number)).collect();
            assert_eq!(
                side_by_side(runs, jobs).unwrap(),
                [0, 1, 2, 3, 4],
                "{jobs} jobs"
            );
        }
    }

    #[test]
    fn the_last_lines_are_kept_and_cut() {
        let mut last = VecDeque::new();
        for number in 0..LAST_LINES + 5 {
            keep(&mut last, format!("{number}\n").as_bytes());
        }
        keep(&mut last, b"\n");
        keep(&mut last, &[b'x'; LAST_LINE_LEN + 1]);
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last[0], b"6");
        assert_eq!(last[LAST_LINES - 1], [b'x'; LAST_LINE_LEN]);
    }

    #[test]
    fn lines_of_several_guests_carry_their_names() {
        let mut printed = Vec::new();
        print(&mut printed, "", b"alone").unwrap();
        print(&mut printed, "trixie", b"unfinished").unwrap();
        assert_eq!(
            String::from_utf8(printed).unwrap(),
            "alonetrixie   | unfinished\n"
        );
    }
}
