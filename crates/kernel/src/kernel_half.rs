// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running kernel half as the user half holds it: opened from its pins, started, taken over, released.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bursar_model::{AccountId, ExemptCgroup, GateMode, Uid};
use libbpf_rs::{MapHandle, ProgramHandle};

use crate::abi::{self, configure_args, count_files_args, ledger_state, uid_range};
use crate::account::History;
use crate::accounts::AccountTable;
use crate::event_ring::KernelEvent;
use crate::events_in_hand::{RecordedEvents, TakenEvents};
use crate::exempt_cgroups::ExemptCgroups;
use crate::mapped::Mapped;
use crate::pins::{self, Pins};
use crate::spared_programs::SparedPrograms;
use crate::subordinates::SubordinateTable;
use crate::undelivered::Undelivered;
use crate::{
    Beancounters, Error, EventRing, EventSource, Facts, Gate, Membership, Options, ProgramFile,
    PssScans, Settings, call, load, previous, query,
};

/// How [`KernelHalf::start`] came by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// It was loaded: there was none.
    Loaded,
    /// It was running: of this build, with these options.
    Adopted,
    /// It was loaded beside another one, which decides until [`KernelHalf::take_charge`].
    Replacing,
}

/// A running kernel half.
#[derive(Debug)]
pub struct KernelHalf {
    pins: Pins,
    previous_halves: Vec<Pins>,
    undelivered: Undelivered,
    accounts: AccountTable,
    events: MapHandle,
    recorded: RecordedEvents,
    /// What a user half before us left of its events; until somebody reads them.
    left: Option<(TakenEvents, Vec<KernelEvent>)>,
    state: Mapped<ledger_state>,
    configure: ProgramHandle,
    start_timer: ProgramHandle,
    on_rss_stat: ProgramHandle,
    has_timer: bool,
    has_event: bool,
    count_files: Option<ProgramHandle>,
    gate: Gate,
    membership: Option<Membership>,
    subordinates: SubordinateTable,
    spared_programs: SparedPrograms,
    exempt_cgroups: ExemptCgroups,
}

impl KernelHalf {
    /// Candidates that are remembered with a kill.
    pub const MOST_CANDIDATES: usize = abi::abi_constant::CANDIDATES.0 as usize;

    /// Takes over the kernel half below `root` if it is one of this build with these options, and
    /// loads one otherwise. Limits of one taken over hold throughout; those of another one go on
    /// holding until [`Self::take_charge`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel refuses, [`Error::Pins`] without a bpf file system.
    pub fn start(root: &Path, options: &Options) -> Result<(Self, Started), Error> {
        let own = Pins::new(root, &options.pin_name());
        let (mut found, previous_halves): (Vec<_>, Vec<_>) = pins::all(root)?
            .into_iter()
            .partition(|pins| pins.directory() == own.directory());
        let (mut kernel_half, started) =
            match found.pop().and_then(|pins| Self::adopt(pins, options)) {
                Some(kernel_half) => (kernel_half, Started::Adopted),
                None => {
                    load::load(&own, options, &previous_halves)?;
                    let kernel_half = Self::open(own, options)?;
                    (
                        kernel_half,
                        if previous_halves.is_empty() {
                            Started::Loaded
                        } else {
                            Started::Replacing
                        },
                    )
                }
            };
        kernel_half.previous_halves = previous_halves;
        kernel_half.resume_events()?;
        kernel_half.start_files()?;
        kernel_half.gate = Gate::put_up(&kernel_half.pins, options, &kernel_half.accounts);
        if started == Started::Adopted {
            // A crash between taking charge and removing the one before leaves both.
            kernel_half.remove_previous()?;
        }
        Ok((kernel_half, started))
    }

    fn resume_events(&mut self) -> Result<(), Error> {
        let (state, events) = (self.read_state()?, self.pins.map("taken_events")?);
        let (taken, left) = self.recorded.resume(&state, &events)?;
        self.undelivered.unrecorded = left.unrecorded;
        self.left = Some((taken, left.events));
        Ok(())
    }

