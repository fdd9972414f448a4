// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An ordinary neighbour: sleeps, wakes, and notes how late it was.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use bursar_host::clock;
use bursar_host::sched::{self, Changed, Class};

use crate::sessions::part;

/// Between two wake-ups.
const EVERY_NS: i64 = 500_000;

/// Processes that wake up every half a millisecond, at normal priority or above everybody.
#[derive(Debug)]
pub(crate) struct Probes {
    all: Vec<Child>,
}

impl Probes {
    pub(crate) fn start(count: usize, apart: bool, above: bool) -> Result<Self> {
        let mut probes = Self { all: Vec::new() };
        for _ in 0..count {
            let mut child = Command::new(std::env::current_exe()?)
                .arg("probe")
                .args(apart.then_some("--apart"))
                .args(above.then_some("--above"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .context("start a probe")?;
            let output = child.stdout.as_mut().context("its output")?;
            let started = output.read_exact(&mut [0; 1]);
            probes.all.push(child);
            started.context("wait for a probe")?;
        }
        Ok(probes)
    }

    /// When each should have woken, and how late it was, ns.
    pub(crate) fn finish(mut self) -> Result<Vec<(u64, u64)>> {
        for child in &mut self.all {
            // The end of its input is its word to stop.
            drop(child.stdin.take());
        }
        let mut seen = Vec::new();
        for child in &mut self.all {
            let mut text = String::new();
            let output = child.stdout.as_mut().context("its output")?;
            output.read_to_string(&mut text)?;
            for line in text.lines() {
                let (at, late) = line.split_once(' ').context("a wake-up")?;
                seen.push((at.parse()?, late.parse()?));
            }
        }
        Ok(seen)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for child in &mut self.all {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Above reapers, and their timers.
const ABOVE: Class = Class::RealTime(40);

/// The process itself.
pub(crate) fn run(apart: bool, above: bool) -> Result<()> {
    if apart {
        part()?;
    }
    if above {
        let put = sched::set_class(sched::own_thread(), ABOVE);
        ensure!(put == Changed::Done, "no real-time priority for a probe");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    let mut output = std::io::stdout().lock();
    output.write_all(b".")?;
    output.flush()?;
    let mut text = String::new();
    for (at, late) in watch(&stop) {
        let _ = writeln!(text, "{at} {late}");
    }
    output.write_all(text.as_bytes())?;
    Ok(())
}

fn watch(stop: &AtomicBool) -> Vec<(u64, u64)> {
    // SAFETY: a plain system call about this thread: timers as exact as the machine can.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut late = Vec::with_capacity(1 << 16);
    while !stop.load(Ordering::Relaxed) {
        let wanted = clock::monotonic().get() + EVERY_NS as u64;
        let at = libc::timespec {
            tv_sec: (wanted / 1_000_000_000) as i64,
            tv_nsec: (wanted % 1_000_000_000) as i64,
        };
        // SAFETY: the time lives across the call; no remainder is asked for.
        unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &at,
                std::ptr::null_mut(),
            );
        }
        late.push((wanted, clock::monotonic().get().saturating_sub(wanted)));
    }
    late
}
