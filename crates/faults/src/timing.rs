// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens and closes the windows in which the end of faults is watched: a thread of its own, which
//! ends with the watch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use bursar_host::machine;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::Error;
use crate::perf::{self, Event};
use crate::window::Window;

/// How closely the end of faults is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Each fault while they are few, a sample of a storm.
    Sampled,
    /// Each fault, whatever it costs.
    Each,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Timer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _open: Option<Switch>,
    /// Of major faults, which tell the counts which ones they are: there all the time. Minor faults do
    /// not notice.
    _majors: Vec<OwnedFd>,
}

impl Timer {
    /// Begins. `programs` see the ends of minor and of major faults; `flag` is their `timing_window`.
    pub(crate) fn start(
        timing: Timing,
        programs: [OwnedFd; 2],
        flag: MapHandle,
    ) -> Result<Self, Error> {
        let cpus = machine::online_cpus(Path::new("/sys"))?;
        let [minor, major] = programs;
        let mut idle = Self {
            stop: None,
            thread: None,
            _open: None,
            _majors: watch_ends(Event::Major, &cpus, major.as_fd())?,
        };
        let mut switch = Switch {
            program: minor,
            cpus,
            flag,
            window: 0,
            events: Vec::new(),
        };
        // The first time shows whether it can be done at all.
        switch.open()?;
        if timing == Timing::Each {
            idle._open = Some(switch);
            return Ok(idle);
        }
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("fault-timing".into())
            .spawn(move || {
                let mut window = Window::FIRST;
                let mut before = 0;
                while stopped.recv_timeout(window.length()) == Err(RecvTimeoutError::Timeout) {
                    let now = switch.count();
                    let next = window.next(now.saturating_sub(before));
                    before = now;
                    match (window, next) {
                        (Window::Open(_), Window::Closed(_)) => switch.close(),
                        (Window::Closed(_), Window::Open(_)) => {
                            // What failed once may work the next time; until then none is timed.
                            let _ = switch.open();
                            before = 0;
                        }
                        _ => {}
                    }
                    window = next;
                }
                switch.close();
            })
            .map_err(Error::io("start the timing thread"))?;
        idle.stop = Some(stop);
        idle.thread = Some(thread);
        Ok(idle)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the programs' switches, which lie one behind the other in a section of their own.
pub(crate) fn set_switches(map: &MapHandle, window: u32, is_recording: u32) -> Result<(), Error> {
    let mut bytes = [0u8; 8];
    let (timing, recording) = bytes.split_at_mut(4);
    timing.copy_from_slice(&window.to_ne_bytes());
    recording.copy_from_slice(&is_recording.to_ne_bytes());
    map.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
        .map_err(|error| Error::io("switch the programs")(std::io::Error::other(error)))
}

/// The event on each CPU, seen by `program` from now on.
fn watch_ends(event: Event, cpus: &[u32], program: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Error> {
    let mut events = Vec::with_capacity(cpus.len());
    for &cpu in cpus {
        let fd = match perf::open(event, cpu) {
            // It was on when we looked.
            Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {
                continue;
            }
            opened => opened?,
        };
        perf::begin(&fd, program)?;
        events.push(fd);
    }
    Ok(events)
}

/// The events of minor faults on all CPUs, there only while a window is open: an event that is merely
/// disabled still costs each fault of the machine some 40 ns, for the kernel looks for it.
#[derive(Debug)]
struct Switch {
    program: OwnedFd,
    cpus: Vec<u32>,
    flag: MapHandle,
    /// The number of the window that is or was open; from 1.
    window: u32,
    events: Vec<OwnedFd>,
}

impl Switch {
    fn open(&mut self) -> Result<(), Error> {
        self.window = self.window.wrapping_add(1).max(1);
        self.set(self.window);
        self.events = watch_ends(Event::Minor, &self.cpus, self.program.as_fd())?;
        Ok(())
    }

    fn close(&mut self) {
        self.events.clear();
        self.set(0);
    }

    fn set(&self, window: u32) {
        // Without it ends would be met whose begin was not timed: they are passed over.
        let _ = set_switches(&self.flag, window, 0);
    }

    /// Faults met since the window opened.
    fn count(&self) -> u64 {
        self.events
            .iter()
            .fold(0, |sum, event| sum.saturating_add(perf::count(event)))
    }
}
