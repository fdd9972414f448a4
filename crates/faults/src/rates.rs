// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What any user may know of his own processes: fields 10 and 12 of /proc/PID/stat. And who may be
//! watched at all.

use std::collections::BTreeMap;
use std::time::Duration;

use bursar_host::{Proc, StartTime};
use bursar_model::{Pid, Uid};

use crate::report::{ProcessReport, Report};
use crate::{Error, Faults, Target};

/// Whether the process has ended (a zombie has).
pub fn is_gone(pid: Pid) -> bool {
    let stat = Proc::host().and_then(|proc| proc.stat(pid));
    !matches!(stat, Ok(Some(stat)) if !(stat.state.is_dead() && stat.threads <= 1))
}

/// Checks that a process is there, has memory of its own, and that we may watch it.
///
/// # Errors
/// When not, saying which.
pub fn check_target(pid: Pid) -> Result<(), Error> {
    let proc = Proc::host()?;
    let Some(status) = proc.status(pid)? else {
        return Err(Error::NoProcess(pid));
    };
    if proc.stat(pid)?.is_some_and(|stat| stat.is_kernel_thread) {
        return Err(Error::KernelThread(pid));
    }
    let own = rustix::process::geteuid();
    if !own.is_root() && status.uid.get() != own.as_raw() {
        return Err(Error::NotPermitted {
            what: format!("watch process {pid}"),
            reason: format!(
                "it belongs to uid {}; you may watch your own processes, root all",
                status.uid
            ),
        });
    }
    Ok(())
}

/// Faults of a process so far; `None` when it is gone.
///
/// # Errors
/// When /proc cannot be read.
pub fn faults_of(pid: Pid) -> Result<Option<Faults>, Error> {
    let stat = Proc::host()?.stat(pid)?;
    Ok(stat.map(|stat| Faults {
        minor: stat.minor_faults,
        major: stat.major_faults,
    }))
}

/// Rates of processes.
#[derive(Debug)]
pub struct Rates {
    pids: Vec<Pid>,
    uids: Vec<Uid>,
    known: BTreeMap<(Pid, StartTime), Known>,
    looked: Duration,
}

#[derive(Debug)]
struct Known {
    uid: u32,
    comm: String,
    first: Faults,
    last: Faults,
    before: Faults,
}

impl Rates {
    /// Of these targets, and of one more process.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn new(targets: &[Target], also: Option<Pid>) -> Result<Self, Error> {
        let mut rates = Self {
            pids: Vec::new(),
            uids: Vec::new(),
            known: BTreeMap::new(),
            looked: Duration::ZERO,
        };
        rates.pids.extend(also);
        for target in targets {
            match target {
                Target::Process(pid) | Target::Thread(pid) => rates.pids.push(*pid),
                Target::User(uid) => rates.uids.push(*uid),
            }
        }
        rates.read()?;
        Ok(rates)
    }

    fn read(&mut self) -> Result<(), Error> {
        let proc = Proc::host()?;
        let mut pids = self.pids.clone();
        if !self.uids.is_empty() {
            for pid in proc.pids()? {
                let pid = pid?;
                let uid = proc.status(pid)?.map(|status| status.uid);
                if uid.is_some_and(|uid| self.uids.contains(&uid)) {
                    pids.push(pid);
                }
            }
        }
        for pid in pids {
            let Some(stat) = proc.stat(pid)? else {
                continue;
            };
            let now = Faults {
                minor: stat.minor_faults,
                major: stat.major_faults,
            };
            let known = self
                .known
                .entry((pid, stat.start))
                .or_insert_with(|| Known {
                    uid: proc
                        .status(pid)
                        .ok()
                        .flatten()
                        .map_or(0, |status| status.uid.get()),
                    comm: String::new(),
                    first: now,
                    last: now,
                    before: now,
                });
            known.comm = stat.comm.to_printable();
            known.last = now;
        }
        Ok(())
    }

    /// What came since the look before.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn look(&mut self, elapsed: Duration) -> Result<Report, Error> {
        for known in self.known.values_mut() {
            known.before = known.last;
        }
        self.read()?;
        let span = elapsed.saturating_sub(self.looked).as_nanos().max(1);
        self.looked = elapsed;
        let mut sum = Faults::default();
        let mut all = 0u64;
        let mut processes = Vec::new();
        for ((pid, _), known) in &self.known {
            let faults = known.last.since(known.first);
            let grown = u128::from(known.last.since(known.before).total()) * 1_000_000_000 / span;
            let per_second = u64::try_from(grown).unwrap_or(u64::MAX);
            sum.minor = sum.minor.saturating_add(faults.minor);
            sum.major = sum.major.saturating_add(faults.major);
            all = all.saturating_add(per_second);
            processes.push(ProcessReport {
                pid: pid.get(),
                uid: known.uid,
                comm: known.comm.clone(),
                faults,
                per_second,
                mappings: Vec::new(),
            });
        }
        processes.sort_by_key(|it| std::cmp::Reverse((it.per_second, it.faults.total())));
        Ok(Report {
            source: "proc",
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            is_final: false,
            faults: sum,
            per_second: all,
            shared_out: 0,
            processes,
            minor_latency: None,
            major_latency: None,
            losses: None,
        })
    }
}
