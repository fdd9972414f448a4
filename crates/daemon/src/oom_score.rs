// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oom_score_adj policy, S1's last defence (section 3.4): should the whole machine run out first, the kernel's own OOM
//! killer finds processes of users with limits before any other.
//!
//! It goes by oom_score_adj, which is raised for them, never lowered, and put back afterwards. The order that a user has
//! given to his own processes stays. Children inherit it, so what a limited user starts is covered from its first moment;
//! what root starts on his behalf (sudo) inherits it too and is given its own value back.
//!
//! That a value is ours does not follow from the value: services have 900 of their own (OOMScoreAdjust=, Kubernetes), and
//! begin during a shortage as at any time. Of somebody without a limit only what comes from a process that we know is put back.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bursar_host::{
    Adjusted, Proc, ProcessQuery, StartTime, Stat, UserNamespaces, UsernsOwner,
    leave_oom_score_minimum, replace_file,
};
use bursar_model::{Nanos, Pid, Uid};
use bursar_policy::OOM_SCORE_ADJ_MIN;

use crate::payers::Payers;

const HIGHEST: i16 = 1000;
/// Between a user's shell and what root runs for it are sudo, its monitor and some shells more.
const ANCESTORS: usize = 8;

/// Keeps oom_score_adj as the limits want it.
#[derive(Debug)]
pub(crate) struct OomScore {
    /// What those have that had 0.
    raised: i16,
    /// What processes of limited users had before: those that we raised, and their children.
    original: HashMap<Pid, Original>,
    /// When the first of them was raised: who began later may have inherited it.
    since: Option<StartTime>,
    /// Both, for the bursard after us. It is there while any are raised. The unit keeps its directory
    /// (RuntimeDirectoryPreserve=): else a value left raised is taken for its user's own.
    file: PathBuf,
    /// That file, to be added to; `None` before our first review.
    record: Option<File>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Original {
    /// Of the process that had it; `None` where it did not say.
    start: Option<StartTime>,
    score: i16,
    raised: i16,
    /// Its real uid; `None`: an earlier bursard has not written it down.
    uid: Option<Uid>,
}

impl OomScore {
    /// `directory`: where it is written down what processes had before.
    pub(crate) fn new(raised: i16, directory: &std::path::Path) -> Self {
        let file = directory.join("oom_scores");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let mut lines = text.lines();
        let since = lines.next().and_then(|it| it.parse().ok());
        Self {
            raised,
            original: lines.filter_map(parse).collect(),
            since: since.map(StartTime::new),
            file,
            record: None,
        }
    }

    /// Whether a bursard before us has left processes raised.
    pub(crate) fn are_raised(&self) -> bool {
        self.file.exists()
    }

    /// Looks at every process of the machine. Returns how many could not be helped.
    pub(crate) fn review(
        &mut self,
        proc: &Proc,
        payers: &Payers,
        ask: &mut impl ProcessQuery,
    ) -> u32 {
        // By who pays, as the kernel half does that says who is not covered.
        let mut namespaces = UserNamespaces::new(proc).ok();
        let is_limited = |pid, uid, ask: &mut _| {
            if payers.exempts(pid)? {
                return Some(false);
            }
            let owner = match &mut namespaces {
                Some(it) => it.owner_of(proc, pid, uid, ask).ok()?,
                None => UsernsOwner::itself(uid),
            };
            Some(payers.is_limited(payers.payer(owner)))
        };
        self.since.get_or_insert_with(ticks_now);
        if self.record.is_none() {
            self.save_or_warn();
        }
        let helpless = self.visit(proc, is_limited, &HashSet::new(), ask);
        self.save_or_warn();
        helpless
    }

    /// Nobody is offered first any more.
    pub(crate) fn restore_oom_scores(&mut self, proc: &Proc, ask: &mut impl ProcessQuery) {
        // Who had a limit is not known here, but by whose processes were raised.
        let users = self.original.values().filter_map(|it| it.uid).collect();
        self.visit(proc, |_, _, _| Some(false), &users, ask);
        self.since = None;
        self.record = None;
        let _ = fs::remove_file(&self.file);
    }

    fn save_or_warn(&mut self) {
        if let Err(error) = self.save() {
            tracing::warn!(
                %error,
                "what oom_score_adj processes had is not written down: a bursard after this one cannot put it back"
            );
        }
    }

    fn save(&mut self) -> io::Result<()> {
        let since = self.since.map_or(0, StartTime::get);
        let lines = self.original.iter().map(|(&pid, it)| line(pid, it));
        let text: String = std::iter::once(format!("{since}\n")).chain(lines).collect();
        // Which processes root protects is nobody else's to read.
        replace_file(&self.file, &text, 0o600)?;
        self.record = Some(File::options().append(true).open(&self.file)?);
        Ok(())
    }

    /// Before that score is raised: of a bursard that is killed in between the next one knows it. Of two lines for one
    /// process the later one counts. What cannot be added here is tried again, and said, when all is saved.
    fn note_before_raise(&mut self, pid: Pid, original: &Original) {
        if let Some(record) = &mut self.record {
            let _ = record.write_all(line(pid, original).as_bytes());
        }
    }

