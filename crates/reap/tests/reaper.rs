// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reaper that is given more than it can do, on this machine.

use std::process::Command;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bursar_host::{Pidfd, clock};
use bursar_model::Pid;
use bursar_reap::{Errand, Fate, Job, News, Reaper, Victim};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn jobs_that_find_no_room_are_told_of_and_take_no_descriptors() {
    const JOBS: u64 = 2000;
    let (outbox, news) = channel();
    let outbox = Mutex::new(outbox);
    let reaper = Reaper::start(move |one| {
        if let News::Settled(report) = one {
            let _ = outbox.lock().unwrap().send(report);
        }
    });
    let reaper = reaper.unwrap();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let before = descriptors();
    for tag in 0..JOBS {
        let pidfd = Pidfd::open(Pid::new(child.id())).unwrap().unwrap();
        reaper.hand(Job {
            errand: Errand::Reap,
            victims: vec![Victim::new(pidfd, clock::monotonic(), tag)],
        });
    }
    let held = descriptors() - before;
    assert!(held < 1000, "{held} descriptors for {JOBS} jobs");
    assert!(reaper.turned_away() > 0);
    child.kill().unwrap();
    let mut tags: Vec<u64> = Vec::new();
    while (tags.len() as u64) < JOBS {
        let report = news.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!matches!(report.fate, Fate::Spared(_)), "{report:?}");
        tags.push(report.tag);
    }
    child.wait().unwrap();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..JOBS), "each once");
    // Orders that nobody needs any more are dropped one after the other.
    let deadline = Instant::now() + Duration::from_secs(10);
    while descriptors() > before {
        assert!(Instant::now() < deadline, "{} descriptors", descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}
