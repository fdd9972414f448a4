// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users read on their terminals. In a shared account only the owner of a process reads which one it is.

use std::time::Duration;

use bursar_model::{AccountId, Bytes, Pid, Uid};

/// Something to be told on users' terminals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) account: AccountId,
    /// Whose process it is about; of one that pays into a user's own account that user.
    pub(crate) owner: Option<Uid>,
    pub(crate) to_owner: String,
    /// To whoever else is in the account.
    pub(crate) to_others: String,
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
    fn to_all(account: AccountId, text: String) -> Self {
        Self {
            account,
            owner: None,
            to_owner: text.clone(),
            to_others: text,
        }
    }

    pub(crate) fn notice(
        account: AccountId,
        reader: Reader<'_>,
        held: Bytes,
        limit: Option<Bytes>,
    ) -> Self {
        let (programs, whose) = (reader.programs(), reader.whose());
        let told = format!("bursar: {programs} hold {held} of memory");
        let text = match limit {
            Some(limit) => format!(
                "{told}, {whose} limit is {limit}; above it the largest of them is killed (see: bursar quota)"
            ),
            // A notice needs no limit.
            None => {
                format!("{told}, more than {whose} notice; no limit ends them (see: bursar quota)")
            }
        };
        Self::to_all(account, text)
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
            "bursar: {programs} hold {held} of memory, {whose} limit is {limit} from now on; if they hold more in \
             {seconds} seconds, the largest of them is killed (see: bursar quota)"
        );
        Self::to_all(account, text)
    }

    pub(crate) fn kill(
        account: AccountId,
        reader: Reader<'_>,
        subject: &Subject<'_>,
        held: Bytes,
        limit: Option<Bytes>,
    ) -> Self {
        let programs = reader.programs();
        // Who was asked before may be killed without a limit: for the notice.
        let bound = |whose: &str| match limit {
            Some(limit) => format!("{whose} limit is {limit}"),
            None => format!("more than {whose} notice"),
        };
        let to_owner = format!(
            "bursar: killed your program {subject}: {programs} held {held}, {} (see: bursar why)",
            bound(reader.whose())
        );
        let to_others = |name: &str| {
            format!(
                "bursar: killed a program of the shared account {name}: its programs held {held}, {}",
                bound("its")
            )
        };
        Self::of_process(account, reader, subject, to_owner, to_others)
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
        Self::of_process(account, reader, subject, to_owner, to_others)
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
        Self::to_all(account, text)
    }

    fn of_process(
        account: AccountId,
        reader: Reader<'_>,
        subject: &Subject<'_>,
        to_owner: String,
        to_others: impl FnOnce(&str) -> String,
    ) -> Self {
        Self {
            account,
            owner: Some(account.uid().unwrap_or(subject.owner)),
            to_others: reader.0.map_or_else(|| to_owner.clone(), to_others),
            to_owner,
        }
    }
}

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}, {})", self.comm, self.pid, self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: AccountId = AccountId::of(Uid::new(1000));

    #[test]
    fn a_notice_without_a_limit_threatens_nobody() {
        let (held, limit) = (Bytes::from_mib(950), Bytes::from_mib(1000));
        let message = Message::notice(OWN, Reader(None), held, Some(limit));
        assert_eq!(
            message.to_others,
            "bursar: your programs hold 950 MiB of memory, your limit is 1000 MiB; above it the largest of \
             them is killed (see: bursar quota)"
        );
        let message = Message::notice(OWN, Reader(None), held, None);
        assert_eq!(
            message.to_others,
            "bursar: your programs hold 950 MiB of memory, more than your notice; no limit ends them \
             (see: bursar quota)"
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
        };
        let [held, limit] = [17, 16].map(Bytes::from_mib);
        let reader = Reader(Some("=render"));
        let messages = [
            Message::kill(render, reader, &subject, held, Some(limit)),
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
        let own = Message::kill(OWN, Reader(None), &subject, held, Some(limit));
        assert_eq!(own.owner, Some(Uid::new(1000)));
        assert_eq!(
            own.to_others,
            "bursar: killed your program blender (pid 42, 20 MiB): your programs held 17 MiB, your limit is \
             16 MiB (see: bursar why)"
        );
        let own = Message::kill(OWN, Reader(None), &subject, held, None);
        assert_eq!(
            own.to_others,
            "bursar: killed your program blender (pid 42, 20 MiB): your programs held 17 MiB, more than your \
             notice (see: bursar why)"
        );
    }
}
