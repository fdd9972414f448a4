// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the processes of an account are: command lines, when they began, numbers in containers, programs of which there
//! are several. A killed process soon has nothing of that any more, so it is looked up when its account gets near its
//! limit, and again at a kill.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use bursar_host::{Proc, ProcessQuery, StartTime, clock};
use bursar_model::{AccountId, Bytes, Candidate, Nanos, Pid, ProgramGroup, Uid, printable};
use bursar_watchdog::{Blocklist, TimedQuery};

use crate::fact::Considered;
use crate::proc_pace::rest_after;

/// A look takes no longer, whatever keeps it: bursard's loop waits for it.
const ROUND: Duration = Duration::from_millis(500);
/// So many processes of an account are looked at.
const MOST: usize = 4096;
/// So many are remembered of all accounts. A kilobyte each at most is 64 MiB.
const MOST_REMEMBERED: usize = 65_536;
/// Of a command line so many bytes: as many as [`COMMAND_WIDTH`] characters may have.
const COMMAND_BYTES: usize = 1024;
/// A process that keeps us waiting is left out.
const TIMEOUT: Duration = Duration::from_millis(50);
/// Several of one program.
const SEVERAL: usize = 3;
const GROUPS_TOLD: usize = 3;
/// Of a group so many are asked who began them.
const PARENTS_ASKED: usize = 64;
/// Characters of a command line.
const COMMAND_WIDTH: usize = 256;
/// A comm has at most 15 bytes; escapes make it longer.
pub(crate) const COMM_WIDTH: usize = 64;
/// Of a candidate's command line: there are eight with each kill.
const CANDIDATE_WIDTH: usize = 120;

/// One process, as it was.
#[derive(Debug, Clone)]
struct Program {
    comm: Vec<u8>,
    uid: Uid,
    start: StartTime,
    parent: Option<Pid>,
    held: Bytes,
    namespace_pid: Option<Pid>,
    command: Vec<u8>,
}

/// What is to be said of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    /// Made printable.
    pub(crate) command: Option<String>,
    pub(crate) began: Option<SystemTime>,
    pub(crate) namespace_pid: Option<Pid>,
}

/// What is to be said of a process that was weighed.
#[derive(Debug, Clone)]
pub(crate) struct CandidateFacts {
    parent: Option<Pid>,
    parent_comm: Option<String>,
    command: Option<String>,
    began: Option<SystemTime>,
}

#[derive(Debug, Default)]
struct Known {
    looked: Option<Instant>,
    /// How long it is not looked at again.
    rest: Duration,
    programs: HashMap<Pid, Program>,
    /// Those that were there at the last look.
    here: Vec<Pid>,
}

#[derive(Debug)]
pub(crate) struct Programs {
    proc: Proc,
    query: TimedQuery,
    known: BTreeMap<AccountId, Known>,
    listing: Listing,
}

/// Whose the machine's processes are: for all accounts that are looked at in the same second.
#[derive(Debug, Default)]
struct Listing {
    made: Option<Instant>,
    took: Duration,
    owners: Vec<(Pid, Uid)>,
}

impl Listing {
    /// Looks anew, unless that was done just now ([`rest_after`]).
    fn renew(&mut self, proc: &Proc) {
        let rest = rest_after(self.took);
        if self.made.is_some_and(|it| it.elapsed() < rest) {
            return;
        }
        let began = Instant::now();
        self.owners.clear();
        let Ok(pids) = proc.pids() else { return };
        let owner_of = |pid: Pid| {
            let found = std::fs::metadata(format!("/proc/{pid}")).ok()?;
            Some((pid, Uid::new(found.uid())))
        };
        self.owners = pids.filter_map(Result::ok).filter_map(owner_of).collect();
        self.took = began.elapsed();
        self.made = Some(Instant::now());
    }
}

