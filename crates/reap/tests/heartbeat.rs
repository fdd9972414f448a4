// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of ours that do not come back, on this machine.

mod asleep;

use std::io::{PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bursar_host::{Proc, sched};
use bursar_model::{Pid, Uid};
use bursar_reap::{Blocklist, Heartbeat, Lost, Monitor, Payer, ThreadState};

use asleep::sleep_soundly;

const PATIENCE: Duration = Duration::from_millis(50);

/// A thread in a call, and the monitor over it.
struct Watched {
    heartbeat: Arc<Heartbeat>,
    monitor: Monitor,
    thread: JoinHandle<Result<(), Lost>>,
}

impl Watched {
    fn at(what: impl FnOnce() + Send + 'static) -> Self {
        let heartbeat = Arc::new(Heartbeat::default());
        let (own, its_post) = (Pid::new(std::process::id()), Arc::clone(&heartbeat));
        let (said, heard) = channel();
        let thread = std::thread::spawn(move || {
            said.send(sched::own_thread()).unwrap();
            its_post.ask(own, what)
        });
        Self {
            heartbeat,
            monitor: Monitor::over(heard.recv().unwrap()),
            thread,
        }
    }

    /// What twenty times our patience show.
    fn look(&mut self) -> ThreadState {
        let proc = Proc::host().unwrap();
        let deadline = Instant::now() + PATIENCE * 20;
        loop {
            let sight = self.monitor.look(&proc, &self.heartbeat, PATIENCE);
            if matches!(sight, ThreadState::Lost(_)) || Instant::now() > deadline {
                return sight;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lost() -> (Watched, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut watched = Watched::at(move || sleep_soundly(reader));
    assert_eq!(
        watched.look(),
        ThreadState::Lost(Pid::new(std::process::id()))
    );
    (watched, writer)
}

/// Lets one go that was lost, and finds itself so.
fn come_back((watched, mut writer): (Watched, PipeWriter)) -> Arc<Heartbeat> {
    writer.write_all(&[0]).unwrap();
    assert_eq!(watched.thread.join().unwrap(), Err(Lost));
    watched.heartbeat
}

#[test]
fn who_works_is_not_lost_however_long_it_takes() {
    let is_over = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&is_over);
    let spin = move || {
        while !its.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let mut watched = Watched::at(spin);
    let sight = watched.look();
    assert!(matches!(sight, ThreadState::Waiting(_)), "{sight:?}");
    is_over.store(true, Ordering::Relaxed);
    assert_eq!(watched.thread.join().unwrap(), Ok(()));
}

#[test]
fn who_can_be_woken_is_not_lost() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut watched = Watched::at(move || drop(reader.read(&mut [0])));
    let sight = watched.look();
    assert!(matches!(sight, ThreadState::Waiting(_)), "{sight:?}");
    drop(writer);
    assert_eq!(watched.thread.join().unwrap(), Ok(()));
}

#[test]
fn who_sleeps_for_no_signal_is_lost_and_is_told_so() {
    come_back(lost());
}

#[test]
fn between_calls_nobody_is_lost() {
    let proc = Proc::host().unwrap();
    let heartbeat = Heartbeat::default();
    let mut monitor = Monitor::over(sched::own_thread());
    assert_eq!(
        monitor.look(&proc, &heartbeat, Duration::ZERO),
        ThreadState::Idle
    );
    assert_eq!(heartbeat.ask(Pid::new(1), || 7), Ok(7));
    assert_eq!(
        monitor.look(&proc, &heartbeat, Duration::ZERO),
        ThreadState::Idle
    );
}

#[test]
fn a_process_is_blocked_until_the_thread_is_back_and_its_user_when_there_are_many() {
    let proc = Proc::host().unwrap();
    let blocklist = Blocklist::default();
    let child = || {
        let mut command = std::process::Command::new("sleep");
        command.arg("60").spawn().unwrap()
    };
    let mut children = [child(), child()];
    let [own, another] = [&children[0], &children[1]].map(|it| Pid::new(it.id()));
    let mut away: Vec<(Watched, PipeWriter)> = (0..4).map(|_| lost()).collect();
    assert!(blocklist.may_ask(&proc, own, None));
    let mut bar = |index: usize| blocklist.block(&proc, &away[index].0.heartbeat, own);
    bar(0);
    assert!(!blocklist.may_ask(&proc, own, None));
    assert!(blocklist.may_ask(&proc, another, None));
    (1..4).for_each(&mut bar);
    assert!(!blocklist.may_ask(&proc, another, None), "of the same user");
    assert_eq!(
        (blocklist.away(), blocklist.ever(), blocklist.left_alone()),
        (4, 4, 2)
    );
    let mut come_back = |index: usize| {
        let heartbeat = come_back(away.swap_remove(index));
        blocklist.back(&heartbeat);
        heartbeat
    };
    let heartbeat = come_back(2);
    assert!(blocklist.may_ask(&proc, another, None));
    assert!(!blocklist.may_ask(&proc, own, None));
    // Too late: it is back already.
    blocklist.block(&proc, &heartbeat, another);
    assert!(blocklist.may_ask(&proc, another, None));
    (0..3).for_each(|_| drop(come_back(0)));
    assert!(blocklist.may_ask(&proc, own, None));
    assert_eq!(blocklist.away(), 0);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn all_in_user_namespaces_are_one_party() {
    let proc = Proc::host().unwrap();
    let blocklist = Blocklist::default();
    let start = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        command.args(arguments).spawn().unwrap()
    };
    let inside = |user: &str| {
        start(
            "setpriv",
            &[
                &format!("--reuid={user}"),
                "--clear-groups",
                "unshare",
                "--user",
                "sleep",
                "60",
            ],
        )
    };
    let mut children = [inside("60001"), inside("60002"), start("sleep", &["60"])];
    let [one, another, outside] = [0, 1, 2].map(|index: usize| Pid::new(children[index].id()));
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_inside = |pid| proc.has_our_users(pid).unwrap() == Some(false);
    while !(is_inside(one) && is_inside(another)) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    let away: Vec<(Watched, PipeWriter)> = (0..4).map(|_| lost()).collect();
    for (watched, _) in &away {
        blocklist.block(&proc, &watched.heartbeat, one);
    }
    assert!(
        !blocklist.may_ask(&proc, another, None),
        "with another number"
    );
    assert!(blocklist.may_ask(&proc, outside, None));
    away.into_iter().for_each(|it| drop(come_back(it)));
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_thread_lost_at_whose_payer_is_known_costs_nobody_else() {
    let proc = Proc::host().unwrap();
    let blocklist = Blocklist::default();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let another = Pid::new(child.id());
    let own = Pid::new(std::process::id());
    let [she, he] = [60001, 60002].map(|it| Some(Payer::User(Uid::new(it))));
    let away: Vec<(Watched, PipeWriter)> = (0..4).map(|_| lost()).collect();
    for (watched, _) in &away {
        watched.heartbeat.say(she);
        blocklist.block(&proc, &watched.heartbeat, own);
    }
    assert!(!blocklist.may_ask(&proc, another, she));
    assert!(blocklist.may_ask(&proc, another, he));
    assert!(blocklist.may_ask(&proc, another, Some(Payer::Account(60001))));
    assert!(blocklist.may_ask(&proc, another, None));
    assert!(!blocklist.may_ask(&proc, own, he), "that very process");
    away.into_iter().for_each(|it| drop(come_back(it)));
    child.kill().unwrap();
    child.wait().unwrap();
}
