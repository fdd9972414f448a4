// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1 section 6.3: how far a user gets over his limit before the kill.
//!
//! Processes allocate as fast as they can. At every SIGKILL an observer of our own writes down what
//! all the living ones held, so that the contenders are judged by one measure and none by its own
//! word.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bursar_e2e::{Hog, World};
use bursar_model::Resource as Row;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::arguments;
use crate::board::{Board, monotonic_ns};
use crate::figures::Spread;
use crate::load::{Cgroup, Observer, Stage, Trivial, User};
use crate::lock::Lock;
use crate::poller::Poller;
use crate::progress::Progress;

/// S1's four cases: processes, limit in MiB.
const CASES: [(usize, u64); 4] = [(1, 64), (1, 128), (4, 64), (4, 128)];
/// All processes of a run together never hold more.
const CAP_BYTES: u64 = 1536 << 20;
/// A run in which somebody still lives after this is over, and says so.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Daemon {
        arguments: &'static [&'static str],
        config: &'static str,
    },
    Poller(Duration),
    Cgroup,
    Trivial,
}

struct Entrant {
    key: &'static str,
    what: &'static str,
    kind: Kind,
}

const ENTRANTS: [Entrant; 7] = [
    Entrant {
        key: "event",
        what: "bursar: the RSS event decides",
        kind: Kind::Daemon {
            arguments: &["--trigger", "bpf"],
            config: "",
        },
    },
    Entrant {
        key: "timer",
        what: "bursar: the kernel half's 200 ms timer alone",
        kind: Kind::Daemon {
            arguments: &["--trigger", "bpf"],
            config: "[triggers]\nevent = false\nnotifier = false\n",
        },
    },
    Entrant {
        key: "trace",
        what: "bursard --trigger trace: S1's notifier, soft limit 90 %",
        kind: Kind::Daemon {
            arguments: &["--trigger", "trace"],
            config: "",
        },
    },
    Entrant {
        key: "poll-200ms",
        what: "bursard --trigger poll: /proc every 200 ms",
        kind: Kind::Daemon {
            arguments: &["--trigger", "poll"],
            config: "",
        },
    },
    Entrant {
        key: "poll-10ms",
        what: "a loop over /proc with 10 ms of sleep",
        kind: Kind::Poller(Duration::from_millis(10)),
    },
    Entrant {
        key: "cgroup",
        what: "a memory cgroup's limit: the kernel's OOM killer",
        kind: Kind::Cgroup,
    },
    Entrant {
        key: "trivial",
        what: "S1's trivial killer: a scan at every RSS event",
        kind: Kind::Trivial,
    },
];

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Overcommit {
    pub(crate) runs: usize,
    pub(crate) contenders: Vec<Contender>,
}

/// One contender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Contender {
    pub(crate) key: String,
    pub(crate) what: String,
    /// Why there are no figures.
    pub(crate) cannot: Option<String>,
    pub(crate) cases: Vec<Case>,
}

/// One contender in one of the four cases.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Case {
    pub(crate) processes: usize,
    pub(crate) limit_bytes: u64,
    /// held − limit at each kill, bytes.
    pub(crate) over: Option<Spread>,
    pub(crate) overs: Vec<f64>,
    /// Of a victim alone, as wait4() tells its parent: peak resident set (file pages too), bytes.
    pub(crate) peak_rss: Option<Spread>,
    /// From the crossing to the victim's end, nanoseconds; first kill of each run.
    pub(crate) to_death_ns: Option<Spread>,
    /// Runs in which a process reached the cap unkilled: `over` is too small there.
    pub(crate) capped: usize,
    /// Kills that were a process's end without SIGKILL being seen, or processes that lived.
    pub(crate) survivors: usize,
}

