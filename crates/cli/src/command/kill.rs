// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar kill`: SIGKILL, and the memory back at once, wherever they were running (S2).

mod killer;
mod outcome;
mod target;
mod whom;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bursar_host::Proc;
use bursar_model::{Pid, Uid};
use bursar_watchdog::TimedQuery;
use clap::Args;

use crate::caller::{Caller, Form};
use crate::complaint::complain;
use crate::failure::Failure;
use killer::Killer;
use outcome::{Outcome, tell};
use target::Target;
use whom::Theirs;

/// Users who start processes while theirs are killed are looked after so many times.
const ROUNDS: usize = 8;

/// Kill processes and take their memory back at once
///
/// Wherever they were running: stopped, frozen, throttled, starved. Says of each what came back, how
/// fast and how, and what did not. Refuses process 1, kernel threads and itself, and never hits a
/// process that took over a number in the meantime. Needs root for other users' processes, and for
/// reapers that cannot be starved.
///
/// Of a user or a group all processes are killed, also those that begin meanwhile. Processes of their subordinate uids
/// (rootless containers) are not; how many are left is said.
#[derive(Debug, Args)]
pub(crate) struct Kill {
    /// The processes
    #[arg(required_unless_present_any = ["user", "group"], value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
    /// All processes of this user (a name or a uid)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids", "group"])]
    user: Option<String>,
    /// All processes of the members of this Unix group
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pids"])]
    group: Option<String>,
    /// Do not ask before killing everything of a user or group
    #[arg(long)]
    yes: bool,
    /// Ask them to end first (SIGTERM) and wait this long: 5s, 500ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    graceful: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    match number.parse::<u64>() {
        Ok(count) if count.saturating_mul(unit) <= 3_600_000 => {
            Ok(Duration::from_millis(count.saturating_mul(unit)))
        }
        _ => Err("give a time up to an hour, like 5s or 500ms".to_owned()),
    }
}

impl Kill {
    pub(crate) fn run(self, caller: &Caller) -> Result<(), Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
        let proc = Proc::host().map_err(|error| failed(&error))?;
        let mut query =
            TimedQuery::new("kill-query", Arc::default()).map_err(|error| failed(&error))?;
        let whose = match (&self.user, &self.group) {
            (Some(name), _) => Some((format!("user {name}"), whom::user(name)?)),
            (None, Some(name)) => Some((format!("group {name}"), whom::group(name)?)),
            (None, None) => None,
        };
        let mut killer = Killer::new().map_err(|error| failed(&error))?;
        let (outcomes, left) = match &whose {
            Some((name, uids)) => self.kill_theirs(&mut killer, &mut query, &proc, name, uids)?,
            None => (self.kill_named(&mut killer, &mut query, &proc), 0),
        };
        match caller.form {
            Form::Json => caller.answer(&outcomes, |_| String::new())?,
            Form::People => {
                for outcome in &outcomes {
                    tell(outcome, caller.style.charset)?;
                }
            }
        }
        if let Some((name, uids)) = &whose
            && let Some(left) = whom::left_to_subuids(&proc, name, uids)
        {
            complain(&left);
        }
        if left > 0 {
            return Err(Failure::failed(format!(
                "{left} more have begun meanwhile: end what begins them"
            )));
        }
        let worst = outcomes.iter().filter_map(|outcome| outcome.code).max();
        worst.map_or(Ok(()), |code| Err(Failure::Answer(code)))
    }

    /// In the order in which they were named.
    fn kill_named(&self, killer: &mut Killer, query: &mut TimedQuery, proc: &Proc) -> Vec<Outcome> {
        let mut places = BTreeMap::new();
        for (place, &pid) in self.pids.iter().enumerate() {
            // Who names one twice does not want to hear that it has ended already.
            places.entry(pid).or_insert(place);
        }
        let pids: Vec<Pid> = places.keys().copied().map(Pid::new).collect();
        let mut outcomes = Vec::new();
        for some in pids.chunks(killer.room()) {
            let open = |pid| (pid, Target::open(query, proc, pid, None));
            let nobody = |_: &[Outcome]| Vec::new();
            outcomes.extend(killer.kill(some.to_vec(), self.graceful, open, nobody));
        }
        outcomes.sort_by_key(|it| places.get(&it.pid));
        outcomes
    }

    /// Until they run nothing any more, or have begun more processes too often: how many of those are left.
    /// Who goes by himself is no failure here.
    fn kill_theirs(
        &self,
        killer: &mut Killer,
        query: &mut TimedQuery,
        proc: &Proc,
        name: &str,
        uids: &[Uid],
    ) -> Result<(Vec<Outcome>, usize), Failure> {
        let mut theirs = whom::processes(proc, uids)?;
        if theirs.is_empty() {
            let left = whom::left_to_subuids(proc, name, uids);
            let left = left.map_or_else(String::new, |it| format!("; {it}"));
            return Err(Failure::failed(format!(
                "{name} has no processes; nothing was killed{left}"
            )));
        }
        if !self.yes {
            whom::confirm(name, &theirs)?;
        }
        let mut told: Vec<Outcome> = Vec::new();
        for _ in 0..ROUNDS {
            let pids: Vec<Pid> = theirs.iter().map(|it| it.pid).collect();
            for some in pids.chunks(killer.room()) {
                let open = |pid| (pid, Target::open(query, proc, pid, Some(uids)));
                // What cannot be listed now cannot be below either, where it is said.
                let begun = |told: &[Outcome]| {
                    let theirs = whom::processes(proc, uids).unwrap_or_default();
                    let left = left_to_kill(theirs, told).into_iter();
                    left.map(|it| it.pid).collect()
                };
                let outcomes = killer.kill(some.to_vec(), self.graceful, open, begun);
                told.extend(outcomes.into_iter().filter(|it| !it.was_gone));
            }
            theirs = left_to_kill(whom::processes(proc, uids)?, &told);
            if theirs.is_empty() {
                break;
            }
        }
        Ok((told, theirs.len()))
    }
}