impl Programs {
    pub(crate) fn new(blocklist: &Arc<Blocklist>) -> Result<Self> {
        let query = TimedQuery::new("programs", Arc::clone(blocklist))?
            .within(TIMEOUT)
            .ready()?;
        Ok(Self {
            proc: Proc::host()?,
            query,
            known: BTreeMap::new(),
            listing: Listing::default(),
        })
    }

    /// Looks at the processes of an account's users, unless that was done just now.
    pub(crate) fn look(&mut self, account: AccountId, users: &BTreeSet<Uid>) {
        let is_fresh = |known: &Known| known.looked.is_some_and(|it| it.elapsed() < known.rest);
        if self.known.get(&account).is_some_and(is_fresh) {
            return;
        }
        self.listing.renew(&self.proc);
        let theirs = self.listing.owners.iter();
        let theirs = theirs.filter(|(_, uid)| users.contains(uid));
        let pids: Vec<Pid> = theirs.map(|(pid, _)| *pid).take(MOST).collect();
        let began = Instant::now();
        let until = began + ROUND;
        let found = self.query.ask_each(pids, move |proc, pid| {
            let has_time = Instant::now() < until;
            has_time.then(|| look_at(proc, pid)).flatten()
        });
        self.forget(account, found.len());
        let known = self.known.entry(account).or_default();
        known.looked = Some(Instant::now());
        known.rest = rest_after(began.elapsed());
        known.here.clear();
        for (pid, program) in found {
            // The number may be another user's by now.
            let Some(program) = program.filter(|it| users.contains(&it.uid)) else {
                continue;
            };
            known.here.push(pid);
            known.remember(pid, program);
        }
    }

    /// Makes room for so many: of an account what it had before its last look, and then the accounts that were looked at
    /// longest ago.
    fn forget(&mut self, account: AccountId, more: usize) {
        if let Some(known) = self.known.get_mut(&account)
            && known.programs.len() > MOST
        {
            let here: BTreeSet<Pid> = known.here.iter().copied().collect();
            known.programs.retain(|pid, _| here.contains(pid));
        }
        let remembered = |known: &BTreeMap<AccountId, Known>| -> usize {
            known.values().map(|it| it.programs.len().max(1)).sum()
        };
        while remembered(&self.known).saturating_add(more) > MOST_REMEMBERED {
            let others = self.known.iter().filter(|(id, _)| **id != account);
            let oldest = others.min_by_key(|(_, it)| it.looked).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.known.remove(&oldest);
        }
    }

    /// What a process is, or was that began then. Without that it is as the last look found it, for its number may be
    /// another's by now.
    pub(crate) fn identity(
        &mut self,
        account: AccountId,
        pid: Pid,
        began: Option<Nanos>,
    ) -> Identity {
        let known = self.known.entry(account).or_default();
        if let Some(began) = began
            && let Some(program) = self.query.ask(pid, look_at).flatten()
            && is_at(program.start, began)
        {
            known.remember(pid, program);
        }
        let is_it = |it: &&Program| match began {
            Some(began) => is_at(it.start, began),
            None => known.here.contains(&pid),
        };
        let Some(program) = known.programs.get(&pid).filter(is_it) else {
            return Identity::default();
        };
        Identity {
            command: program.command_line(COMMAND_WIDTH),
            began: to_wall(program.start),
            namespace_pid: program.namespace_pid,
        }
    }

    /// What is known of processes that were weighed, in their order; nothing of one that has another name by now.
    pub(crate) fn candidate_facts(
        &self,
        account: AccountId,
        candidates: &[Considered],
    ) -> Vec<Option<CandidateFacts>> {
        let known = self.known.get(&account);
        let facts = |it: &Considered| {
            let program = known?.programs.get(&it.pid);
            let program = program.filter(|known| known.comm == it.comm)?;
            let parent_comm = |parent| self.proc.comm(parent).ok().flatten();
            Some(CandidateFacts {
                parent: program.parent,
                parent_comm: program
                    .parent
                    .and_then(parent_comm)
                    .map(|it| printable(it.as_bytes(), COMM_WIDTH)),
                command: program.command_line(CANDIDATE_WIDTH),
                began: to_wall(program.start),
            })
        };
        candidates.iter().map(facts).collect()
    }

