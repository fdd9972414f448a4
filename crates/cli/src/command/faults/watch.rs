// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar faults watch`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bursar_faults::report::{Report, Span, report};
use bursar_faults::{
    Held, Output, Rates, Residency, Snapshot, Symbols, Target, Timing, WatchOptions, Watcher,
    signals,
};
use bursar_host::Users;
use bursar_model::{Pid, Uid, Who};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::caller::{Caller, Form, json};
use crate::complaint::complain;
use crate::failure::{Code, Failure};
use crate::output;
use crate::view;

/// Show live who takes page faults, how long they take, and where
///
/// Names processes, an account or a command with what it starts. As root faults are seen one by one: per
/// mapping, with latencies. Without, or where the kernel does not let us, one's own processes are shown with the
/// rates of /proc/PID/stat. Ends with the command or the processes, after --for, or at Ctrl-C, with a
/// summary.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The processes
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["account", "command"])]
    pids: Vec<u32>,
    /// All processes of a user (name or uid), or of each member of @group
    #[arg(long, value_name = "WHO", conflicts_with = "command")]
    account: Option<Who>,
    /// How long to watch, seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Seconds between looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Only the summary at the end
    #[arg(long)]
    quiet: bool,
    /// See and time each fault, also in a storm, whatever it costs
    #[arg(long)]
    time_each: bool,
    /// A command, watched from its first instruction with all that it starts
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// A span as typed: seconds, up to a day, at least 10 ms.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "seconds, like 60 or 0.5".to_owned())?;
    if !(0.01..=86_400.0).contains(&number) {
        return Err("between 0.01 and 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(number))
}

/// How often mappings are read and ends are looked for, at first …
const PULSE: Duration = Duration::from_millis(20);
/// … and after a while: each look takes the address space's lock for a moment.
const SLOW_PULSE: Duration = Duration::from_millis(320);
/// How long threads may take to leave their CPUs after their process was waited for.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Watch {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let mut held = match self.command.as_slice() {
            [] => None,
            command => {
                // The command's words must not be in an answer for programs.
                let output = match caller.form {
                    Form::Json => Output::Errors,
                    Form::People => Output::Shared,
                };
                Some(Held::start(command, &[], output)?)
            }
        };
        let targets = self.targets(held.is_some())?;
        signals::note_signals();
        let mut source = Source::open(&targets, held.as_ref(), self.time_each)?;
        if let Some(held) = &mut held {
            held.go()?;
        }
        let began = Instant::now();
        let mut next = began + self.interval;
        let mut ended = None;
        let mut pulse = PULSE;
        let interrupted = loop {
            let left = self
                .duration
                .map_or(pulse, |duration| duration.saturating_sub(began.elapsed()));
            let look = next.saturating_duration_since(Instant::now());
            rest(held.as_ref(), pulse.min(left).min(look));
            pulse = (pulse * 2).min(SLOW_PULSE);
            if let Some(held) = &mut held {
                source.learn(held.pid());
                ended = held.try_wait()?;
                if ended.is_some() {
                    break false;
                }
            } else if source.are_all_gone(&targets) {
                break false;
            }
            if signals::is_interrupted() {
                break true;
            }
            if self
                .duration
                .is_some_and(|duration| began.elapsed() >= duration)
            {
                break true;
            }
            if Instant::now() >= next {
                next = Instant::now() + self.interval;
                let report = source.look(began.elapsed())?;
                if !self.quiet {
                    tell(&report, caller)?;
                }
            }
        };
        let mut last = source.last_look(began.elapsed(), interrupted)?;
        last.is_final = true;
        match caller.form {
            Form::Json => output::say(&json(&last)?)?,
            Form::People => output::say(&view::faults::summary(&last, &caller.style))?,
        }
        if let Some(mut held) = held {
            if interrupted {
                held.terminate();
                let deadline = Instant::now() + Duration::from_secs(5);
                while held.try_wait()?.is_none() && Instant::now() < deadline {
                    std::thread::sleep(PULSE);
                }
            } else if let Some((status, faults)) = ended {
                if caller.form == Form::People {
                    output::say(&format!(
                        "the command ended with {status}; getrusage counts {} minor and {} major for it and \
                         what it waited for",
                        faults.minor, faults.major
                    ))?;
                }
                if !status.success() {
                    return Err(Failure::Answer(Code::Failed));
                }
            }
        }
        Ok(())
    }

    /// What to watch; checked, so that nobody waits for what cannot come.
    fn targets(&self, has_command: bool) -> Result<Vec<Target>, Failure> {
        if has_command {
            return Ok(Vec::new());
        }
        if let Some(who) = &self.account {
            return Ok(uids(who)?.into_iter().map(Target::User).collect());
        }
        if self.pids.is_empty() {
            return Err(Failure::usage(
                "nothing to watch: name processes, --account WHO, or a command behind --",
            ));
        }
        let mut targets = Vec::new();
        for &pid in &self.pids {
            bursar_faults::check_target(Pid::new(pid))?;
            targets.push(Target::Process(Pid::new(pid)));
        }
        Ok(targets)
    }
}

/// Until the command ends, a signal comes or `span` is over.
fn rest(held: Option<&Held>, span: Duration) {
    let timeout = Timespec::try_from(span).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let mut ends: Vec<PollFd<'_>> = held
        .map(|held| PollFd::from_borrowed_fd(held.pidfd(), PollFlags::IN))
        .into_iter()
        .collect();
    // Whatever it says, the caller looks.
    let _ = poll(&mut ends, Some(&timeout));
}

