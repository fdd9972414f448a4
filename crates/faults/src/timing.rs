// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens and closes the windows in which faults are watched: a thread of its own, which ends with the
//! watch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use bursar_host::machine;

use crate::Error;
use crate::begin_hooks::BeginHooks;
use crate::perf::{self, Event};
use crate::switches::Switches;
use crate::window::{Rhythm, Window};

/// How closely the end of faults is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Each fault while they are few, a sample of a storm; of a flood only a part is seen at all.
    Sampled,
    /// Each fault, whatever it costs.
    Each,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Timer {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Without a thread: what stays open.
    open: Option<Ends>,
    /// Of major faults, which tell the counts which ones they are: there all the time. Minor faults do
    /// not notice.
    _majors: Vec<OwnedFd>,
}

impl Timer {
    /// Begins. `programs` see the ends of minor and of major faults, `begins` their beginnings.
    pub(crate) fn start(
        timing: Timing,
        programs: [OwnedFd; 2],
        begins: BeginHooks,
        switches: Switches,
    ) -> Result<Self, Error> {
        let cpus = machine::online_cpus(Path::new("/sys"))?;
        let [minor, major] = programs;
        let mut idle = Self {
            stop: None,
            thread: None,
            open: None,
            _majors: watch_ends(Event::Major, &cpus, major.as_fd())?,
        };
        let mut ends = Ends {
            program: minor,
            cpus,
            begins,
            switches,
            events: Vec::new(),
        };
        // The first time shows whether it can be done at all.
        ends.open()?;
        if timing == Timing::Each {
            idle.open = Some(ends);
            return Ok(idle);
        }
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("fault-timing".into())
            .spawn(move || {
                let mut rhythm = Rhythm::FIRST;
                let mut before = 0;
                while stopped.recv_timeout(rhythm.window().length())
                    == Err(RecvTimeoutError::Timeout)
                {
                    let now = ends.count();
                    let last = rhythm.window();
                    rhythm.step(now.saturating_sub(before));
                    before = now;
                    // What failed once may work the next time; until then none is timed, or all are seen.
                    let _ = ends.turn_to(rhythm.window());
                    if !matches!(last, Window::Open(_)) {
                        before = 0;
                    }
                }
                ends.close();
            })
            .map_err(Error::io("start the timing thread"))?;
        idle.stop = Some(stop);
        idle.thread = Some(thread);
        Ok(idle)
    }

    /// From now on faults are recorded whole. Only with [`Timing::Each`]: the windows of a sample have
    /// their own mind.
    pub(crate) fn record(&mut self) -> Result<(), Error> {
        self.open
            .as_mut()
            .map_or(Ok(()), |ends| ends.switches.record())
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
/// disabled still costs each fault of the machine some 40 ns, for the kernel looks for it. And the hooks at
/// which faults begin, there but for a part of a flood.
#[derive(Debug)]
struct Ends {
    program: OwnedFd,
    cpus: Vec<u32>,
    begins: BeginHooks,
    switches: Switches,
    events: Vec<OwnedFd>,
}

impl Ends {
    /// By what is, not by what was meant to be: what failed is tried again.
    fn turn_to(&mut self, window: Window) -> Result<(), Error> {
        let is_away = matches!(window, Window::Away(_));
        self.begins.set_away(is_away, &mut self.switches)?;
        match window {
            Window::Open(_) if self.events.is_empty() => self.open()?,
            Window::Open(_) => {}
            Window::Closed(_) | Window::Away(_) => self.close(),
        }
        Ok(())
    }

    /// Ends are seen before faults are timed, and until after: what is timed is booked where it ends.
    fn open(&mut self) -> Result<(), Error> {
        self.switches.next_window()?;
        self.events = watch_ends(Event::Minor, &self.cpus, self.program.as_fd())?;
        self.switches.set_timing(true)
    }

    fn close(&mut self) {
        if !self.events.is_empty() && self.switches.set_timing(false).is_ok() {
            self.events.clear();
        }
    }

    /// Faults met since the window opened.
    fn count(&self) -> u64 {
        self.events
            .iter()
            .fold(0, |sum, event| sum.saturating_add(perf::count(event)))
    }
}
