// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults verify`.

mod start_phase;
mod verdict;

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use bursar_faults::report::{MappingReport, merged};
use bursar_faults::{
    Error, Faults, Held, Mapping, Output, Residency, Snapshot, Symbols, Target, Threads, Timing,
    WatchOptions, Watcher, faults_of, real_time_threads, signals,
};
use bursar_model::Pid;
use clap::Args;

use self::start_phase::{End, PULSE, listen};
use self::verdict::{Outcome, RecordReport, Verdict};
use super::lock::LockOptions;
use super::watch::seconds;
use crate::caller::{Caller, Form};
use crate::complaint::complain;
use crate::failure::{Code, Failure};

/// Prove that a program takes no page faults after its start phase
///
/// Starts a command (locked with --lock) or attaches to a process, lets its start phase end, and counts
/// from then on. Exit code 0 only if there were no faults (or no more than --allow), else 1 and each is
/// listed: its mapping, who touched it, what to do. A program that ends before the time is over without a
/// fault is "not proven", exit code 1 too; --until-exit takes its end as the end of the time. As root the
/// kernel's programs see each fault; without, the count of /proc/PID/stat is exact, too, and says how many,
/// not where.
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
    /// Count until the program ends, but no longer than --for; a command has to end with status 0
    #[arg(long)]
    until_exit: bool,
    /// How many faults are forgiven
    #[arg(long, value_name = "N", default_value_t = 0)]
    allow: u64,
    /// Count only threads that are SCHED_FIFO, SCHED_RR or SCHED_DEADLINE when the start phase ends, and
    /// those that they start: other threads may fault
    #[arg(long)]
    real_time: bool,
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

/// A program and how it is watched.
struct Subject {
    pid: Pid,
    held: Option<Held>,
    watcher: Option<Watcher>,
    /// Only these are counted.
    threads: Option<Threads>,
}

/// What is known of a subject at one moment.
#[derive(Debug, Clone)]
struct Count {
    faults: Faults,
    snapshot: Option<Snapshot>,
}

/// What was counted after the start phase.
struct Counted {
    before: Count,
    last: Count,
    time: Duration,
    locked_bytes: u64,
    /// Why it was not as long as asked.
    remark: Option<String>,
}

impl Verify {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        if !self.lock && self.locking.is_any() {
            return Err(Failure::usage(
                "--heap and its like say how to lock; add --lock",
            ));
        }
        signals::note_signals();
        let mut subject = self.subject(caller)?;
        let end = self.end_of_start(&mut subject, caller.form);
        if let Some(held) = &mut subject.held {
            held.go()?;
        }
        end.wait(&mut subject.held, subject.pid)?;
        if self.real_time {
            subject.choose_real_time()?;
        }
        let mut symbols = Symbols::default();
        symbols.look_at(subject.pid);
        if let Some(watcher) = &mut subject.watcher {
            watcher.record()?;
        }
        let mut counted = self.count(&mut subject)?;
        symbols.look_at(subject.pid);
        if self.lock && counted.locked_bytes == 0 && counted.remark.is_none() {
            counted.remark = Some(
                "its memory is not locked: it executed another program, and locks end there; name that \
                 program, or use --lock-children"
                    .to_owned(),
            );
        }
        let verdict = self.verdict(&mut subject, counted, &mut symbols)?;
        if let Some(mut held) = subject.held {
            finish(&mut held)?;
        }
        caller.answer(&verdict, |verdict| verdict.text(&caller.style))?;
        if verdict.passed {
            Ok(())
        } else {
            Err(Failure::Answer(Code::Failed))
        }
    }

    /// Starts the command, held before its exec, or finds the process; watched from now on.
    fn subject(&self, caller: &Caller) -> Result<Subject, Failure> {
        let held = self.start(caller)?;
        let pid = match (&held, self.pid) {
            (Some(held), _) => held.pid(),
            (None, Some(pid)) => Pid::new(pid),
            (None, None) => {
                return Err(Failure::usage(
                    "verify what? name a process, or a command behind --",
                ));
            }
        };
        let mut subject = Subject {
            pid,
            held,
            watcher: None,
            threads: None,
        };
        if subject.held.is_none() {
            bursar_faults::check_target(pid)?;
            if !self.real_time {
                subject.watch(vec![Target::Process(pid)])?;
            }
        } else if !self.real_time {
            subject.watch(Vec::new())?;
        }
        Ok(subject)
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

    fn end_of_start(&self, subject: &mut Subject, form: Form) -> End {
        if self.signal {
            return End::Signal;
        }
        if let (Some(line), Some(held)) = (&self.marker, &mut subject.held)
            && let Some(seen) = listen(held, line, form)
        {
            return End::Line(seen);
        }
        let default = Duration::from_secs(if subject.held.is_some() { 2 } else { 0 });
        End::After(self.after.unwrap_or(default))
    }

    /// Counts until the time is over, the program ends, or somebody interrupts us.
    fn count(&self, subject: &mut Subject) -> Result<Counted, Failure> {
        let before = subject.take()?.ok_or(Error::NoProcess(subject.pid))?;
        let began = Instant::now();
        let mut last = before.clone();
        let mut locked_bytes = locked_bytes_of(subject.pid);
        let mut remark = None;
        while began.elapsed() < self.duration {
            if signals::is_interrupted() {
                remark = Some("interrupted before the time was over".to_owned());
                break;
            }
            if let Some(status) = subject.ended()? {
                remark = self.early_end(status);
                break;
            }
            std::thread::sleep(PULSE);
            // Of a process that ends, the last that is known counts.
            if let Some(faults) = subject.faults()? {
                last.faults = faults;
                locked_bytes = locked_bytes_of(subject.pid).max(locked_bytes);
            }
        }
        let time = began.elapsed();
        if let Some(count) = subject.take()? {
            last = count;
        }
        Ok(Counted {
            before,
            last,
            time,
            locked_bytes,
            remark,
        })
    }

    /// Why a program that has ended is not proven.
    fn early_end(&self, status: Option<ExitStatus>) -> Option<String> {
        match status {
            Some(status) if !status.success() => {
                Some(format!("it ended before the time was over ({status})"))
            }
            _ if self.until_exit => None,
            _ => Some(
                "it ended before the time was over; --until-exit takes that as the end".to_owned(),
            ),
        }
    }

    fn verdict(
        &self,
        subject: &mut Subject,
        counted: Counted,
        symbols: &mut Symbols,
    ) -> Result<Verdict, Failure> {
        let pid = subject.pid;
        let mut residency = Residency::default();
        residency.look_at(pid);
        let records = match &mut subject.watcher {
            Some(watcher) => watcher.records()?,
            None => Vec::new(),
        };
        subject.watcher = None;
        let (before, last) = (&counted.before, &counted.last);
        let grown = match (&last.snapshot, &before.snapshot) {
            (Some(later), Some(earlier)) => later.since(earlier),
            _ => Vec::new(),
        };
        let faults = match &last.snapshot {
            Some(_) => sum_of(&grown),
            None => last.faults.since(before.faults),
        };
        let report = |mapping: &Mapping, symbols: &Symbols| {
            MappingReport::of(mapping, symbols.path(pid, mapping))
        };
        let mut mappings: Vec<MappingReport> = merged(&grown)
            .iter()
            .map(|(mapping, _)| report(mapping, symbols).with_residency(pid, &residency))
            .collect();
        mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.faults.total()));
        let all = last.snapshot.as_ref().map(|it| it.mappings.as_slice());
        let records = records.iter().take(RECORDS).map(|record| {
            let mapping = all.and_then(|all| all.get(record.mapping));
            let name = mapping.map_or_else(String::new, |it| report(it, symbols).place());
            RecordReport::of(record, name, pid, symbols)
        });
        let records = records.collect();
        let outcome = Outcome::of(faults, self.allow, counted.remark.as_ref());
        let threads = subject.threads.as_ref().map_or(&[][..], Threads::ids);
        Ok(Verdict {
            passed: outcome == Outcome::Passed,
            outcome,
            pid: pid.get(),
            threads: threads.iter().map(|tid| tid.get()).collect(),
            faults,
            allowed: self.allow,
            start_faults: before.faults.total(),
            counted_ns: u64::try_from(counted.time.as_nanos()).unwrap_or(u64::MAX),
            locked_bytes: counted.locked_bytes,
            source: if last.snapshot.is_some() {
                "kernel"
            } else {
                "proc"
            },
            mappings,
            records,
            remark: counted.remark,
        })
    }
}

