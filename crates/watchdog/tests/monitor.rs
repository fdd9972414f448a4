// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that hang in a call, on this machine.

#![allow(
    clippy::disallowed_methods,
    reason = "bare threads: no monitor of theirs but the one tried here"
)]

mod asleep;
mod children;

use std::io::{PipeWriter, Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bursar_host::{Proc, sched};
use bursar_model::{Pid, Uid};
use bursar_watchdog::{Abandoned, Blocklist, Guard, Monitor, Owner, ThreadState};

use asleep::sleep_soundly;
use children::Children;

const TIMEOUT: Duration = Duration::from_millis(50);

/// A thread in a call, and its monitor.
struct Watched {
    monitor: Monitor,
    thread: JoinHandle<Result<Option<()>, Abandoned>>,
}

impl Watched {
    fn calling(
        blocklist: &Arc<Blocklist>,
        pid: Pid,
        owner: Option<Owner>,
        what: impl FnOnce() + Send + 'static,
    ) -> Self {
        let guard = Guard::new(Arc::clone(blocklist));
        let (said, heard) = channel();
        let thread = std::thread::spawn(move || {
            said.send(Monitor::of(sched::own_thread(), &guard)).unwrap();
            guard.call(&Proc::host().unwrap(), pid, owner, what)
        });
        let monitor = heard.recv().unwrap();
        Self { monitor, thread }
    }

    /// What twenty times our timeout show.
    fn state(&mut self) -> ThreadState {
        let proc = Proc::host().unwrap();
        let deadline = Instant::now() + TIMEOUT * 20;
        loop {
            let state = self.monitor.check(&proc, TIMEOUT);
            if matches!(state, ThreadState::Abandoned(_)) || Instant::now() > deadline {
                return state;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// So many threads that hang at one process.
fn hanging(
    blocklist: &Arc<Blocklist>,
    count: usize,
    pid: Pid,
    owner: Option<Owner>,
) -> Vec<(Watched, PipeWriter)> {
    let mut all: Vec<_> = (0..count)
        .map(|_| {
            let (reader, writer) = std::io::pipe().unwrap();
            let what = move || sleep_soundly(reader);
            (Watched::calling(blocklist, pid, owner, what), writer)
        })
        .collect();
    // All are in their calls before the first is abandoned, which blocks the process.
    std::thread::sleep(TIMEOUT);
    for (watched, _) in &mut all {
        assert_eq!(watched.state(), ThreadState::Abandoned(pid));
    }
    all
}

/// Lets a thread go that was abandoned.
fn come_back((watched, mut writer): (Watched, PipeWriter)) {
    writer.write_all(&[0]).unwrap();
    assert_eq!(watched.thread.join().unwrap(), Err(Abandoned));
}

fn own() -> Pid {
    Pid::new(std::process::id())
}

#[test]
fn a_thread_that_works_is_not_abandoned_however_long_it_takes() {
    let is_over = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&is_over);
    let spin = move || {
        while !its.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let mut watched = Watched::calling(&Arc::default(), own(), None, spin);
    let state = watched.state();
    assert!(matches!(state, ThreadState::InCall(_)), "{state:?}");
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(watched.thread.join().unwrap(), Ok(Some(())));
}

#[test]
fn a_thread_that_a_signal_could_wake_is_not_abandoned() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let read = move || drop(reader.read(&mut [0]));
    let mut watched = Watched::calling(&Arc::default(), own(), None, read);
    let state = watched.state();
    assert!(matches!(state, ThreadState::InCall(_)), "{state:?}");
    drop(writer);
    assert_eq!(watched.thread.join().unwrap(), Ok(Some(())));
}

#[test]
fn a_thread_that_sleeps_for_no_signal_is_abandoned_and_told_so() {
    hanging(&Arc::default(), 1, own(), None)
        .into_iter()
        .for_each(come_back);
}

#[test]
fn between_calls_a_thread_is_idle() {
    let proc = Proc::host().unwrap();
    let guard = Guard::default();
    let mut monitor = Monitor::of(sched::own_thread(), &guard);
    assert_eq!(monitor.check(&proc, Duration::ZERO), ThreadState::Idle);
    assert_eq!(guard.call(&proc, own(), None, || 7), Ok(Some(7)));
    assert_eq!(monitor.check(&proc, Duration::ZERO), ThreadState::Idle);
}

#[test]
fn a_process_is_blocked_until_the_thread_is_back_and_its_user_when_there_are_many() {
    let proc = Proc::host().unwrap();
    let blocklist = Arc::new(Blocklist::resting(Duration::ZERO));
    let children = Children::start(2);
    let [one, another] = children.pids()[..] else {
        panic!()
    };
    let mut away = hanging(&blocklist, 1, one, None);
    assert!(!blocklist.allows(&proc, one, None));
    assert!(blocklist.allows(&proc, another, None));
    away.extend(hanging(&blocklist, 3, own(), None));
    assert!(!blocklist.allows(&proc, another, None), "of the same user");
    let counts = (
        blocklist.hanging(),
        blocklist.abandoned(),
        blocklist.refused(),
    );
    assert_eq!(counts, (4, 4, 2));
    come_back(away.swap_remove(2));
    assert!(blocklist.allows(&proc, another, None));
    assert!(!blocklist.allows(&proc, one, None));
    away.into_iter().for_each(come_back);
    assert!(blocklist.allows(&proc, one, None));
    assert_eq!(blocklist.hanging(), 0);
}

#[test]
fn who_lets_threads_go_to_hold_up_others_has_held_up_four() {
    let proc = Proc::host().unwrap();
    let blocklist = Arc::new(Blocklist::resting(Duration::from_secs(2)));
    let children = Children::start(1);
    let one = children.pids()[0];
    for _ in 0..4 {
        assert!(blocklist.allows(&proc, one, None));
        hanging(&blocklist, 1, one, None)
            .into_iter()
            .for_each(come_back);
    }
    assert_eq!(blocklist.hanging(), 0);
    assert!(!blocklist.allows(&proc, one, None));
    std::thread::sleep(Duration::from_secs(2));
    assert!(blocklist.allows(&proc, one, None));
}

#[test]
fn all_in_user_namespaces_are_one_owner() {
    let proc = Proc::host().unwrap();
    let blocklist = Arc::default();
    let inside = |user: &str| {
        let mut command = Command::new("setpriv");
        let user = format!("--reuid={user}");
        command.args([&user, "--clear-groups", "unshare", "--user", "sleep", "60"]);
        command
    };
    let mut sleep = Command::new("sleep");
    sleep.arg("60");
    let children = Children::of([inside("60001"), inside("60002"), sleep]);
    let [one, another, outside] = children.pids()[..] else {
        panic!()
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_inside = |pid| proc.has_our_users(pid).unwrap() == Some(false);
    while !(is_inside(one) && is_inside(another)) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let away = hanging(&blocklist, 4, one, None);
    assert!(
        !blocklist.allows(&proc, another, None),
        "with another number"
    );
    assert!(blocklist.allows(&proc, outside, None));
    away.into_iter().for_each(come_back);
}

#[test]
fn threads_that_hang_at_a_known_owner_s_process_count_against_nobody_else() {
    let proc = Proc::host().unwrap();
    let blocklist = Arc::default();
    let children = Children::start(1);
    let another = children.pids()[0];
    let [she, he] = [60001, 60002].map(|it| Some(Owner::User(Uid::new(it))));
    let away = hanging(&blocklist, 4, own(), she);
    assert!(!blocklist.allows(&proc, another, she));
    assert!(blocklist.allows(&proc, another, he));
    assert!(blocklist.allows(&proc, another, Some(Owner::Account(60001))));
    assert!(blocklist.allows(&proc, another, None));
    assert!(!blocklist.allows(&proc, own(), he), "that very process");
    away.into_iter().for_each(come_back);
}
