// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users read on their terminals. In a shared account only the owner of a process reads which one it is.

use std::time::Duration;

use bursar_model::{AccountId, Bytes, KillManner, Pid, Uid};

use crate::graceful::GRACE;

/// Of a command line.
const COMMAND_WIDTH: usize = 80;

/// Something to be told on users' terminals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) account: AccountId,
    pub(crate) topic: Topic,
    /// Whose process it is about; of one that pays into a user's own account that user.
    pub(crate) owner: Option<Uid>,
    pub(crate) to_owner: String,
    /// To whoever else is in the account.
    pub(crate) to_others: String,
}

/// What a message is about: of one topic an account's users are told again at growing intervals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    Notice,
    /// A limit that will hold.
    Soon,
    /// Of a program with this name.
    Kill(String),
    Asked(String),
    Files,
    Refused,
    /// Whatever comes when an account has too many of them.
    Other,
}

/// Who is told, as he is spoken to: the name where the account is a shared one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) Option<&'a str>);

/// A process that a message is about.
#[derive(Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) owner: Uid,
    pub(crate) pid: Pid,
    /// Made printable.
    pub(crate) comm: &'a str,
    pub(crate) held: Bytes,
    /// The number that it has in its container.
    pub(crate) namespace_pid: Option<Pid>,
    /// Made printable; where its name alone does not tell it apart.
    pub(crate) command: Option<&'a str>,
}

impl Reader<'_> {
    fn programs(self) -> String {
        match self.0 {
            None => "your programs".to_owned(),
            Some(name) => format!("the programs of the shared account {name}"),
        }
    }

    const fn whose(self) -> &'static str {
        match self.0 {
            None => "your",
            Some(_) => "its",
        }
    }
}

impl Message {
    /// About the account as a whole.
    fn to_all(account: AccountId, topic: Topic, text: String) -> Self {
        Self {
            account,
            topic,
            owner: None,
            to_owner: text.clone(),
            to_others: text,
        }
    }

    /// With the administrator's word of what to do.
    pub(crate) fn with_hint(mut self, hint: Option<&str>) -> Self {
        if let Some(hint) = hint {
            for text in [&mut self.to_owner, &mut self.to_others] {
                text.push_str("; ");
                text.push_str(hint);
            }
        }
        self
    }

    /// `barrier`: where requests are refused at it. A notice needs no limit.
    pub(crate) fn notice(
        account: AccountId,
        reader: Reader<'_>,
        [held, barrier, limit]: [Option<Bytes>; 3],
        manner: KillManner,
    ) -> Self {
        let (programs, whose) = (reader.programs(), reader.whose());
        let held = held.unwrap_or_default();
        let told = format!("bursar: {programs} hold {held} of memory");
        let refused = barrier.map_or_else(String::new, |it| {
            format!("; requests beyond {it} are refused")
        });
        let bound = match limit {
            Some(limit) => format!("{whose} limit is {limit}"),
            None => format!("more than {whose} notice"),
        };
        let seconds = GRACE.as_secs();
        let asked = format!(
            "the largest of them is asked to end, and killed in {seconds} s unless they hold less then"
        );
        let follows = match (limit, manner) {
            (Some(_), KillManner::AtOnce) => {
                "above the limit the largest of them is killed".to_owned()
            }
            (None, KillManner::AtOnce) => "they have no limit and will not be killed".to_owned(),
            (Some(_), KillManner::Graceful) => {
                format!("{asked}; above the limit it is killed at once")
            }
            (None, KillManner::Graceful) => asked,
        };
        let text = format!("{told}, {bound}{refused}; {follows} (see: bursar quota)");
        Self::to_all(account, Topic::Notice, text)
    }

    /// A limit that will hold soon, which the account is above.
    pub(crate) fn soon(
        account: AccountId,
        reader: Reader<'_>,
        held: Bytes,
        limit: Bytes,
        within: Duration,
    ) -> Self {
        let (programs, whose) = (reader.programs(), reader.whose());
        let seconds = within.as_secs();
        let text = format!(
            "bursar: {programs} hold {held} of memory, {whose} limit becomes {limit} in {seconds} seconds; if they still \
             hold more then, the largest of them is killed (see: bursar quota)"
        );
        Self::to_all(account, Topic::Soon, text)
    }

    /// `most`: what most of it is.
    pub(crate) fn kill(
        account: AccountId,
        reader: Reader<'_>,
        subject: &Subject<'_>,
        [held, limit]: [Option<Bytes>; 2],
        most: Option<&str>,
    ) -> Self {
        let (programs, held) = (reader.programs(), held.unwrap_or_default());
        // Who was asked before may be killed without a limit: for the notice.
        let bound = |whose: &str| match limit {
            Some(limit) => format!("{whose} limit is {limit}"),
            None => format!("more than {whose} notice"),
        };
        let most = most.map_or_else(String::new, |it| format!("; {it}"));
        let holder = match (reader.0, most.contains("files in memory")) {
            (None, true) => "you",
            _ => &programs,
        };
        let to_owner = format!(
            "bursar: killed your program {subject}: {holder} held {held}, {}{most} (see: bursar why)",
            bound(reader.whose())
        );
        let to_others = |name: &str| {
            format!(
                "bursar: killed a program of the shared account {name}: its programs held {held}, {}",
                bound("its")
            )
        };
        let topic = Topic::Kill(subject.comm.to_owned());
        Self::of_process(account, topic, reader, subject.owner, to_owner, to_others)
    }