/// The users that WHO stands for.
fn uids(who: &Who) -> Result<Vec<Uid>, Failure> {
    let mut users = Users::new(64);
    let unknown = || Failure::failed(format!("there is no user or group {who}"));
    let own = Uid::new(rustix::process::geteuid().as_raw());
    let uids = match who {
        Who::Uid(uid) => vec![*uid],
        Who::User(name) => vec![users.by_name(name).found().ok_or_else(unknown)?.uid],
        Who::Group(name) | Who::Shared(name) => users
            .members(name)
            .found()
            .ok_or_else(unknown)?
            .uids
            .into_iter()
            .collect(),
        Who::Default => {
            return Err(Failure::usage(format!(
                "{who} cannot be watched by name; name users, @group or processes"
            )));
        }
    };
    if own.get() != 0 && uids.iter().any(|uid| *uid != own) {
        return Err(Failure::Wrong(
            Code::NotPermitted,
            "only root may watch other users' faults".to_owned(),
        ));
    }
    Ok(uids)
}

fn tell(report: &Report, caller: &Caller) -> Result<(), Failure> {
    match caller.form {
        Form::Json => output::say(&json(report)?),
        Form::People => {
            // On a terminal the table stays where it is; in a file each look follows the last.
            let clear = if std::io::stdout().is_terminal() && !signals::is_interrupted() {
                "\x1b[H\x1b[2J"
            } else {
                ""
            };
            output::say(&format!(
                "{clear}{}",
                view::faults::report(report, &caller.style)
            ))
        }
    }
}

/// How faults are seen.
enum Source {
    Kernel {
        watcher: Box<Watcher>,
        before: Box<Snapshot>,
        symbols: Symbols,
        residency: Residency,
        /// When residency may be read again.
        residency_due: Instant,
        looked: Duration,
    },
    Proc(Rates),
}

impl Source {
    fn open(targets: &[Target], held: Option<&Held>, time_each: bool) -> Result<Self, Failure> {
        let options = WatchOptions {
            targets: targets.to_vec(),
            follow_children: held.is_some(),
            timing: if time_each {
                Timing::Each
            } else {
                Timing::Sampled
            },
            max_records: 0,
        };
        match Watcher::start(&options, held.map(Held::pidfd)) {
            Ok(watcher) => Ok(Self::Kernel {
                watcher: Box::new(watcher),
                before: Box::default(),
                symbols: Symbols::default(),
                residency: Residency::default(),
                residency_due: Instant::now(),
                looked: Duration::ZERO,
            }),
            Err(error) => {
                complain(&format!("{error}; showing the rates of /proc/PID/stat"));
                Ok(Self::Proc(Rates::new(targets, held.map(Held::pid))?))
            }
        }
    }

    /// Where its files are mapped: once it has ended nobody knows.
    fn learn(&mut self, pid: Pid) {
        if let Self::Kernel { symbols, .. } = self {
            symbols.look_at(pid);
        }
    }

    fn are_all_gone(&self, targets: &[Target]) -> bool {
        targets.iter().all(|target| match target {
            Target::Process(pid) | Target::Thread(pid) => bursar_faults::is_gone(*pid),
            Target::User(_) => false,
        })
    }

    fn look(&mut self, elapsed: Duration) -> Result<Report, Failure> {
        match self {
            Self::Kernel {
                watcher,
                before,
                symbols,
                residency,
                residency_due,
                looked,
            } => {
                let snapshot = watcher.snapshot()?;
                read_residency(residency, residency_due, &snapshot, before);
                let span = span_of(elapsed, *looked);
                let made = report(&snapshot, before, span, symbols, residency);
                **before = snapshot;
                *looked = elapsed;
                Ok(made)
            }
            Self::Proc(rates) => Ok(rates.look(elapsed)?),
        }
    }

    /// The last one; threads that have ended are waited for, unless they go on without us.
    fn last_look(self, elapsed: Duration, go_on: bool) -> Result<Report, Failure> {
        match self {
            Self::Kernel {
                watcher,
                before,
                mut symbols,
                mut residency,
                mut residency_due,
                looked,
            } => {
                let timeout = if go_on { Duration::ZERO } else { TIMEOUT };
                let snapshot = watcher.finish(timeout)?;
                read_residency(&mut residency, &mut residency_due, &snapshot, &before);
                let span = span_of(elapsed, looked);
                let mut last = report(&snapshot, &before, span, &mut symbols, &residency);
                last.processes
                    .sort_by_key(|it| std::cmp::Reverse(it.faults.total()));
                Ok(last)
            }
            Self::Proc(mut rates) => Ok(rates.look(elapsed)?),
        }
    }
}

/// Reads how much of their mappings is resident, of the processes that took faults. The kernel walks page
/// tables for it: no more than a twentieth of the time goes there.
fn read_residency(
    residency: &mut Residency,
    due: &mut Instant,
    snapshot: &Snapshot,
    before: &Snapshot,
) {
    const PART: u32 = 20;
    let began = Instant::now();
    if began < *due {
        return;
    }
    let mut grown: Vec<usize> = snapshot.since(before).iter().map(|it| it.process).collect();
    grown.sort_unstable();
    grown.dedup();
    for process in grown
        .iter()
        .filter_map(|index| snapshot.processes.get(*index))
    {
        residency.look_at(process.pid);
    }
    *due = Instant::now() + began.elapsed() * PART;
}

fn span_of(elapsed: Duration, looked: Duration) -> Span {
    Span {
        elapsed_ns: nanos(elapsed),
        latest_ns: nanos(elapsed.saturating_sub(looked)),
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
