// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that has the files: it writes, and reads for whoever asks. A disk that hangs holds up nobody else.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use bursar_host::{Waker, clock, make_directory};
use bursar_model::{Bytes, Uid, UsageSeries, UsageSummary};
use bursar_usage::{Entry, Store, Wanted};

use crate::control::ClientId;
use crate::history::STATE;

/// What waits for the thread: minutes to be written, and questions.
const WAITING: usize = 16;
/// Questions among them: the rest is for minutes, however many users ask.
const QUESTIONS: usize = 8;
/// So many more of root's, whom users do not keep from asking.
const QUESTIONS_OF_ROOT: usize = 4;
/// A disk that hangs does not hold up bursard's end for longer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One account over time.
    Series,
    /// All of them in figures.
    Summary,
}

#[derive(Debug)]
pub(super) struct Question {
    pub(super) client: ClientId,
    pub(super) counts_as: Uid,
    pub(super) kind: Kind,
    pub(super) wanted: Wanted,
    pub(super) current: Vec<Entry>,
    pub(super) now: u64,
}

/// Why a question is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AskError {
    /// The user has one under way.
    Busy,
    /// Too many wait.
    Full,
    /// Nothing is kept.
    Gone,
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Found {
    Series(UsageSeries),
    Summary(UsageSummary),
}

/// What was found for whom, and what it took.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) client: ClientId,
    pub(crate) counts_as: Uid,
    pub(crate) spent: Duration,
    pub(crate) found: Result<Found, String>,
}

enum Job {
    Add(Vec<Entry>, u64),
    Ask(Box<Question>),
}

/// What went wrong, for `bursar status`.
#[derive(Debug, Default)]
struct Troubles {
    unwritten: AtomicU64,
    damaged: AtomicU64,
    set_aside: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Writer {
    jobs: SyncSender<Job>,
    answers: Receiver<Answered>,
    waker: Waker,
    ended: Receiver<()>,
    troubles: Arc<Troubles>,
    /// Minutes that found no room.
    unsent: u64,
    /// Who has a question under way.
    asking: BTreeSet<Uid>,
    /// Questions under way: users', and root's.
    questions: usize,
    questions_of_root: usize,
}

impl Writer {
    pub(super) fn start(path: PathBuf, bound: Bytes, now: u64) -> Result<Self> {
        let (jobs, received) = sync_channel(WAITING);
        let (outbox, answers) = channel();
        let (at_end, ended) = sync_channel(1);
        let waker = Waker::new().context("make an eventfd")?;
        let troubles = Arc::default();
        let thread = Thread {
            path,
            bound,
            store: None,
            is_failing: false,
            lost: 0,
            troubles: Arc::clone(&troubles),
            outbox,
            waker: waker.clone(),
        };
        bursar_host::thread::spawn("usage", move || {
            thread.work(&received, now);
            let _ = at_end.send(());
        })
        .context("start the thread that keeps usage")?;
        Ok(Self {
            jobs,
            answers,
            waker,
            ended,
            troubles,
            unsent: 0,
            asking: BTreeSet::new(),
            questions: 0,
            questions_of_root: 0,
        })
    }

    pub(super) fn add(&mut self, entries: Vec<Entry>, now: u64) {
        let count = entries.len() as u64;
        if self.jobs.try_send(Job::Add(entries, now)).is_err() {
            if self.unsent == 0 {
                tracing::error!("usage is not written: the disk does not keep up");
            }
            self.unsent = self.unsent.saturating_add(count);
        }
    }