    /// Programs of which the account has several processes, as of the last look.
    pub(crate) fn groups(&self, account: AccountId) -> Vec<ProgramGroup> {
        let Some(known) = self.known.get(&account) else {
            return Vec::new();
        };
        let comm_of = |pid: Pid| {
            let comm = self.proc.comm(pid).ok().flatten()?;
            Some(comm.as_bytes().to_vec())
        };
        let here = known.here.iter().filter_map(|it| known.programs.get(it));
        groups_told(here, comm_of)
    }
}

/// The groups that hold most. Parents are looked up for these only: an account may have a thousand groups, and the loop
/// waits for each look.
fn groups_told<'a>(
    programs: impl Iterator<Item = &'a Program>,
    mut comm_of: impl FnMut(Pid) -> Option<Vec<u8>>,
) -> Vec<ProgramGroup> {
    let mut by_comm: BTreeMap<&[u8], Vec<&Program>> = BTreeMap::new();
    for program in programs {
        by_comm.entry(&program.comm).or_default().push(program);
    }
    let held = |programs: &[&Program]| {
        programs
            .iter()
            .fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.held))
    };
    let mut groups: Vec<_> = by_comm
        .into_iter()
        .filter(|(_, programs)| programs.len() >= SEVERAL)
        .map(|(comm, programs)| (held(&programs), comm, programs))
        .collect();
    groups.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
    groups.truncate(GROUPS_TOLD);
    groups
        .into_iter()
        .map(|(bytes, comm, programs)| ProgramGroup {
            comm: printable(comm, COMM_WIDTH),
            count: u32::try_from(programs.len()).unwrap_or(u32::MAX),
            bytes,
            begun_by: parent_of(&programs, &mut comm_of),
        })
        .collect()
}

/// Who began more than half of them, by the first so many.
fn parent_of(
    programs: &[&Program],
    mut comm_of: impl FnMut(Pid) -> Option<Vec<u8>>,
) -> Option<String> {
    let programs = programs.get(..PARENTS_ASKED).unwrap_or(programs);
    let mut names: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    let mut seen: HashMap<Pid, Option<Vec<u8>>> = HashMap::new();
    for parent in programs.iter().filter_map(|it| it.parent) {
        let name = seen.entry(parent).or_insert_with(|| {
            // Whoever has lost its parent is the init's, which began nothing.
            Some(parent)
                .filter(|it| it.get() != 1)
                .and_then(&mut comm_of)
        });
        if let Some(name) = name {
            let count = names.entry(name.clone()).or_default();
            *count = count.saturating_add(1);
        }
    }
    let (name, count) = names.into_iter().max_by_key(|(_, count)| *count)?;
    (count.saturating_mul(2) > programs.len()).then(|| printable(&name, COMM_WIDTH))
}

impl Program {
    /// Made printable, at most so many characters of it.
    fn command_line(&self, width: usize) -> Option<String> {
        let words = self.command.split(|byte| *byte == 0);
        let words: Vec<String> = words
            .filter(|word| !word.is_empty())
            .map(|word| printable(word, width))
            .collect();
        let command: String = words.join(" ").chars().take(width).collect();
        Some(command).filter(|it| !it.is_empty())
    }
}

impl CandidateFacts {
    /// Adds it to a candidate. Command lines are for those alone whose account it is.
    pub(crate) fn complete(self, candidate: &mut Candidate, is_own: bool) {
        candidate.parent = self.parent;
        candidate.parent_comm = self.parent_comm.filter(|_| is_own);
        candidate.command = self.command.filter(|_| is_own);
        candidate.began = self.began.map(clock::rfc3339);
    }
}

