// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults verify`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bursar_faults::report::{MappingReport, advice, merged, since};
use bursar_faults::{
    Error, FaultRecord, Faults, Held, Output, Snapshot, Symbols, Target, Timing, WatchOptions,
    Watcher, faults_of, signals,
};
use bursar_model::Pid;
use clap::Args;
use serde::Serialize;

use super::lock::LockOptions;
use super::watch::seconds;
use crate::caller::{Caller, Form};
use crate::failure::{Code, Failure};
use crate::output;
use crate::style::Style;

/// Prove that a program takes no page faults after its start phase
///
/// Starts a command (locked with --lock) or attaches to a process, lets its start phase end, and counts
/// from then on. Exit code 0 only if there were no faults (or no more than --allow), else 1 and each is
/// listed: its mapping, who touched it, what to do. As root the kernel's programs see each fault; without,
/// the count of /proc/PID/stat is exact, too, and says how many, not where.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "command")]
    pid: Option<u32>,
    /// Its start phase ends after so many seconds (2 without any of these; 0 for a running process)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    after: Option<Duration>,
    /// … or when the command says this line on stdout
    #[arg(long, value_name = "LINE", conflicts_with_all = ["after", "signal", "pid"])]
    marker: Option<String>,
    /// … or when it sends us SIGUSR1 (prefault.h: prefault_started())
    #[arg(long, conflicts_with_all = ["after", "pid"])]
    signal: bool,
    /// How long to count from then on, seconds
    #[arg(long = "for", value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    duration: Duration,
    /// How many faults are forgiven
    #[arg(long, value_name = "N", default_value_t = 0)]
    allow: u64,
    /// Lock the command's memory, as bursar run --lock does
    #[arg(long, conflicts_with = "pid")]
    lock: bool,
    #[command(flatten)]
    locking: LockOptions,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD", help_heading = "Arguments")]
    command: Vec<OsString>,
}

/// Single faults shown.
const RECORDS: usize = 16;
const PULSE: Duration = Duration::from_millis(10);
/// How long a start phase that ends with a line or a signal may take.
const START_PATIENCE: Duration = Duration::from_secs(600);

/// What was found.
#[derive(Debug, Serialize)]
struct Verdict {
    passed: bool,
    pid: u32,
    #[serde(flatten)]
    faults: Faults,
    allowed: u64,
    start_faults: u64,
    counted_ns: u64,
    locked_bytes: u64,
    /// `kernel` or `proc`.
    source: &'static str,
    mappings: Vec<MappingReport>,
    records: Vec<RecordReport>,
    /// Why the time was not full, if it was not.
    remark: Option<String>,
}

#[derive(Debug, Serialize)]
struct RecordReport {
    tid: u32,
    comm: String,
    address: u64,
    is_major: bool,
    in_kernel: bool,
    latency_ns: Option<u64>,
    mapping: String,
    stack: Vec<String>,
}

impl Verify {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        if !self.lock && self.locking.is_any() {
            return Err(Failure::usage(
                "--heap and its like say how to lock; add --lock",
            ));
        }
        signals::note_signals();
        let mut held = self.start(caller)?;
        let pid = match (&held, self.pid) {
            (Some(held), _) => held.pid(),
            (None, Some(pid)) => Pid::new(pid),
            (None, None) => {
                return Err(Failure::usage(
                    "verify what? name a process, or a command behind --",
                ));
            }
        };
        if held.is_none() {
            bursar_faults::check_target(pid)?;
        }
        let targets = if held.is_some() {
            vec![]
        } else {
            vec![Target::Process(pid)]
        };
        let options = WatchOptions {
            targets,
            follow_children: false,
            timing: Timing::Each,
            max_records: RECORDS as u64,
        };
        let mut watcher = match Watcher::start(&options, held.as_ref().map(Held::pidfd)) {
            Ok(watcher) => Some(watcher),
            Err(error @ (Error::NotPermitted { .. } | Error::Unsupported { .. })) => {
                output::complain(&format!("{error}; counting what /proc/PID/stat says"));
                None
            }
            Err(error) => return Err(error.into()),
        };
        let mut marker = None;
        if let Some(held) = &mut held {
            marker = self
                .marker
                .as_ref()
                .and_then(|line| listen(held, line, caller.form));
            held.go()?;
        }
        self.start_phase(&mut held, pid, marker.as_ref())?;