impl Subject {
    fn watch(&mut self, targets: Vec<Target>) -> Result<(), Failure> {
        let newborn = self.held.as_ref().filter(|_| targets.is_empty());
        let options = WatchOptions {
            targets,
            follow_children: false,
            timing: Timing::Each,
            max_records: RECORDS as u64,
        };
        match Watcher::start(&options, newborn.map(Held::pidfd)) {
            Ok(watcher) => self.watcher = Some(watcher),
            Err(error @ (Error::NotPermitted { .. } | Error::Unsupported { .. })) => {
                complain(&format!("{error}; counting what /proc/PID/stat says"));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// From now on only the threads count that are real-time threads now.
    fn choose_real_time(&mut self) -> Result<(), Failure> {
        let threads = real_time_threads(self.pid)?;
        if threads.ids().is_empty() {
            return Err(Failure::failed(format!(
                "process {} has no real-time thread (SCHED_FIFO, SCHED_RR, SCHED_DEADLINE) when its start phase \
                 ends; nothing was verified. Let it make one first (chrt, pthread_setschedparam), or leave \
                 --real-time out",
                self.pid
            )));
        }
        self.watch(threads.ids().iter().copied().map(Target::Thread).collect())?;
        self.threads = Some(threads);
        Ok(())
    }

    /// By the kernel's counters; `None` once it is gone.
    fn faults(&self) -> Result<Option<Faults>, Failure> {
        let all = faults_of(self.pid)?;
        Ok(match &self.threads {
            Some(threads) => all.map(|_| threads.faults()),
            None => all,
        })
    }

    fn take(&self) -> Result<Option<Count>, Failure> {
        let snapshot = self.watcher.as_ref().map(Watcher::snapshot).transpose()?;
        let faults = self.faults()?;
        Ok((faults.is_some() || snapshot.is_some()).then(|| Count {
            faults: faults.unwrap_or_default(),
            snapshot,
        }))
    }

    /// Whether it has ended, and how, if that is known.
    fn ended(&mut self) -> Result<Option<Option<ExitStatus>>, Failure> {
        Ok(match &mut self.held {
            Some(held) => held.try_wait()?.map(|(status, _)| Some(status)),
            None => bursar_faults::is_gone(self.pid).then_some(None),
        })
    }
}

fn sum_of(mappings: &[Mapping]) -> Faults {
    mappings.iter().fold(Faults::default(), |sum, it| Faults {
        minor: sum.minor.saturating_add(it.minor),
        major: sum.major.saturating_add(it.major),
    })
}

fn locked_bytes_of(pid: Pid) -> u64 {
    // Its name is any bytes.
    let status = std::fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
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