    pub(super) fn ask(&mut self, question: Question) -> Result<(), AskError> {
        let counts_as = question.counts_as;
        let is_root = counts_as.get() == 0;
        if !is_root && self.asking.contains(&counts_as) {
            return Err(AskError::Busy);
        }
        let (count, most) = self.counter_of(counts_as);
        if *count >= most {
            return Err(AskError::Full);
        }
        match self.jobs.try_send(Job::Ask(Box::new(question))) {
            Ok(()) => {
                let (count, _) = self.counter_of(counts_as);
                *count = count.saturating_add(1);
                self.asking.insert(counts_as);
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(AskError::Full),
            Err(TrySendError::Disconnected(_)) => Err(AskError::Gone),
        }
    }

    pub(super) fn drain(&mut self) -> Vec<Answered> {
        self.waker.clear();
        let answered: Vec<Answered> = self.answers.try_iter().collect();
        for one in &answered {
            self.asking.remove(&one.counts_as);
            let (count, _) = self.counter_of(one.counts_as);
            *count = count.saturating_sub(1);
        }
        answered
    }

    /// How many questions are under way where this one counts, and how many may be.
    const fn counter_of(&mut self, counts_as: Uid) -> (&mut usize, usize) {
        match counts_as.get() {
            0 => (&mut self.questions_of_root, QUESTIONS_OF_ROOT),
            _ => (&mut self.questions, QUESTIONS),
        }
    }

    pub(super) fn troubles(&self) -> [(u64, &'static str); 3] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            (
                read(&self.troubles.unwritten).saturating_add(self.unsent),
                "samples of usage could not be written",
            ),
            (
                read(&self.troubles.damaged),
                "records of usage could not be read",
            ),
            (
                read(&self.troubles.set_aside),
                "damaged files of usage were taken out of the way",
            ),
        ]
    }

    pub(super) fn finish(self) {
        drop(self.jobs);
        if self.ended.recv_timeout(TIMEOUT).is_err() {
            tracing::warn!("the last usage may not be written: the disk does not keep up");
        }
    }
}

impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

struct Thread {
    path: PathBuf,
    bound: Bytes,
    /// `None` until the directory can be had.
    store: Option<Store>,
    is_failing: bool,
    /// Samples that came meanwhile.
    lost: u64,
    troubles: Arc<Troubles>,
    outbox: Sender<Answered>,
    waker: Waker,
}

fn open(path: &Path, bound: Bytes, now: u64) -> std::io::Result<Store> {
    make_directory(path, STATE)?;
    Store::open(path, bound, now)
}

impl Thread {
    fn work(mut self, jobs: &Receiver<Job>, now: u64) {
        self.store(now);
        self.note_troubles();
        crate::log::trim_memory();
        for job in jobs {
            match job {
                Job::Add(entries, now) => match self.store(now) {
                    Some(store) => store.add(&entries, now),
                    None => self.lost = self.lost.saturating_add(entries.len() as u64),
                },
                Job::Ask(question) => self.answer(*question),
            }
            self.note_troubles();
        }
    }

    fn store(&mut self, now: u64) -> Option<&mut Store> {
        if self.store.is_none() {
            match open(&self.path, self.bound, now) {
                Ok(store) => self.store = Some(store),
                Err(error) if !std::mem::replace(&mut self.is_failing, true) => {
                    let path = self.path.display();
                    tracing::error!(%path, %error, "usage is not kept until the directory can be read and written");
                }
                Err(_) => {}
            }
        }
        self.store.as_mut()
    }

    fn answer(&mut self, question: Question) {
        let began = clock::thread_cpu_time();
        let Question {
            client,
            counts_as,
            kind,
            wanted,
            current,
            now,
        } = question;
        let path = self.path.display().to_string();
        let found = match (self.store(now), kind) {
            (Some(store), Kind::Series) => Ok(Found::Series(store.series(&wanted, &current, now))),
            (Some(store), Kind::Summary) => {
                Ok(Found::Summary(store.summary(&wanted, &current, now)))
            }
            (None, _) => Err(format!("{path} cannot be read; bursard's log says why")),
        };
        let spent = clock::thread_cpu_time().get().saturating_sub(began.get());
        let answered = Answered {
            client,
            counts_as,
            spent: Duration::from_nanos(spent),
            found,
        };
        // The daemon ends: nobody waits for it any more.
        let _ = self.outbox.send(answered);
        self.waker.wake();
        crate::log::trim_memory();
    }