    /// The kernel's own OOM killer took a process: which memory was full nobody tells us.
    pub(crate) fn killed_by_kernel(
        account: AccountId,
        reader: Reader<'_>,
        owner: Uid,
        pid: Pid,
        comm: Option<&str>,
    ) -> Self {
        const BY: &str = "by the kernel's OOM killer, not by bursar: the machine, or its memory cgroup, had no memory \
                          left";
        let program = comm.map_or_else(|| format!("pid {pid}"), |it| format!("{it} (pid {pid})"));
        let to_owner = format!("bursar: your program {program} was killed {BY} (see: bursar why)");
        let to_others =
            |name: &str| format!("bursar: a program of the shared account {name} was killed {BY}");
        let topic = Topic::Kill(comm.unwrap_or_default().to_owned());
        Self::of_process(account, topic, reader, owner, to_owner, to_others)
    }

    /// `what` was asked for, and what `has` its account.
    pub(crate) fn refused(
        account: AccountId,
        reader: Reader<'_>,
        owner: Uid,
        program: Option<String>,
        [what, has]: [&str; 2],
    ) -> Self {
        let to_owner = match &program {
            Some(it) => {
                format!("bursar: refused your program {it} {what}: {has} (see: bursar why)")
            }
            None => format!(
                "bursar: refused a request that is charged to you, {what}: {has} (see: bursar why)"
            ),
        };
        let to_others = |name: &str| match program {
            Some(_) => {
                format!("bursar: refused a program of the shared account {name} {what}: {has}")
            }
            None => format!(
                "bursar: refused a request that is charged to the shared account {name}, {what}: {has}"
            ),
        };
        Self::of_process(account, Topic::Refused, reader, owner, to_owner, to_others)
    }

    pub(crate) fn asked(
        account: AccountId,
        reader: Reader<'_>,
        subject: &Subject<'_>,
        held: Bytes,
        seconds: u64,
    ) -> Self {
        let to_owner = format!(
            "bursar: asked your program {subject} to end: {} hold {held}; it is killed in {seconds} s unless \
             they hold less then",
            reader.programs()
        );
        let to_others = |name: &str| {
            format!(
                "bursar: asked a program of the shared account {name} to end: its programs hold {held}; it is \
                 killed in {seconds} s unless they hold less then"
            )
        };
        let topic = Topic::Asked(subject.comm.to_owned());
        Self::of_process(account, topic, reader, subject.owner, to_owner, to_others)
    }

    pub(crate) fn files(
        account: AccountId,
        reader: Reader<'_>,
        [held, limit, stuck]: [Bytes; 3],
        largest: &str,
    ) -> Self {
        let holder = match reader.0 {
            None => "you hold".to_owned(),
            Some(name) => format!("the shared account {name} holds"),
        };
        let text = format!(
            "bursar: {holder} {held}, {} limit is {limit}; {stuck} of it are files in memory: remove some \
             ({largest})",
            reader.whose()
        );
        Self::to_all(account, Topic::Files, text)
    }