    fn adopt(pins: Pins, options: &Options) -> Option<Self> {
        let path = pins.directory().display().to_string();
        match Self::open(pins, options) {
            Ok(kernel_half)
                if kernel_half
                    .read_state()
                    .is_ok_and(|state| state.complete != 0) =>
            {
                Some(kernel_half)
            }
            Ok(_) => {
                tracing::info!(
                    pins = path,
                    "replacing a kernel half that was never finished"
                );
                None
            }
            Err(error) => {
                tracing::warn!(pins = path, %error, "replacing a kernel half that cannot be taken over");
                None
            }
        }
    }

    fn open(pins: Pins, options: &Options) -> Result<Self, Error> {
        let state = pins.map("state")?;
        Ok(Self {
            accounts: AccountTable::open(&pins)?,
            subordinates: SubordinateTable::open(&pins)?,
            spared_programs: SparedPrograms::open(&pins)?,
            exempt_cgroups: ExemptCgroups::open(&pins)?,
            events: pins.map("events")?,
            recorded: RecordedEvents::new(&state)?,
            left: None,
            state: Mapped::new(&state)?,
            configure: pins.program("configure")?,
            start_timer: pins.program("start_timer")?,
            on_rss_stat: pins.program("on_rss_stat")?,
            has_timer: options.timer_trigger,
            has_event: options.event_trigger,
            count_files: pins.program("count_files").ok(),
            gate: Gate {
                mode: GateMode::None,
                reason: None,
                files: None,
            },
            previous_halves: Vec::new(),
            undelivered: Undelivered::default(),
            membership: Membership::open(&pins)
                .inspect_err(|error| tracing::debug!(%error, "nobody can enter an account"))
                .ok(),
            pins,
        })
    }

    /// The same kernel half, opened once more from its pins: for another thread.
    ///
    /// # Errors
    /// When a pin is gone or is another build's.
    pub fn reopen(&self, options: &Options) -> Result<Self, Error> {
        Self::open(self.pins.clone(), options)
    }

    /// Whether any kernel half below `root`, whoever made it, has an account that it decides about, or
    /// would open one for users of `default`.
    ///
    /// # Errors
    /// When `root` cannot be listed.
    pub fn enforces_below(root: &Path) -> Result<bool, Error> {
        Ok(pins::all(root)?.iter().any(previous::has_accounts_in_force))
    }