        let mut symbols = Symbols::default();
        symbols.look_at(pid);
        if let Some(watcher) = &mut watcher {
            watcher.record()?;
        }
        let before = Count::take(watcher.as_ref(), pid)?.ok_or(Error::NoProcess(pid))?;
        let began = Instant::now();
        let mut last = before.clone();
        let mut locked = locked_bytes(pid);
        let mut remark = None;
        while began.elapsed() < self.duration {
            if signals::is_interrupted() {
                remark = Some("interrupted before the time was over".to_owned());
                break;
            }
            let ended = match &mut held {
                Some(held) => held.try_wait()?.is_some(),
                None => bursar_faults::is_gone(pid),
            };
            if ended {
                remark = Some("it ended before the time was over".to_owned());
                break;
            }
            std::thread::sleep(PULSE);
            // Of a process that ends, the last that is known counts.
            if let Some(count) = Count::take(None, pid)? {
                last.faults = count.faults;
                locked = locked_bytes(pid).max(locked);
            }
        }
        let counted = began.elapsed();
        if let Some(count) = Count::take(watcher.as_ref(), pid)? {
            last = count;
        }
        symbols.look_at(pid);
        let records = match &mut watcher {
            Some(watcher) => watcher.records()?,
            None => Vec::new(),
        };
        drop(watcher);
        let grown = match (&last.snapshot, &before.snapshot) {
            (Some(later), Some(earlier)) => since(later, earlier),
            _ => Vec::new(),
        };
        let name = |record: &FaultRecord| {
            let found = last
                .snapshot
                .as_ref()
                .and_then(|it| it.mappings.get(record.mapping));
            found.map_or_else(String::new, |mapping| {
                MappingReport::of(mapping, symbols.path(pid, mapping.inode)).place()
            })
        };
        let names: Vec<String> = records.iter().map(name).collect();
        let mut mappings: Vec<MappingReport> = merged(&grown)
            .iter()
            .map(|(mapping, _)| MappingReport::of(mapping, symbols.path(pid, mapping.inode)))
            .collect();
        mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.faults.total()));
        // With the kernel's programs the sum of the mappings; it is the same counter.
        let faults = match last.snapshot {
            Some(_) => grown.iter().fold(Faults::default(), |sum, it| Faults {
                minor: sum.minor.saturating_add(it.minor),
                major: sum.major.saturating_add(it.major),
            }),
            None => last.faults.since(before.faults),
        };
        if self.lock && locked == 0 && remark.is_none() {
            remark = Some(
                "its memory is not locked: it executed another program, and locks end there; name that \
                 program, or use --lock-children"
                    .to_owned(),
            );
        }
        let verdict = Verdict {
            passed: faults.total() <= self.allow && remark.is_none(),
            pid: pid.get(),
            faults,
            allowed: self.allow,
            start_faults: before.faults.total(),
            counted_ns: u64::try_from(counted.as_nanos()).unwrap_or(u64::MAX),
            locked_bytes: locked,
            source: if last.snapshot.is_some() {
                "kernel"
            } else {
                "proc"
            },
            mappings,
            records: records
                .iter()
                .zip(names)
                .take(RECORDS)
                .map(|(record, mapping)| RecordReport {
                    tid: record.tid.get(),
                    comm: record.comm.clone(),
                    address: record.address,
                    is_major: record.is_major,
                    in_kernel: record.in_kernel,
                    latency_ns: record.latency_ns,
                    mapping,
                    stack: record
                        .stack
                        .iter()
                        .map(|at| symbols.name(pid, *at))
                        .collect(),
                })
                .collect(),
            remark,
        };
        if let Some(mut held) = held {
            finish(&mut held)?;
        }
        caller.answer(&verdict, |verdict| people(verdict, &caller.style))?;
        if verdict.passed {
            Ok(())
        } else {
            Err(Failure::Answer(Code::Failed))
        }
    }

    fn start(&self, caller: &Caller) -> Result<Option<Held>, Failure> {
        let Some(program) = self.command.first() else {
            return Ok(None);
        };
        let mut variables = vec![(
            OsString::from("BURSAR_VERIFY_PID"),
            OsString::from(std::process::id().to_string()),
        )];
        if self.lock {
            variables.extend(self.locking.environment(program)?);
        }
        let output = match (&self.marker, caller.form) {
            (Some(_), _) => Output::Piped,
            (None, Form::Json) => Output::Errors,
            (None, Form::People) => Output::Shared,
        };
        Ok(Some(Held::start(&self.command, &variables, output)?))
    }

    /// Waits for the end of the start phase.
    fn start_phase(
        &self,
        held: &mut Option<Held>,
        pid: Pid,
        marker: Option<&Receiver<()>>,
    ) -> Result<(), Failure> {
        let default = Duration::from_secs(if held.is_some() { 2 } else { 0 });
        let by_event = marker.is_some() || self.signal;
        let limit = if by_event {
            START_PATIENCE
        } else {
            self.after.unwrap_or(default)
        };
        let deadline = Instant::now() + limit;
        loop {
            if marker.is_some_and(|marker| marker.try_recv().is_ok())
                || (self.signal && signals::has_started())
            {
                return Ok(());
            }
            let ended = match held {
                Some(held) => held.try_wait()?.map(|(status, _)| status.to_string()),
                None => bursar_faults::is_gone(pid).then(|| "gone".to_owned()),
            };
            if let Some(how) = ended {
                return Err(Failure::failed(format!(
                    "process {pid} ended in its start phase ({how}); nothing was verified"
                )));
            }
            if signals::is_interrupted() {
                return Err(Failure::failed(
                    "interrupted in the start phase; nothing was verified",
                ));
            }
            let now = Instant::now();
            if now >= deadline {
                return if by_event {
                    Err(Failure::failed(format!(
                        "the start phase did not end within {} s: {} did not come",
                        START_PATIENCE.as_secs(),
                        if self.signal { "SIGUSR1" } else { "the line" }
                    )))
                } else {
                    Ok(())
                };
            }
            std::thread::sleep(PULSE.min(deadline - now));
        }
    }
}