    /// Above those with 0, in the order that they had.
    fn raise(&self, score: i16) -> i16 {
        let room = i32::from(HIGHEST.saturating_sub(self.raised));
        let above = i32::from(score.max(0)).saturating_mul(room);
        let above = above.saturating_add(999) / 1000;
        self.raised
            .saturating_add(i16::try_from(above).unwrap_or_default())
            .min(HIGHEST)
    }

    /// What a process would have that began then, if it has inherited this value.
    fn inherited(&self, now: i16, start: StartTime) -> Option<i16> {
        if self.since.is_none_or(|since| start < since) {
            return None;
        }
        if now == self.raised {
            return Some(0);
        }
        let mut all = self.original.values();
        all.find(|it| it.raised == now).map(|it| it.score)
    }

    /// A limited user's process that has inherited its value. Written down, it is put back although its parents are gone.
    fn child(&self, uid: Uid, now: i16, start: StartTime) -> Option<Original> {
        Some(Original {
            start: Some(start),
            score: self.inherited(now, start)?,
            raised: now,
            uid: Some(uid),
        })
    }

    /// Whether a process comes from one that we know: by its parents, or by their sessions.
    fn descends(&self, pid: Pid, ask: &mut impl ProcessQuery) -> bool {
        let mut next = Some(pid);
        for _ in 0..ANCESTORS {
            let Some(stat) = next.and_then(|pid| stat_of(pid, ask)) else {
                return false;
            };
            let mut from = [stat.parent, stat.session].into_iter().flatten();
            if from.any(|it| self.is_known(it, ask)) {
                return true;
            }
            next = stat.parent;
        }
        false
    }

    /// Who does not say since when he is there may be the one we know.
    fn is_known(&self, pid: Pid, ask: &mut impl ProcessQuery) -> bool {
        self.original.get(&pid).is_some_and(|it| {
            let both = it.start.zip(start_of(pid, ask));
            both.is_none_or(|(then, now)| then == now)
        })
    }

    /// `users`: who has these uids had a limit, as far as it is not known who has one.
    fn visit<A: ProcessQuery>(
        &mut self,
        proc: &Proc,
        mut is_limited: impl FnMut(Pid, Uid, &mut A) -> Option<bool>,
        users: &HashSet<Uid>,
        ask: &mut A,
    ) -> u32 {
        if let Err(error) = leave_oom_score_minimum() {
            tracing::debug!(%error, "what is written becomes the least that its user can set");
        }
        let mut helpless = 0;
        let mut seen = HashMap::new();
        let Ok(pids) = proc.pids() else { return 0 };
        let others = |pid: &Pid| ![1, std::process::id()].contains(&pid.get());
        for pid in pids.filter_map(Result::ok).filter(others) {
            // Bound to this very process: what we read and write cannot hit a later one of the same pid, and while
            // it is there the pid is its own.
            let Ok(Some(process)) = proc.process(pid) else {
                continue;
            };
            // Asked for once at most: each answer waits until another thread has had a processor.
            let mut started = None;
            let mut start = |ask: &mut A| *started.get_or_insert_with(|| start_of(pid, ask));
            // Who does not say since when he is there may be the one we know.
            let known = self.original.get(&pid).copied();
            let known = known.filter(|it| match (it.start, start(ask)) {
                (Some(then), Some(now)) => then == now,
                _ => true,
            });
            let Ok(Some(status)) = process.status() else {
                continue;
            };
            if status.memory.is_none() {
                continue;
            }
            let Ok(Some(now)) = process.oom_score_adj() else {
                continue;
            };
            let known = known.filter(|it| it.raised == now);
            let is_limited = is_limited(pid, status.uid, ask);
            let wanted = match is_limited {
                Some(true) if now < self.raised && now > OOM_SCORE_ADJ_MIN => Some(self.raise(now)),
                Some(false) => known
                    .map(|it| it.score)
                    .or_else(|| self.inherited(now, start(ask)?))
                    .filter(|_| {
                        known.is_some() || users.contains(&status.uid) || self.descends(pid, ask)
                    }),
                // Also who cannot be asked who pays for it: it keeps what it has.
                _ => None,
            };
            let Some(wanted) = wanted else {
                let is_child = is_limited == Some(true) && now >= self.raised;
                let child = || self.child(status.uid, now, start(ask)?);
                let kept = known.or_else(|| is_child.then(child)?);
                seen.extend(kept.map(|it| (pid, it)));
                continue;
            };
            let original = Original {
                start: start(ask),
                score: now,
                raised: wanted,
                uid: Some(status.uid),
            };
            if is_limited == Some(true) {
                self.note_before_raise(pid, &original);
            }
            match process.set_oom_score_adj(wanted) {
                Ok(Adjusted::Done) if is_limited == Some(true) => {
                    seen.insert(pid, original);
                }
                Ok(Adjusted::Done) if known.is_none() => note_put_back(pid, now, wanted),
                Ok(Adjusted::Done | Adjusted::Gone) => {}
                Ok(Adjusted::Denied) | Err(_) => helpless += 1,
            }
        }
        // What has ended is forgotten.
        self.original = seen;
        helpless
    }
}

/// So that it can be undone by hand.
fn note_put_back(pid: Pid, from: i16, to: i16) {
    tracing::info!(%pid, from, to, "an inherited oom_score_adj is put back");
}

fn line(pid: Pid, it: &Original) -> String {
    let start = it.start.map_or(0, StartTime::get);
    let uid = it.uid.map(|uid| format!(" {uid}")).unwrap_or_default();
    format!("{pid} {start} {} {}{uid}\n", it.score, it.raised)
}

fn parse(line: &str) -> Option<(Pid, Original)> {
    let mut words = line.split(' ');
    let pid = Pid::new(words.next()?.parse().ok()?);
    let start = words.next()?.parse().ok()?;
    let score = words.next()?.parse().ok()?;
    let raised = words.next()?.parse().ok()?;
    Some((
        pid,
        Original {
            start: (start > 0).then(|| StartTime::new(start)),
            score,
            raised,
            uid: words.next().and_then(|it| it.parse().ok()).map(Uid::new),
        },
    ))
}

/// This moment, as processes' beginnings are told.
fn ticks_now() -> StartTime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::try_from(now).unwrap_or_default().as_nanos();
    StartTime::after_boot(Nanos::new(u64::try_from(now).unwrap_or(u64::MAX)))
}