/// Those that nobody has sent SIGKILL yet. One that could not be killed is told already. The number of one that was
/// killed may be another's by now, which is to be killed as well.
fn left_to_kill(theirs: Vec<Theirs>, told: &[Outcome]) -> Vec<Theirs> {
    let told = told.iter().filter(|it| !it.was_gone);
    let fates: BTreeMap<u32, bool> = told.map(|it| (it.pid, it.killed)).collect();
    let theirs = theirs.into_iter();
    theirs
        .filter(|it| !it.is_dying && fates.get(&it.pid.get()) != Some(&false))
        .collect()
}

#[cfg(test)]
mod tests {
    use bursar_model::Bytes;

    use super::*;
    use target::Denied;

    #[test]
    fn a_number_that_a_killed_process_had_is_killed_again_and_what_is_dying_or_was_refused_is_not()
    {
        let theirs = |pid, is_dying| Theirs {
            pid: Pid::new(pid),
            private: Bytes::ZERO,
            is_dying,
        };
        let pids = [10, 11, 12, 13, 14];
        let [killed, dying, refused, gone, _new] = pids.map(Pid::new);
        let told = [
            Outcome::exited(killed, "bomb".to_owned(), None),
            Outcome::exited(dying, "bomb".to_owned(), None),
            Outcome::unanswered(refused, "bomb".to_owned()),
            Outcome::of_refusal(gone, &Denied::ended()),
        ];
        let all = pids.map(|pid| theirs(pid, Pid::new(pid) == dying));
        let left = left_to_kill(all.into(), &told);
        let left: Vec<u32> = left.iter().map(|it| it.pid.get()).collect();
        assert_eq!(left, [10, 13, 14]);
    }

    #[test]
    fn times_are_seconds_unless_they_say_otherwise() {
        let table = [
            ("5s", Some(5000)),
            ("5", Some(5000)),
            ("500ms", Some(500)),
            ("0", Some(0)),
        ];
        for (text, ms) in table {
            assert_eq!(duration(text).ok(), ms.map(Duration::from_millis), "{text}");
        }
        for text in ["", "s", "-1s", "1h", "99999999s", "5 s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
