// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our own page map, read as root: what we have touched is there, what we have not is not.

use std::fs;
use std::process::{Command, Stdio};

use bursar_host::{MapCounts, Pagemap, Proc, Walked};
use bursar_model::Pid;

const PAGES: usize = 300;

fn own() -> Pid {
    Pid::new(std::process::id())
}

#[test]
fn what_was_touched_is_mapped_here_and_only_here() {
    let proc = Proc::host().unwrap();
    let counts = MapCounts::open(&proc).unwrap();
    let seen = || {
        let map = Pagemap::open(&proc, own()).unwrap().unwrap();
        let (mut exclusive, mut frames) = (0usize, Vec::new());
        let walked = map.walk(&proc, 0, u64::MAX, |entry| {
            exclusive += usize::from(entry.is_exclusive());
            frames.extend(entry.frame().filter(|_| entry.is_exclusive()));
        });
        assert_eq!(walked.unwrap(), Walked::Whole);
        (exclusive, frames)
    };
    let (before, _) = seen();
    let touched = std::hint::black_box(vec![7u8; PAGES * 4096]);
    let (after, frames) = seen();
    assert!(after >= before + PAGES - 2, "{before} and {after}");
    // Only a sample: other tests' threads map and unmap meanwhile.
    let mapped = frames
        .iter()
        .filter(|&&frame| counts.of(frame).unwrap() == Some(1));
    assert!(mapped.count() >= PAGES, "of {}", frames.len());
    drop(touched);
}

#[test]
fn a_walk_that_may_not_read_all_says_where_it_can_go_on() {
    let proc = Proc::host().unwrap();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = Pid::new(child.id());
    // In its own call: on its way there it sleeps for pages, which it then has more of.
    let call = format!("{} ", libc::SYS_clock_nanosleep);
    let sleeps =
        || fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|it| it.starts_with(&call));
    while !sleeps() {
        std::thread::yield_now();
    }
    let map = Pagemap::open(&proc, pid).unwrap().unwrap();
    let mut whole = Vec::new();
    let walked = map.walk(&proc, 0, u64::MAX, |entry| whole.push(entry));
    assert_eq!(walked.unwrap(), Walked::Whole);
    let (mut parts, mut from, mut cuts) = (Vec::new(), 0, 0);
    while let Walked::Cut(at) = map.walk(&proc, from, 7, |it| parts.push(it)).unwrap() {
        assert!(at > from);
        (from, cuts) = (at, cuts + 1);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // One that ends with its seventh is not cut.
    let least = whole.len().saturating_sub(1) / 7;
    assert!(cuts >= least, "{cuts} for {}", whole.len());
    assert!(!whole.is_empty() && parts == whole);
}

#[test]
fn nobody_is_there_any_more() {
    let proc = Proc::host().unwrap();
    let mut child = Command::new("sleep")
        .arg("60")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::new(child.id());
    let map = Pagemap::open(&proc, pid).unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut found = 0;
    let walked = map.walk(&proc, 0, u64::MAX, |_| found += 1).unwrap();
    assert!(matches!(walked, Walked::Whole | Walked::Gone));
    assert_eq!(found, 0);
    assert!(Pagemap::open(&proc, pid).unwrap().is_none());
}
