// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reaper that is given more than it can do, on this machine.

use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bursar_host::{Pidfd, clock};
use bursar_model::Pid;
use bursar_reap::{Fate, Job, JobKind, ReapEvent, Reaper, Victim};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Processes that live until they are told to end, whatever becomes of the test.
struct Sleepers(Vec<Child>);

impl Sleepers {
    fn begin(count: u64) -> Self {
        let sleeper = |_| Command::new("sleep").arg("600").spawn().unwrap();
        Self((0..count).map(sleeper).collect())
    }

    fn end(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for mut child in self.0.drain(..) {
            let _ = child.wait();
        }
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn jobs_that_find_no_room_are_told_of_and_take_no_descriptors() {
    // More victims than are watched at once; of several jobs for one victim the later ones follow the first.
    const JOBS: u64 = 700;
    let (outbox, news) = channel();
    let outbox = Mutex::new(outbox);
    let reaper = Reaper::start(move |one| {
        if let ReapEvent::Settled(report) = one {
            let _ = outbox.lock().unwrap().send(report);
        }
    });
    let reaper = reaper.unwrap();
    let mut sleepers = Sleepers::begin(JOBS);
    let before = descriptors();
    for (child, tag) in sleepers.0.iter().zip(0..) {
        let pidfd = Pidfd::open(Pid::new(child.id())).unwrap().unwrap();
        reaper.submit(Job {
            kind: JobKind::Reap,
            victims: vec![Victim::new(pidfd, clock::monotonic(), tag)],
        });
    }
    // The watcher has to come to them first.
    let deadline = Instant::now() + Duration::from_secs(10);
    while reaper.turned_away() == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(reaper.turned_away() > 0);
    let held = descriptors() - before;
    assert!(held < 1000, "{held} descriptors for {JOBS} jobs");
    sleepers.end();
    let mut tags: Vec<u64> = Vec::new();
    while (tags.len() as u64) < JOBS {
        let report = news.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!matches!(report.fate, Fate::NotKilled(_)), "{report:?}");
        tags.push(report.tag);
    }
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..JOBS), "each once");
    // Orders that nobody needs any more are dropped one after the other.
    let deadline = Instant::now() + Duration::from_secs(10);
    while descriptors() > before {
        assert!(Instant::now() < deadline, "{} descriptors", descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}
