// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--user` and `--group`: whose processes, and is that really meant.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal};
use std::ops::Range;
use std::path::Path;

use bursar_host::{Lookup, Members, Proc, SubuidLine, SubuidOwner, Users, subuids};
use bursar_model::{Bytes, Pid, Uid, abridged};
use rustix::io::Errno;

use crate::complaint::complain;
use crate::failure::Failure;

/// More users of one group are not looked up twice.
const REMEMBERED: usize = 1024;

/// Who has which subordinate uids (subuid(5)).
const SUBUIDS: &str = "/etc/subuid";

/// Names listed in a group that no user has are said so far.
const NAMES_SAID: usize = 3;

/// The user with this name or number.
pub(super) fn user(name: &str) -> Result<Vec<Uid>, Failure> {
    match Users::new(REMEMBERED).by_name(name) {
        Lookup::Found(user) => Ok(vec![user.uid]),
        Lookup::Absent => match name.parse() {
            Ok(number) => Ok(vec![Uid::new(number)]),
            // As a number that is no process's: what was typed is wrong, and nothing was tried.
            Err(_) => Err(Failure::usage(format!(
                "there is no user {name:?}; give a name or a uid"
            ))),
        },
        Lookup::Unavailable(errno) => Err(Failure::failed(format!(
            "the user {name:?} cannot be looked up: {errno}; give the uid"
        ))),
    }
}

/// The members of the group with this name. One of whom not everybody is known is refused: to kill
/// some is not what was asked for.
pub(super) fn group(name: &str) -> Result<Vec<Uid>, Failure> {
    match Users::new(REMEMBERED).members(name) {
        Lookup::Found(members) => all_of(name, members),
        Lookup::Absent => Err(Failure::usage(format!(
            "there is no group {name:?}; check the name (getent group)"
        ))),
        Lookup::Unavailable(errno) => Err(unavailable(name, errno)),
    }
}

/// Everybody in a group. A listed name that no user has may be a user whose directory is down (SSSD answers so), whose
/// processes would live on unseen; `--yes` answers another question.
fn all_of(name: &str, members: Members) -> Result<Vec<Uid>, Failure> {
    if let Some(errno) = members.incomplete {
        return Err(unavailable(name, errno));
    }
    if members.is_cut_off {
        return Err(Failure::failed(format!(
            "the group {name:?} has more members than are looked at, {}; name its users (--user)",
            members.uids.len()
        )));
    }
    let Some(names) = abridged(&members.unknown, NAMES_SAID) else {
        return Ok(members.uids.into_iter().collect());
    };
    Err(Failure::failed(format!(
        "the group {name:?} lists names that no user has: {names}; nothing was killed, because their processes would \
         live on; take the names out of the group, or name its users (--user)"
    )))
}

fn unavailable(name: &str, errno: Errno) -> Failure {
    Failure::failed(format!(
        "the group {name:?} cannot be looked up: {errno}; name its users"
    ))
}

/// One process of theirs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theirs {
    pub(super) pid: Pid,
    /// What comes back with it.
    pub(super) private: Bytes,
    /// SIGKILL has been sent to it, and it has not ended yet.
    pub(super) is_dying: bool,
}

/// What these users run now, without what has ended and is only waited for. Root's own processes are the
/// machine: refused.
pub(super) fn processes(proc: &Proc, uids: &[Uid]) -> Result<Vec<Theirs>, Failure> {
    if uids.iter().any(|uid| uid.get() == 0) {
        return Err(Failure::usage(
            "root's processes are the machine; name those that are meant",
        ));
    }
    running(proc, |uid| uids.contains(&uid))
}

/// What the users run that `is_meant` says.
fn running(proc: &Proc, is_meant: impl Fn(Uid) -> bool) -> Result<Vec<Theirs>, Failure> {
    let pids = proc
        .pids()
        .map_err(|error| Failure::failed(error.to_string()))?;
    let others = pids
        .filter_map(Result::ok)
        .filter(|pid| pid.get() != std::process::id());
    let theirs = others.filter_map(|pid| {
        let status = proc.status(pid).ok().flatten()?;
        let has_ended = status.is_dead && status.threads <= 1;
        (is_meant(status.uid) && !has_ended).then(|| Theirs {
            pid,
            is_dying: status.is_kill_pending,
            private: status
                .memory
                .map_or(Bytes::ZERO, |it| it.rss_anon.saturating_add(it.swap)),
        })
    });
    Ok(theirs.collect())
}