/// A contender at work.
enum Working {
    Daemon(Box<Daemon>),
    Poller(#[expect(dead_code, reason = "lives as long as the runs")] Poller),
    Cgroup(Cgroup),
    Trivial(#[expect(dead_code, reason = "lives as long as the runs")] Trivial),
}

/// bursard, and processes of the user's that do nothing.
struct Daemon {
    world: World,
    /// What they hold: the limit is so much above that of the case.
    siblings_bytes: u64,
    _siblings: Vec<Hog>,
}

/// What one run showed.
#[derive(Default)]
struct Run {
    overs: Vec<f64>,
    peaks: Vec<f64>,
    to_death: Option<f64>,
    is_capped: bool,
    survivors: usize,
}

pub(crate) fn measure(
    stage: &Stage,
    runs: usize,
    chosen: &arguments::Overcommit,
    lock: &Lock,
) -> Result<Overcommit> {
    let observer = Observer::attach()?;
    let only = &chosen.only;
    let entrants = ENTRANTS
        .iter()
        .filter(|it| only.is_empty() || only.iter().any(|key| key == it.key));
    let entrants: Vec<&Entrant> = entrants.collect();
    let mut progress = Progress::new("over-commit", entrants.len() * CASES.len() * runs);
    let mut contenders = Vec::new();
    for entrant in entrants {
        let mut cases = Vec::new();
        let mut cannot = None;
        for (processes, mebibytes) in CASES {
            let limit = mebibytes << 20;
            lock.keep()?;
            let outcome = raise(stage, entrant.kind, limit, chosen.siblings).and_then(|working| {
                let report = || {
                    progress.step(&format!("{}, {processes} × {mebibytes} MiB", entrant.key));
                };
                one_case(stage, working, &observer, (processes, limit), runs, report)
            });
            match outcome {
                Ok(case) => cases.push(case),
                Err(error) => {
                    cannot = Some(format!("{error:#}"));
                    break;
                }
            }
        }
        contenders.push(Contender {
            key: entrant.key.into(),
            what: entrant.what.into(),
            cannot,
            cases,
        });
    }
    Ok(Overcommit { runs, contenders })
}

fn one_case(
    stage: &Stage,
    mut working: Working,
    observer: &Observer,
    (processes, limit): (usize, u64),
    runs: usize,
    mut report: impl FnMut(),
) -> Result<Case> {
    let mut all = Vec::new();
    for _ in 0..runs {
        if let Working::Cgroup(group) = &mut working {
            // A fresh one each time: what the last run left charged would count.
            drop(std::mem::replace(
                group,
                Cgroup::make(&format!("{}", all.len()), limit)?,
            ));
        }
        all.push(run(stage, &working, observer, processes, limit)?);
        report();
        settle(stage, &working)?;
    }
    let overs: Vec<f64> = all.iter().flat_map(|it| it.overs.iter().copied()).collect();
    let peaks: Vec<f64> = all.iter().flat_map(|it| it.peaks.iter().copied()).collect();
    let deaths: Vec<f64> = all.iter().filter_map(|it| it.to_death).collect();
    Ok(Case {
        processes,
        limit_bytes: limit,
        over: Spread::of(&overs),
        overs,
        peak_rss: Spread::of(&peaks),
        to_death_ns: Spread::of(&deaths),
        capped: all.iter().filter(|it| it.is_capped).count(),
        survivors: all.iter().map(|it| it.survivors).sum(),
    })
}

fn raise(stage: &Stage, kind: Kind, limit: u64, siblings: u32) -> Result<Working> {
    let uid = stage.uid(User::Other);
    ensure!(
        siblings == 0 || matches!(kind, Kind::Daemon { .. }),
        "what siblings hold is known of bursar's own contenders only"
    );
    Ok(match kind {
        Kind::Daemon { arguments, config } => {
            let mut world = World::new(&stage.binaries, "bench", config)?;
            world.daemon.with_arguments(arguments);
            world.daemon.start()?;
            let name = uid.to_string();
            let (siblings, siblings_bytes) = start_siblings(&world, &name, siblings)?;
            world
                .daemon
                .limit(&name, &(limit + siblings_bytes).to_string())?;
            Working::Daemon(Box::new(Daemon {
                world,
                siblings_bytes,
                _siblings: siblings,
            }))
        }
        Kind::Poller(every) => {
            let poller = Poller::start(uid, every);
            poller.limit(limit);
            Working::Poller(poller)
        }
        Kind::Cgroup => Working::Cgroup(Cgroup::make("first", limit)?),
        Kind::Trivial => Working::Trivial(Trivial::attach(uid, limit)?),
    })
}

/// So many processes that do nothing, and what they hold: it is counted exactly once there is a limit.
fn start_siblings(world: &World, name: &str, count: u32) -> Result<(Vec<Hog>, u64)> {
    if count == 0 {
        return Ok((Vec::new(), 0));
    }
    // Two pipes each.
    let wanted = 64 + 4 * u64::from(count);
    let nofile = getrlimit(Resource::Nofile).current;
    if nofile.is_some_and(|it| it < wanted) {
        let limit = Rlimit {
            current: Some(wanted),
            maximum: Some(wanted),
        };
        setrlimit(Resource::Nofile, limit).context("allow enough open files")?;
    }
    let script = format!("uid={name} say=there pause");
    let all = (0..count).map(|_| world.there(&script));
    let siblings: Vec<Hog> = all.collect::<Result<_>>()?;
    world.daemon.limit(name, "64G")?;
    bursar_e2e::until("the siblings being counted", || {
        let account = world.daemon.account(name)?;
        Ok(account.filter(|it| it.processes >= count))
    })?;
    Ok((siblings, world.daemon.memory(name)?.held.get()))
}

/// Waits until the daemon's accounts show nothing of the last run.
fn settle(stage: &Stage, working: &Working) -> Result<()> {
    let Working::Daemon(daemon) = working else {
        return Ok(());
    };
    let name = stage.uid(User::Other).to_string();
    bursar_e2e::until("the last run's memory being back", || {
        let account = daemon.world.daemon.account(&name)?;
        let is_clear = account.is_none_or(|it| {
            let held = it
                .resources
                .get(&Row::Memory)
                .map_or(0, |row| row.held.get());
            held <= daemon.siblings_bytes && it.dying.get() == 0
        });
        Ok(is_clear.then_some(()))
    })
}

/// Growing processes, killed when dropped.
struct Growers(Vec<(Child, OwnedFd, bool)>);

impl Drop for Growers {
    fn drop(&mut self) {
        for (child, _, is_gone) in &mut self.0 {
            if !*is_gone {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn pidfd(child: &Child) -> Result<OwnedFd> {
    // SAFETY: plain numbers; our own child, not waited for yet.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    if fd < 0 {
        bail!("open a pidfd: {}", std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}

/// Reaps a child of ours that has ended; its peak resident set in bytes.
fn reap(child: &Child) -> Result<(ExitStatus, u64)> {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    let pid = i32::try_from(child.id())?;
    // SAFETY: our own child, not waited for yet; both pointers are to live locals.
    if unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } != pid {
        bail!("wait for a process: {}", std::io::Error::last_os_error());
    }
    Ok((
        ExitStatus::from_raw(status),
        u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
    ))
}

fn start_growers(
    stage: &Stage,
    working: &Working,
    observer: &Observer,
    board: &Board,
    processes: usize,
    cap: u64,
) -> Result<Growers> {
    let mut growers = Growers(Vec::new());
    for slot in 0..processes {
        let mut command = Command::new(stage.binaries.path("bursar-bench-grower"));
        command
            .arg(stage.uid(User::Other).to_string())
            .arg(slot.to_string())
            .arg(cap.to_string());
        if let Working::Cgroup(group) = working {
            command.arg(group.entrance());
        }
        let child = command
            .stdin(Stdio::from(observer.descriptor()?))
            .spawn()
            .context("start bursar-bench-grower (cargo build --release -p bursar-bench)")?;
        let fd = pidfd(&child)?;
        growers.0.push((child, fd, false));
    }
    bursar_e2e::until("the processes being ready", || {
        let ready = board
            .slots
            .iter()
            .filter(|it| it.pid.load(SeqCst) != 0)
            .count();
        Ok((ready == processes).then_some(()))
    })?;
    Ok(growers)
}

fn run(
    stage: &Stage,
    working: &Working,
    observer: &Observer,
    processes: usize,
    limit: u64,
) -> Result<Run> {
    let page = 1_u64 << bursar_host::machine::page_size().shift();
    let board = observer.fresh_board(limit / page);
    let cap = CAP_BYTES / processes as u64;
    let mut growers = start_growers(stage, working, observer, board, processes, cap)?;
    let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
    let mut found = Run::default();
    board.go.store(1, SeqCst);
    let began = Instant::now();
    while ends.len() < processes && began.elapsed() < TIMEOUT {
        let mut waiting: Vec<libc::pollfd> = growers
            .0
            .iter()
            .map(|(_, fd, is_gone)| libc::pollfd {
                fd: if *is_gone { -1 } else { fd.as_raw_fd() },
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: an array of that many live entries.
        unsafe { libc::poll(waiting.as_mut_ptr(), waiting.len() as libc::nfds_t, 100) };
        let now = monotonic_ns();
        for (index, it) in waiting.iter().enumerate() {
            if it.revents & libc::POLLIN == 0 {
                continue;
            }
            let (child, _, is_gone) = &mut growers.0[index];
            let (status, peak) = reap(child)?;
            *is_gone = true;
            ends.insert(child.id(), now);
            if status.signal() != Some(libc::SIGKILL) {
                bail!("a growing process ended by {status} instead of SIGKILL");
            }
            found.peaks.push(peak as f64);
        }
    }
    let kills = (board.kills.load(SeqCst) as usize).min(board.killed.len());
    for kill in &board.killed[..kills] {
        let held = kill.held_pages.load(SeqCst) * page;
        found.overs.push(held as f64 - limit as f64);
        found.is_capped |= kill.victim_pages.load(SeqCst) * page >= cap;
    }
    if let Some(first) = board.killed[..kills].first() {
        // Killed in the very fault that crossed, nobody has seen the crossing: then it was the kill.
        let signalled = first.time_ns.load(SeqCst);
        let crossed = match board.crossed_ns.load(SeqCst) {
            0 => signalled,
            seen => seen.min(signalled),
        };
        let end = u32::try_from(first.pid.load(SeqCst))
            .ok()
            .and_then(|pid| ends.get(&pid));
        found.to_death = end.map(|&end| end.saturating_sub(crossed) as f64);
    }
    found.survivors = processes - ends.len();
    Ok(found)
}