impl Known {
    /// Who is dying has no command line and no memory left: what is known of it stays.
    fn remember(&mut self, pid: Pid, mut program: Program) {
        if let Some(before) = self.programs.remove(&pid)
            && before.start == program.start
        {
            if program.command.is_empty() {
                program.command = before.command;
            }
            if program.held == Bytes::ZERO {
                program.held = before.held;
            }
        }
        self.programs.insert(pid, program);
    }
}

fn look_at(proc: &Proc, pid: Pid) -> Option<Program> {
    let stat = proc.stat(pid).ok()??;
    let status = proc.status(pid).ok()??;
    let command = proc.command_line(pid).ok().flatten();
    let mut command = command.unwrap_or_default();
    command.truncate(COMMAND_BYTES);
    command.shrink_to_fit();
    Some(Program {
        comm: stat.comm.as_bytes().to_vec(),
        uid: status.uid,
        start: stat.start,
        parent: stat.parent,
        held: status.memory.map_or(Bytes::ZERO, |it| it.rss()),
        namespace_pid: status.namespace_pid,
        command,
    })
}

/// Clock ticks as user space sees them.
const TICK_NS: u64 = 10_000_000;

fn is_at(start: StartTime, began: Nanos) -> bool {
    start.get().abs_diff(began.get() / TICK_NS) <= 1
}

/// Since boot, time asleep included.
fn to_wall(start: StartTime) -> Option<SystemTime> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::new(
        u64::try_from(now.tv_sec).ok()?,
        u32::try_from(now.tv_nsec).ok()?,
    );
    let then = Duration::from_nanos(start.get().checked_mul(TICK_NS)?);
    let age = now.checked_sub(then)?;
    let monotonic = clock::monotonic().get();
    let age = u64::try_from(age.as_nanos()).ok()?;
    match monotonic.checked_sub(age) {
        Some(at) => Some(clock::to_wall(Nanos::new(at))),
        None => SystemTime::now().checked_sub(Duration::from_nanos(age)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(comm: &str, parent: u32, held: u64) -> Program {
        Program {
            comm: comm.as_bytes().to_vec(),
            uid: Uid::new(60_001),
            start: StartTime::new(7),
            parent: Some(Pid::new(parent)),
            held: Bytes::new(held),
            namespace_pid: None,
            command: Vec::new(),
        }
    }

    #[test]
    fn parents_are_looked_up_for_some_of_the_groups_that_are_told() {
        let mut programs = Vec::new();
        for group in 0..1000_u32 {
            // Larger ones come later, each process has a parent of its own.
            let comm = format!("g{group:04}");
            programs
                .extend((0..4).map(|it| program(&comm, 10_000 + group * 4 + it, u64::from(group))));
        }
        programs.extend((0..3000).map(|it| program("crowd", 20_000 + it, 1 << 20)));
        programs.extend((0..3).map(|_| program("orphans", 1, 1 << 20)));
        let mut asked = 0;
        let groups = groups_told(programs.iter(), |_| {
            asked += 1;
            Some(b"make".to_vec())
        });
        let told = groups
            .iter()
            .map(|it| (it.comm.as_str(), it.count, it.begun_by.as_deref()));
        let expected = [
            ("crowd", 3000, Some("make")),
            ("orphans", 3, None),
            ("g0999", 4, Some("make")),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(asked, PARENTS_ASKED + 4);
    }

    #[test]
    fn who_began_half_of_a_group_did_not_begin_it() {
        let programs = [2, 2, 2, 3, 3, 3].map(|parent| program("cc1", parent, 1));
        let name = |pid: Pid| Some(pid.get().to_string().into_bytes());
        let begun_by = |some: &[Program]| groups_told(some.iter(), name).pop()?.begun_by;
        assert_eq!(begun_by(&programs), None);
        assert_eq!(begun_by(&programs[..5]).as_deref(), Some("2"));
    }
}