    /// Takes every kernel half below `root` away, whoever made it. Returns how many there were.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn release(root: &Path) -> Result<usize, Error> {
        let found = pins::all(root)?;
        for pins in &found {
            pins.remove()?;
        }
        // Ours only when nothing else is in it; a mount point or foreign pins stay.
        let _ = std::fs::remove_dir(root);
        Ok(found.len())
    }

    /// Whether any kernel half is below `root`, whoever made it.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn is_pinned(root: &Path) -> Result<bool, Error> {
        Ok(!pins::all(root)?.is_empty())
    }

    /// Takes them all away as [`Self::release`] does, for one that goes on by other means: what they had
    /// told and nobody had read yet is kept.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn dismiss(root: &Path) -> Result<Undelivered, Error> {
        let mut words = Undelivered::default();
        for pins in &pins::all(root)? {
            match words.of(pins) {
                Err(error) if pins.directory().exists() => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "what the kernel half before had to tell is lost");
                }
                Ok(()) => {}
            }
        }
        let _ = std::fs::remove_dir(root);
        Ok(words)
    }

    pub(crate) const fn pins(&self) -> &Pins {
        &self.pins
    }

    fn read_state(&self) -> Result<ledger_state, Error> {
        self.state.get(0).ok_or(Error::Io {
            what: "read the ledger's state",
            source: std::io::ErrorKind::UnexpectedEof.into(),
        })
    }

    /// What refuses growth.
    pub const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Who has entered which account; `None` where nobody can.
    pub const fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// The same; `None` too while nobody has entered anything, so that nobody need be looked up.
    pub fn membership_if_any(&self) -> Option<&Membership> {
        let is_entered = self.read_state().map_or(true, |state| state.entered != 0);
        self.membership.as_ref().filter(|_| is_entered)
    }

    /// Who pays for subordinate uids.
    pub const fn subordinates(&self) -> &SubordinateTable {
        &self.subordinates
    }

    /// The accounts.
    pub const fn accounts(&self) -> &AccountTable {
        &self.accounts
    }

    /// Sets what can change while it runs, and that this process is bursard.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn configure(&self, settings: &Settings) -> Result<(), Error> {
        self.run_configure(settings, false)
    }

    /// Processes of these programs, and of no others, go after others from now on.
    ///
    /// # Errors
    /// When a map or a program cannot be used; then some of them may be.
    pub fn spare(&self, programs: &[ProgramFile<'_>]) -> Result<(), Error> {
        self.spared_programs.put_in_force(programs)
    }

    /// Processes in these control groups are nobody's; they count as such from [`Self::configure`] on.
    ///
    /// # Errors
    /// When the map cannot be written; then some of them are.
    pub fn exempt(&self, groups: &[ExemptCgroup]) -> Result<(), Error> {
        self.exempt_cgroups.put_in_force(groups)
    }

    /// All limits are set: starts the timer, decides from now on, and sends any kernel half before
    /// it away.
    ///
    /// # Errors
    /// When a program cannot be run or an old pin cannot be removed.
    pub fn take_charge(&mut self, settings: &Settings) -> Result<(), Error> {
        if let Some(membership) = &self.membership {
            for old in &self.previous_halves {
                membership.take_over(old)?;
            }
        }
        self.resum_now()?;
        if self.read_state()?.timer_walks_tasks == 0 {
            self.walk_tasks()?;
        }
        self.run_configure(settings, true)?;
        self.remove_previous()
    }

    fn run_configure(&self, settings: &Settings, in_charge: bool) -> Result<(), Error> {
        let mut args = configure_args {
            uid_min: settings.uid_min.get(),
            raised_adj: settings.raised_adj.map_or(0, u32::from),
            exempts_cgroups: settings.exempts_cgroups.into(),
            in_charge: in_charge.into(),
            short_below_pages: settings.short_below.map_or(0, bursar_model::Pages::get),
            deaths_from_pages: settings.deaths_from.map_or(0, bursar_model::Pages::get),
            exempt: to_kernel(&settings.exempt),
            committed: to_kernel(&settings.committed),
        };
        let what = "configure the kernel half";
        call::run(self.configure.as_fd(), what, abi::bytes_of_mut(&mut args))
    }

    fn remove_previous(&mut self) -> Result<(), Error> {
        for old in std::mem::take(&mut self.previous_halves) {
            self.undelivered.of(&old)?;
            // Until they are recorded they are in our memory only.
            self.recorded
                .note_waiting(self.undelivered.events.len() as u64)?;
        }
        Ok(())
    }

    /// What the kernel halves that were sent away had told and nobody had read yet. Given once.
    pub fn take_undelivered(&mut self) -> Undelivered {
        std::mem::take(&mut self.undelivered)
    }

    /// What accounts of the kernel halves being replaced remember.
    pub fn inherited(&self) -> Vec<(AccountId, History)> {
        self.previous_halves
            .iter()
            .flat_map(previous::read_histories)
            .collect()
    }

    /// Makes a re-sum happen now and waits until one that began after this call is done.
    ///
    /// # Errors
    /// When the timer cannot be armed, or does not answer within two seconds.
    pub fn resum_now(&self) -> Result<(), Error> {
        if !self.has_timer {
            return self.walk_tasks();
        }
        let before = self.read_state()?;
        let deadline = Instant::now() + Duration::from_secs(2);
        if before.timer_running != 0 && before.timer_walks_tasks == 0 {
            self.walk_tasks()?;
        }
        call::run(self.start_timer.as_fd(), "start the timer", &mut [])?;
        loop {
            // The re-sum that begins takes the wish away, and says when it has ended.
            let now = self.read_state()?;
            if now.walk_wanted == 0 && now.resuming_ns == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(Error::Io {
                    what: "wait for the kernel half's timer",
                    source: std::io::ErrorKind::TimedOut.into(),
                });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Finds processes that have no record: in the timer's time, or in ours where it does not look.
    ///
    /// # Errors
    /// As [`Self::resum_now`].
    pub fn find_unrecorded(&self) -> Result<(), Error> {
        match self.pins.path("link_discover").exists() {
            true => self.walk_tasks(),
            false => self.resum_now(),
        }
    }

    /// Meets every task of the machine once, in our own time: for kernels whose timer cannot.
    fn walk_tasks(&self) -> Result<(), Error> {
        let link = self.pins.link("link_discover")?;
        call::walk(&link, "walk all tasks", Duration::from_secs(10))
    }

    /// Has a timer count files in tmpfs, where that could be loaded. tmpfs is found by a file of ours.
    fn start_files(&self) -> Result<(), Error> {
        let Ok(program) = self.pins.program("start_files") else {
            return Ok(());
        };
        if !self.has_timer {
            return Ok(()); // nobody would look at the numbers
        }
        let what = "have files in tmpfs counted";
        let file = rustix::fs::memfd_create("bursar", rustix::fs::MemfdFlags::CLOEXEC);
        let file = file.map_err(|errno| Error::Io {
            what,
            source: errno.into(),
        })?;
        let mut args = count_files_args {
            fd: file.as_raw_fd(),
            pad: 0,
        };
        call::run(program.as_fd(), what, abi::bytes_of_mut(&mut args))
    }

    /// Counts all files in tmpfs now, in our own time. Returns whether all were met: they may change
    /// too fast, and beyond four million nobody looks.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn count_files(&self) -> Result<bool, Error> {
        let Some(program) = &self.count_files else {
            return Ok(false);
        };
        match call::run(program.as_fd(), "count files in tmpfs", &mut []) {
            Ok(()) => Ok(true),
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::WouldBlock => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// S1's run_oom_killer, for the thread that reads the events.
    ///
    /// # Errors
    /// When its pin cannot be opened.
    pub fn oom_killer(&self) -> Result<crate::OomKiller, Error> {
        Ok(crate::OomKiller(self.pins.program("run_oom_killer")?))
    }

    /// The events, those that nobody has read yet included. Whoever reads them here keeps none: it is for benches.
    ///
    /// # Errors
    /// When the ring buffer cannot be mapped.
    pub fn event_ring(&self) -> Result<EventRing, Error> {
        EventRing::new(&self.events)
    }

    /// The same for another thread, which opens it there and keeps what it takes until that is recorded.
    ///
    /// # Errors
    /// When descriptors run out, or there is such a thread already.
    pub fn event_source(&mut self) -> Result<EventSource, Error> {
        let (taken, left) = self.left.take().ok_or(Error::Io {
            what: "read the kernel half's events",
            source: std::io::ErrorKind::ResourceBusy.into(),
        })?;
        EventSource::new(&self.events, taken, left)
    }

    /// What of them is recorded.
    pub const fn recorded_events(&mut self) -> &mut RecordedEvents {
        &mut self.recorded
    }

    /// The beancounters of this kernel half.
    pub fn beancounters(&self, options: &Options) -> Beancounters {
        Beancounters::new(self.pins.clone(), options.clone())
    }

    /// The way to PSS scans, for the thread that makes them.
    ///
    /// # Errors
    /// When a pin cannot be opened.
    pub fn pss_scans(&self) -> Result<PssScans, Error> {
        PssScans::open(&self.pins, self.accounts.mapped())
    }

    /// What it counted about itself.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn facts(&self) -> Result<Facts, Error> {
        Ok(Facts::new(
            &self.read_state()?,
            self.has_event,
            query::skipped_runs(&self.on_rss_stat),
        ))
    }
}

/// What there is less of than the kernel half has room for is empty.
fn to_kernel<const ROOM: usize>(ranges: &[(Uid, Uid)]) -> [uid_range; ROOM] {
    let mut all = [uid_range { first: 1, last: 0 }; ROOM];
    for (range, &(first, last)) in all.iter_mut().zip(ranges) {
        *range = uid_range {
            first: first.get(),
            last: last.get(),
        };
    }
    all
}
