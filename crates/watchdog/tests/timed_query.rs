// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that keep whoever asks them waiting, on this machine.

mod asleep;
mod children;

use std::io::{PipeWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bursar_host::ProcessQuery;
use bursar_model::Pid;
use bursar_watchdog::{Blocklist, TimedQuery};

use asleep::sleep_soundly;
use children::Children;

const TIMEOUT: Duration = Duration::from_millis(50);

fn query(blocklist: &Arc<Blocklist>) -> TimedQuery {
    let query = TimedQuery::new("test-query", Arc::clone(blocklist)).unwrap();
    query.within(TIMEOUT)
}

/// A question to which these do not answer before something is written; a byte for each answer.
fn unresponsive(which: Vec<Pid>) -> (impl Fn(Pid) -> u32 + Send + Sync + 'static, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let question = move |pid: Pid| {
        if which.contains(&pid) {
            sleep_soundly(reader.try_clone().unwrap());
        }
        pid.get()
    };
    (question, writer)
}

fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_does_not_answer_keeps_nobody_else_from_being_asked() {
    let blocklist = Arc::new(Blocklist::default());
    let children = Children::start(4);
    let pids = children.pids();
    let (question, mut writer) = unresponsive(vec![pids[1], pids[2]]);
    let asked = Arc::new(AtomicUsize::new(0));
    let its = Arc::clone(&asked);
    let mut query = query(&blocklist);
    let ask = |query: &mut TimedQuery, question: Arc<dyn Fn(Pid) -> u32 + Send + Sync>| {
        let its = Arc::clone(&its);
        query.ask_each(pids.clone(), move |_, pid| {
            its.fetch_add(1, Ordering::Relaxed);
            question(pid)
        })
    };
    let question: Arc<dyn Fn(Pid) -> u32 + Send + Sync> = Arc::new(question);
    let began = Instant::now();
    let answers = ask(&mut query, Arc::clone(&question));
    assert!(began.elapsed() < TIMEOUT * 20, "{:?}", began.elapsed());
    let expected = [pids[0], pids[3]].map(|it| (it, it.get()));
    assert_eq!(answers, expected);
    assert_eq!((blocklist.hanging(), blocklist.abandoned()), (2, 2));
    // They are known now: nobody is lost a second time.
    assert_eq!(ask(&mut query, Arc::clone(&question)), expected);
    assert_eq!((blocklist.hanging(), blocklist.abandoned()), (2, 2));
    assert_eq!(asked.load(Ordering::Relaxed), 6);
    writer.write_all(&[0; 16]).unwrap();
    until(|| blocklist.hanging() == 0);
    let all = ask(&mut query, question);
    assert_eq!(all.len(), 4);
    assert_eq!(blocklist.abandoned(), 2);
}

#[test]
fn one_that_is_asked_alone_answers_or_does_not() {
    let blocklist = Arc::new(Blocklist::default());
    let children = Children::start(2);
    let pids = children.pids();
    let (question, mut writer) = unresponsive(vec![pids[1]]);
    let question = Arc::new(question);
    let mut query = query(&blocklist);
    let mut ask = |pid: Pid| {
        let question = Arc::clone(&question);
        query.ask(pid, move |_, pid| question(pid))
    };
    assert_eq!(ask(pids[0]), Some(pids[0].get()));
    assert_eq!(ask(pids[1]), None);
    assert_eq!(ask(pids[0]), Some(pids[0].get()));
    writer.write_all(&[0; 16]).unwrap();
    until(|| blocklist.hanging() == 0);
    assert_eq!(ask(pids[1]), Some(pids[1].get()));
}

#[test]
fn its_threads_end_with_it() {
    let threads = || {
        let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |it: std::fs::DirEntry| std::fs::read_to_string(it.path().join("comm"));
        all.filter_map(|it| name(it).ok())
            .filter(|it| it.trim() == "ending-query")
            .count()
    };
    let mut query = TimedQuery::new("ending-query", Arc::default()).unwrap();
    assert_eq!(threads(), 0);
    let own = Pid::new(std::process::id());
    assert_eq!(query.ask(own, |_, pid| pid), Some(own));
    assert_eq!(threads(), 1);
    drop(query);
    until(|| threads() == 0);
}

/// As after an oops in what it was asked to read: nothing unwinds, and its ends of the channels stay.
#[test]
fn a_worker_that_the_kernel_has_ended_keeps_nobody_waiting() {
    let children = Children::start(3);
    let pids = children.pids();
    let doomed = pids[1];
    let mut query = query(&Arc::new(Blocklist::default()));
    let answers = query.ask_each(pids.clone(), move |_, pid| {
        if pid == doomed {
            // SAFETY: ends this thread and nothing else; nobody joins it.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        pid.get()
    });
    let answered: Vec<Pid> = answers.into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(answered, [pids[0], pids[2]]);
}