    fn of_process(
        account: AccountId,
        topic: Topic,
        reader: Reader<'_>,
        owner: Uid,
        to_owner: String,
        to_others: impl FnOnce(&str) -> String,
    ) -> Self {
        Self {
            account,
            topic,
            owner: Some(account.uid().unwrap_or(owner)),
            to_others: reader.0.map_or_else(|| to_owner.clone(), to_others),
            to_owner,
        }
    }
}

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (", self.comm)?;
        match self.namespace_pid {
            Some(inside) => write!(f, "pid {inside}, outside its container {}", self.pid)?,
            None => write!(f, "pid {}", self.pid)?,
        }
        write!(f, ", {}", self.held)?;
        if let Some(command) = self.command {
            let command: String = command.chars().take(COMMAND_WIDTH).collect();
            write!(f, ": {command}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use KillManner::{AtOnce, Graceful};

    use super::*;

    const OWN: AccountId = AccountId::of(Uid::new(1000));

    #[test]
    fn a_notice_says_what_follows_by_the_limit_and_by_how_processes_are_killed() {
        const ASKED: &str =
            "the largest of them is asked to end, and killed in 5 s unless they hold less then";
        let limit = Some(Bytes::from_mib(1000));
        let table = [
            (
                limit,
                AtOnce,
                "your limit is 1000 MiB; above the limit the largest of them is killed".to_owned(),
            ),
            (
                None,
                AtOnce,
                "more than your notice; they have no limit and will not be killed".to_owned(),
            ),
            (
                limit,
                Graceful,
                format!("your limit is 1000 MiB; {ASKED}; above the limit it is killed at once"),
            ),
            (None, Graceful, format!("more than your notice; {ASKED}")),
        ];
        for (limit, manner, expected) in table {
            let sizes = [Some(Bytes::from_mib(950)), None, limit];
            assert_eq!(
                Message::notice(OWN, Reader(None), sizes, manner).to_others,
                format!(
                    "bursar: your programs hold 950 MiB of memory, {expected} (see: bursar quota)"
                )
            );
        }
    }

    #[test]
    fn the_administrators_word_comes_last() {
        let held = Some(Bytes::from_mib(950));
        let message = Message::notice(OWN, Reader(None), [held, None, None], AtOnce);
        let plain = message.to_owner.clone();
        assert_eq!(message.clone().with_hint(None), message);
        let hinted = message.with_hint(Some("use sbatch"));
        assert_eq!(hinted.to_owner, format!("{plain}; use sbatch"));
        assert_eq!(hinted.to_others, hinted.to_owner);
    }

    #[test]
    fn a_notice_names_the_barrier_and_a_kill_what_most_of_it_is() {
        let [held, barrier, limit] = [950, 970, 1000].map(Bytes::from_mib);
        let sizes = [held, barrier, limit].map(Some);
        let message = Message::notice(OWN, Reader(None), sizes, AtOnce);
        assert!(
            message
                .to_owner
                .contains("; requests beyond 970 MiB are refused; above the limit"),
            "{message:?}"
        );
        let subject = Subject {
            owner: Uid::new(1000),
            pid: Pid::new(4242),
            comm: "python3",
            held: Bytes::from_mib(20),
            namespace_pid: Some(Pid::new(7)),
            command: Some("python3 thesis.py"),
        };
        let most = Some("900 MiB of it are files in memory: remove some (the largest: /tmp/a)");
        let message = Message::kill(OWN, Reader(None), &subject, [Some(held), Some(limit)], most);
        assert_eq!(
            message.to_owner,
            "bursar: killed your program python3 (pid 7, outside its container 4242, 20 MiB: python3 thesis.py): \
             you held 950 MiB, your limit is 1000 MiB; 900 MiB of it are files in memory: remove some (the \
             largest: /tmp/a) (see: bursar why)"
        );
        let refused = Message::refused(
            OWN,
            Reader(None),
            Uid::new(1000),
            Some("bash (pid 12)".to_owned()),
            [
                "1 more of numproc",
                "20 are held, and more than 20 is refused",
            ],
        );
        assert_eq!(
            refused.to_owner,
            "bursar: refused your program bash (pid 12) 1 more of numproc: 20 are held, and more than 20 is refused \
             (see: bursar why)"
        );
    }

    #[test]
    fn who_is_to_remove_files_is_told_in_one_line() {
        let sizes = [120, 100, 90].map(Bytes::from_mib);
        let largest = "the largest: /dev/shm/a (90 MiB)";
        assert_eq!(
            Message::files(OWN, Reader(None), sizes, largest).to_others,
            "bursar: you hold 120 MiB, your limit is 100 MiB; 90 MiB of it are files in memory: remove some \
             (the largest: /dev/shm/a (90 MiB))"
        );
    }

    #[test]
    fn in_a_shared_account_only_the_owner_reads_which_process_it_was() {
        let render = AccountId::of_name(7);
        let subject = Subject {
            owner: Uid::new(60_870),
            pid: Pid::new(42),
            comm: "blender",
            held: Bytes::from_mib(20),
            namespace_pid: None,
            command: None,
        };
        let [held, limit] = [17, 16].map(Bytes::from_mib);
        let reader = Reader(Some("=render"));
        let messages = [
            Message::kill(render, reader, &subject, [Some(held), Some(limit)], None),
            Message::asked(render, reader, &subject, held, 5),
        ];
        for message in messages {
            assert_eq!(message.owner, Some(Uid::new(60_870)));
            assert!(
                message
                    .to_owner
                    .contains("your program blender (pid 42, 20 MiB)")
            );
            assert!(
                message
                    .to_others
                    .contains("a program of the shared account =render")
            );
            for text in ["your", "blender", "42"] {
                assert!(!message.to_others.contains(text), "{}", message.to_others);
            }
        }
        // Whoever answers for it sits at a terminal, not a uid of a namespace of his.
        let own = Message::kill(OWN, Reader(None), &subject, [Some(held), Some(limit)], None);
        assert_eq!(own.owner, Some(Uid::new(1000)));
        assert_eq!(
            own.to_others,
            "bursar: killed your program blender (pid 42, 20 MiB): your programs held 17 MiB, your limit is \
             16 MiB (see: bursar why)"
        );
        let own = Message::kill(OWN, Reader(None), &subject, [Some(held), None], None);
        assert_eq!(
            own.to_others,
            "bursar: killed your program blender (pid 42, 20 MiB): your programs held 17 MiB, more than your \
             notice (see: bursar why)"
        );
    }
}