/// What is known at one moment.
#[derive(Debug, Clone)]
struct Count {
    faults: Faults,
    snapshot: Option<Snapshot>,
}

impl Count {
    fn take(watcher: Option<&Watcher>, pid: Pid) -> Result<Option<Self>, Failure> {
        let snapshot = watcher.map(Watcher::snapshot).transpose()?;
        let faults = faults_of(pid)?;
        Ok(match (faults, snapshot) {
            (None, None) => None,
            (faults, snapshot) => Some(Self {
                faults: faults.unwrap_or_default(),
                snapshot,
            }),
        })
    }
}

/// Passes the command's stdout on and looks for a line in it.
fn listen(held: &mut Held, line: &str, form: Form) -> Option<Receiver<()>> {
    /// A longer line is not the marker, bytes.
    const LONGEST: usize = 64 << 10;
    let mut output = std::fs::File::from(held.take_output()?);
    let (found, seen) = channel();
    let wanted = line.as_bytes().to_vec();
    let listener = move || {
        let mut buffer = [0; 16 << 10];
        let mut current = Vec::new();
        while let Ok(length) = output.read(&mut buffer) {
            let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            // Whoever reads us may have gone; the command goes on.
            let _ = match form {
                Form::People => std::io::stdout()
                    .write_all(bytes)
                    .and_then(|()| std::io::stdout().flush()),
                Form::Json => std::io::stderr().write_all(bytes),
            };
            for &byte in bytes {
                if byte == b'\n' {
                    if current == wanted {
                        let _ = found.send(());
                    }
                    current.clear();
                } else if current.len() < LONGEST {
                    current.push(byte);
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("marker".into())
        .spawn(listener)
        .ok()?;
    Some(seen)
}

fn locked_bytes(pid: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Ends a command that we started.
fn finish(held: &mut Held) -> Result<(), Failure> {
    held.terminate();
    let deadline = Instant::now() + Duration::from_secs(2);
    while held.try_wait()?.is_none() && Instant::now() < deadline {
        std::thread::sleep(PULSE);
    }
    Ok(())
}

fn people(verdict: &Verdict, style: &Style) -> String {
    let seconds = verdict.counted_ns as f64 / 1e9;
    let mut text = format!(
        "{}: process {} took {} minor and {} major faults in {seconds:.1} s after its start phase ({} before); \
         {} KiB locked\n",
        if verdict.passed { "passed" } else { "failed" },
        verdict.pid,
        verdict.faults.minor,
        verdict.faults.major,
        verdict.start_faults,
        verdict.locked_bytes / 1024,
    );
    if let Some(remark) = &verdict.remark {
        text.push_str(&format!("{remark}\n"));
    }
    for mapping in &verdict.mappings {
        text.push_str(&format!(
            "  {:>9}  {}\n",
            mapping.faults.total(),
            style.shown(&mapping.place())
        ));
        let remedy = advice(mapping.kind, &mapping.permissions, mapping.faults);
        if !remedy.is_empty() {
            text.push_str(&format!("             {remedy}\n"));
        }
    }
    if !verdict.records.is_empty() {
        text.push_str("the first of them:\n");
    }
    for record in &verdict.records {
        text.push_str(&format!(
            "  thread {} ({}) at {:#x} in {}{}{}\n",
            record.tid,
            style.shown(&record.comm),
            record.address,
            style.shown(&record.mapping),
            if record.is_major { ", major" } else { "" },
            if record.in_kernel {
                ", in a system call"
            } else {
                ""
            },
        ));
        for frame in &record.stack {
            text.push_str(&format!("      {}\n", style.shown(frame)));
        }
    }
    text
}