/// Says how many processes of these users' subordinate uids there are, which are not killed with theirs: those of
/// rootless containers. `None`: none.
pub(super) fn left_to_subuids(proc: &Proc, whose: &str, uids: &[Uid]) -> Option<String> {
    let lines = subuids(Path::new(SUBUIDS)).lines;
    let has_names = lines
        .iter()
        .any(|it| matches!(it.subuid_owner, SubuidOwner::User(_)));
    let mut users = Users::new(REMEMBERED);
    let mut names = BTreeSet::new();
    if has_names {
        let known = uids
            .iter()
            .filter_map(|uid| users.by_uid(*uid).found())
            .map(|user| user.name);
        names.extend(known);
    }
    let given = given_to(uids, &names, &lines);
    let is_meant = |uid: Uid| {
        let is_given = given.iter().any(|range| range.contains(&uid.get()));
        is_given && uid.get() != 0 && !uids.contains(&uid)
    };
    // What cannot be listed was said before.
    let left = running(proc, is_meant).ok()?;
    let of = format!("subordinate uids of {whose} (rootless containers)");
    match left.iter().filter(|it| !it.is_dying).count() {
        0 => None,
        1 => Some(format!(
            "one process of {of} is left; kill it by its number"
        )),
        count => Some(format!(
            "{count} processes of {of} are left; kill them by their numbers"
        )),
    }
}

/// The subordinate uids of users with these numbers and names.
fn given_to(uids: &[Uid], names: &BTreeSet<String>, lines: &[SubuidLine]) -> Vec<Range<u32>> {
    let theirs = lines.iter().filter(|line| match &line.subuid_owner {
        SubuidOwner::Uid(uid) => uids.contains(uid),
        SubuidOwner::User(name) => names.contains(name),
    });
    theirs
        .map(|line| line.first.get()..line.first.get().saturating_add(line.count))
        .collect()
}

/// Asks, on a terminal; elsewhere `--yes` has to be said.
pub(super) fn confirm(whose: &str, theirs: &[Theirs]) -> Result<(), Failure> {
    let private = theirs
        .iter()
        .fold(Bytes::ZERO, |sum, it| sum.saturating_add(it.private));
    let what = match theirs.len() {
        1 => format!("one process of {whose}, holding {private},"),
        count => format!("{count} processes of {whose}, holding {private},"),
    };
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "{what} would be killed; add --yes if that is meant"
        )));
    }
    complain(&format!("{what} will be killed. Type yes to go on:"));
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    if line.trim() == "yes" {
        return Ok(());
    }
    Err(Failure::failed("nothing was killed"))
}

#[cfg(test)]
mod tests {
    use bursar_model::Gid;

    use super::*;
    use crate::failure::Code;

    fn members() -> Members {
        Members {
            gid: Gid::new(500),
            uids: [1001, 1002].map(Uid::new).into(),
            unknown: Vec::new(),
            incomplete: None,
            is_cut_off: false,
        }
    }

    #[test]
    fn subordinate_uids_are_given_by_number_and_by_name() {
        let line = |subuid_owner, first| SubuidLine {
            subuid_owner,
            first: Uid::new(first),
            count: 10,
        };
        let user = |name: &str| SubuidOwner::User(name.to_owned());
        let lines = [
            line(user("alice"), 100),
            line(SubuidOwner::Uid(Uid::new(1001)), 200),
            line(user("bob"), 300),
            line(SubuidOwner::Uid(Uid::new(1002)), 400),
            line(user("alice"), u32::MAX - 3),
        ];
        let names = BTreeSet::from(["alice".to_owned()]);
        assert_eq!(
            given_to(&[Uid::new(1001)], &names, &lines),
            [100..110, 200..210, u32::MAX - 3..u32::MAX]
        );
    }

    #[test]
    fn of_a_group_of_which_a_part_is_unknown_nobody_is_killed() {
        assert_eq!(
            all_of("film", members()).unwrap(),
            [1001, 1002].map(Uid::new)
        );
        let refused = |change: fn(&mut Members)| {
            let mut members = members();
            change(&mut members);
            match all_of("film", members) {
                Err(Failure::Wrong(Code::Failed, message)) => message,
                other => panic!("{other:?}"),
            }
        };
        let unknown = refused(|it| it.unknown = ["a", "b", "c", "d"].map(str::to_owned).into());
        assert!(unknown.contains("a, b, c and 1 more"), "{unknown}");
        let cut_off = refused(|it| it.is_cut_off = true);
        assert!(cut_off.contains("more members"), "{cut_off}");
        let down = refused(|it| it.incomplete = Some(Errno::IO));
        assert!(down.contains("cannot be looked up"), "{down}");
    }
}