    fn note_troubles(&mut self) {
        let facts = self
            .store
            .as_mut()
            .map(Store::take_facts)
            .unwrap_or_default();
        facts
            .remarks
            .iter()
            .for_each(|remark| tracing::error!("{remark}"));
        let write = |count: &AtomicU64, value| count.store(value, Ordering::Relaxed);
        write(
            &self.troubles.unwritten,
            facts.unwritten.saturating_add(self.lost),
        );
        write(&self.troubles.damaged, facts.damaged);
        write(&self.troubles.set_aside, facts.set_aside);
    }
}

#[cfg(test)]
mod tests {
    use bursar_model::{AccountId, UsageSample};
    use bursar_usage::Tier;

    use super::*;

    const NOW: u64 = 1_795_219_200;

    fn entries() -> Vec<Entry> {
        let sample = UsageSample {
            start: NOW,
            max: Bytes::from_mib(5),
            ..UsageSample::default()
        };
        vec![Entry {
            id: AccountId::of(Uid::new(60_001)),
            name: "alice".into(),
            sample,
        }]
    }

    fn question(uid: u32) -> Question {
        Question {
            client: ClientId::first(),
            counts_as: Uid::new(uid),
            kind: Kind::Series,
            wanted: Wanted {
                subject: None,
                from: 0,
                tier: Tier::Minute,
            },
            current: Vec::new(),
            now: NOW + 10,
        }
    }

    fn answer_of(writer: &mut Writer) -> Answered {
        for _ in 0..1000 {
            if let Some(answered) = writer.drain().pop() {
                return answered;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no answer");
    }

    #[test]
    fn what_is_added_is_found_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let start = || Writer::start(folder.path().join("usage"), Bytes::from_mib(1), NOW).unwrap();
        let mut writer = start();
        writer.add(entries(), NOW + 1);
        writer.finish();
        let mut writer = start();
        writer.ask(question(60_001)).unwrap();
        let Ok(Found::Series(series)) = answer_of(&mut writer).found else {
            panic!("nothing found");
        };
        assert_eq!(
            (series.account.as_str(), series.samples.len()),
            ("alice", 1)
        );
        assert_eq!(writer.troubles().map(|(count, _)| count), [0; 3]);
    }

    #[test]
    fn a_user_has_one_question_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer =
            Writer::start(folder.path().join("usage"), Bytes::from_mib(1), NOW).unwrap();
        writer.ask(question(60_001)).unwrap();
        assert_eq!(writer.ask(question(60_001)), Err(AskError::Busy));
        writer.ask(question(60_002)).unwrap();
        answer_of(&mut writer);
        for _ in 0..1000 {
            writer.drain();
            if writer.ask(question(60_001)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never again");
    }

    #[test]
    fn however_many_ask_there_is_room_for_what_is_to_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("usage");
        let mut writer = Writer::start(path, Bytes::from_mib(1), NOW).unwrap();
        let taken = (1..100).filter(|uid| writer.ask(question(*uid)).is_ok());
        assert_eq!(taken.count(), QUESTIONS);
        let taken = (0..100).filter(|_| writer.ask(question(0)).is_ok());
        assert_eq!(taken.count(), QUESTIONS_OF_ROOT);
        (0..4).for_each(|_| writer.add(entries(), NOW + 1));
        assert_eq!(writer.troubles()[0].0, 0);
    }

    #[test]
    fn a_directory_that_cannot_be_had_costs_samples_that_are_counted() {
        let mut writer =
            Writer::start("/proc/nowhere/usage".into(), Bytes::from_mib(1), NOW).unwrap();
        writer.add(entries(), NOW + 1);
        writer.ask(question(60_001)).unwrap();
        assert!(answer_of(&mut writer).found.is_err());
        assert_eq!(writer.troubles()[0].0, 1);
    }
}