/// What a process says of itself, if it does.
fn stat_of(pid: Pid, ask: &mut impl ProcessQuery) -> Option<Stat> {
    ask.ask(pid, Proc::stat)?.ok()?
}

/// When a process began, if it says so.
fn start_of(pid: Pid, ask: &mut impl ProcessQuery) -> Option<StartTime> {
    stat_of(pid, ask).map(|it| it.start)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use bursar_host::Patient;

    use super::*;

    #[test]
    fn the_order_of_ones_own_processes_stays_and_what_was_written_down_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut score = OomScore::new(900, directory.path());
        assert!(!score.are_raised());
        let raised: Vec<i16> = [-500, 0, 1, 300, 500, 899].map(|it| score.raise(it)).into();
        assert_eq!(raised, [900, 900, 901, 930, 950, 990]);
        let original = Original {
            start: Some(StartTime::new(12_345)),
            score: 300,
            raised: 930,
            uid: Some(Uid::new(60_001)),
        };
        score.original.insert(Pid::new(77), original);
        score.since = Some(StartTime::new(20_000));
        score.save().unwrap();
        let again = OomScore::new(900, directory.path());
        assert!(again.are_raised());
        assert_eq!(again.original, score.original);
        let (before, after) = (StartTime::new(19_999), StartTime::new(20_000));
        assert_eq!(again.inherited(930, after), Some(300));
        assert_eq!(again.inherited(900, after), Some(0));
        assert_eq!(again.inherited(940, after), None);
        assert_eq!(again.inherited(900, before), None);
        // As an earlier bursard wrote it.
        assert_eq!(parse("77 12345 300 930").unwrap().1.uid, None);
    }

    #[test]
    fn what_a_process_had_is_written_down_before_it_is_raised() {
        let directory = tempfile::tempdir().unwrap();
        let mut score = OomScore::new(900, directory.path());
        score.save().unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::new(child.id());
        let proc = Proc::host().unwrap();
        let is_child = |it, _, _: &mut Patient<'_>| (it == pid).then_some(true);
        score.visit(&proc, is_child, &HashSet::new(), &mut Patient(&proc));
        let now = proc.oom_score_adj(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Nothing was saved after the visit, as where bursard is killed in it.
        let next = OomScore::new(900, directory.path());
        assert_eq!(next.original, score.original);
        assert_eq!(next.original.get(&pid).map(|it| it.raised), now);
    }

    #[test]
    fn a_value_is_ours_where_the_process_comes_from_one_that_we_know() {
        let directory = tempfile::tempdir().unwrap();
        let mut score = OomScore::new(900, directory.path());
        let proc = Proc::host().unwrap();
        let mut ask = Patient(&proc);
        let me = Pid::new(std::process::id());
        let own = stat_of(me, &mut ask).unwrap();
        score.since = Some(own.start);
        // A service that began meanwhile, and has the value of its own.
        assert_eq!(score.inherited(900, own.start), Some(0));
        assert!(!score.descends(me, &mut ask));
        let parent = own.parent.unwrap();
        let mut known = Original {
            start: start_of(parent, &mut ask),
            score: 0,
            raised: 900,
            uid: Some(Uid::new(60_001)),
        };
        score.original.insert(parent, known);
        assert!(score.descends(me, &mut ask));
        // Another process has its number by now.
        known.start = Some(StartTime::new(1));
        score.original.insert(parent, known);
        assert!(!score.descends(me, &mut ask));
        let child = score.child(Uid::new(60_001), 900, own.start).unwrap();
        assert_eq!((child.score, child.start), (0, Some(own.start)));
    }
}
