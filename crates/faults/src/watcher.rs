// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's side of a watch: loads bpf/faults.bpf.c, attaches it for as long as the watch lasts,
//! and reads what it counted. Nothing is pinned: with the watcher gone, all of it is gone.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bursar_host::machine;
use bursar_model::{Pid, Uid};
use bursar_pod::{self as pod, Pod};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::begin_hooks::{BeginHooks, Edge};
use crate::booked::Booked;
use crate::error::{ATTACH, refused};
use crate::skeleton::types::{
    counting, counts, fault_record, histograms, seen, site_key, target, target_kind, thread_state,
    unbooked,
};
use crate::skeleton::{FaultsSkel, FaultsSkelBuilder};
use crate::snapshot::{FaultRecord, Losses, Mapping, Site, Snapshot, WatchedProcess};
use crate::switches::Switches;
use crate::timing::Timer;
use crate::{Error, Histogram, Timing, task_iterator};

/// What to watch, and how closely.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    /// Processes and users.
    pub targets: Vec<Target>,
    /// Children of watched processes are watched as well.
    pub follow_children: bool,
    /// Whether the end of faults is watched, too: for latencies and instructions.
    pub timing: Timing,
    /// How many faults are recorded whole, with their stack.
    pub max_records: u64,
}

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All threads of a process.
    Process(Pid),
    /// One thread, and those that it starts.
    Thread(Pid),
    /// All processes of a user (the real uid).
    User(Uid),
}

/// A watch that is going on.
pub struct Watcher {
    /// Dropped in this order: first nobody times, then nobody counts.
    timer: Timer,
    _life: Vec<Link>,
    skel: FaultsSkel<'static>,
    peek: Link,
    /// Held while the hooks at which faults begin come and go.
    edge: Edge,
    records: RingBuffer<'static>,
    inbox: Receiver<FaultRecord>,
}

const LOAD: &str = "load the programs that watch page faults";

impl Watcher {
    /// Loads and attaches. From here on faults of the targets are counted, and those of `newborn`, a
    /// process that does not run yet: all that it has done so far counts, too.
    ///
    /// # Errors
    /// When this kernel cannot, or we may not, or `newborn` is gone.
    pub fn start(options: &WatchOptions, newborn: Option<BorrowedFd<'_>>) -> Result<Self, Error> {
        // libbpf's own words would go to stderr; the error says what matters.
        libbpf_rs::set_print(None);
        // A process has one watcher or few, and the object must outlive everything made from it.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = FaultsSkelBuilder::default()
            .open(storage)
            .map_err(refused(LOAD))?;
        let knobs = open
            .maps
            .rodata_data
            .as_deref_mut()
            .ok_or(Error::Unsupported {
                what: LOAD,
                reason: "the object's constants are missing".to_owned(),
            })?;
        knobs.has_targets = u32::from(!options.targets.is_empty());
        knobs.follow_children = u32::from(options.follow_children);
        knobs.max_records = options.max_records;
        knobs.own_tgid = std::process::id();
        let cpus = machine::possible_cpus(Path::new("/sys"))?;
        open.maps
            .seen_on
            .set_max_entries(cpus)
            .map_err(refused(LOAD))?;
        let mut skel = open.load().map_err(refused(LOAD))?;

        for each in &options.targets {
            let (kind, id) = match each {
                Target::Process(pid) => (target_kind::TARGET_PROCESS, pid.get()),
                Target::Thread(tid) => (target_kind::TARGET_THREAD, tid.get()),
                Target::User(uid) => (target_kind::TARGET_USER, uid.get()),
            };
            let key = target { kind, id };
            skel.maps
                .targets
                .update(pod::bytes_of(&key), &1u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(|_| {
                    Error::TooLarge(
                        "a watch can name 1024 processes, threads and users; watch fewer at once"
                            .to_owned(),
                    )
                })?;
        }

        // Before any fault is seen: one of a process that is not watched is remembered as such.
        if let Some(pidfd) = newborn {
            adopt(&mut skel, pidfd)?;
        }
        let attach = refused(ATTACH);
        let progs = &skel.progs;
        let life = vec![
            progs.on_fork.attach().map_err(&attach)?,
            progs.on_exec.attach().map_err(&attach)?,
            progs.on_switch.attach().map_err(&attach)?,
        ];
        let peek = progs.peek_threads.attach().map_err(&attach)?;
        let own = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned()
                .map_err(Error::io("keep a program at hand"))
        };
        let edge = Edge::default();
        let begins = BeginHooks::attach(
            vec![
                own(progs.on_user_fault.as_fd())?,
                own(progs.on_kernel_fault.as_fd())?,
            ],
            progs.settle_threads.attach().map_err(&attach)?,
            Edge::clone(&edge),
        )?;
        if !options.targets.is_empty() {
            task_iterator::run(&progs.find_threads.attach().map_err(&attach)?)?;
        }

        let (outbox, inbox) = channel();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&skel.maps.records, move |bytes| {
                if let Some(record) = pod::read::<fault_record>(bytes) {
                    // The receiver lives as long as this closure.
                    let _ = outbox.send(FaultRecord::decode(&record));
                }
                0
            })
            .map_err(&attach)?;
        let records = builder.build().map_err(&attach)?;
        let ends = [
            own(progs.on_minor_end.as_fd())?,
            own(progs.on_major_end.as_fd())?,
        ];
        let switches = MapHandle::try_from(&skel.maps.data_switches).map_err(&attach)?;
        let timer = Timer::start(options.timing, ends, begins, Switches::new(switches))?;
        Ok(Self {
            timer,
            skel,
            _life: life,
            peek,
            edge,
            records,
            inbox,
        })
    }

    /// Watched threads that have not ended.
    pub fn threads_alive(&self) -> u64 {
        self.state().map_or(0, |state| state.threads_alive)
    }

    fn state(&self) -> Option<crate::skeleton::types::watch_state> {
        let data = self.skel.maps.data_data.as_deref()?;
        // SAFETY: a live mapping of the map; the kernel writes it meanwhile, hence volatile.
        Some(unsafe { std::ptr::read_volatile(&raw const data.state) })
    }

    /// The last snapshot, and the end of the watch. `timeout` is how long threads that are about to
    /// end may take: a process can be waited for before its threads have left their CPUs.
    ///
    /// # Errors
    /// When the counts cannot be read.
    pub fn finish(self, timeout: Duration) -> Result<Snapshot, Error> {
        let deadline = Instant::now() + timeout;
        let unfinished = loop {
            let known = self.unbooked()?.len() as u64;
            let unfinished = self.threads_alive().saturating_sub(known);
            if unfinished == 0 || Instant::now() >= deadline {
                break unfinished;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let mut last = self.snapshot()?;
        last.losses.unfinished = unfinished;
        Ok(last)
    }

    /// What threads have not booked yet.
    fn unbooked(&self) -> Result<Vec<unbooked>, Error> {
        let bytes = task_iterator::run(&self.peek)?;
        Ok(bytes
            .chunks(size_of::<unbooked>())
            .filter_map(pod::read)
            .collect())
    }

    /// What each CPU has seen and not booked.
    fn seen(&self) -> Result<Vec<seen>, Error> {
        let map = &self.skel.maps.seen_on;
        let values: Result<Vec<_>, _> = (0..map.max_entries())
            .map(|cpu| map.lookup(&cpu.to_ne_bytes(), MapFlags::ANY))
            .collect();
        let values = values.map_err(refused("read the counts"))?;
        Ok(values
            .iter()
            .flatten()
            .filter_map(|bytes| pod::read(bytes))
            .collect())
    }

    /// From now on faults are recorded whole, as many as were asked for. Only with [`Timing::Each`].
    ///
    /// # Errors
    /// When the programs cannot be told.
    pub fn record(&mut self) -> Result<(), Error> {
        self.timer.record()
    }

    /// Faults recorded whole since the last call.
    ///
    /// # Errors
    /// When the ring buffer cannot be read.
    pub fn records(&mut self) -> Result<Vec<FaultRecord>, Error> {
        self.records
            .consume()
            .map_err(refused("read recorded faults"))?;
        Ok(self.inbox.try_iter().collect())
    }

    /// What has been counted so far.
    ///
    /// # Errors
    /// When the maps cannot be read.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let _edge = self.edge.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state().unwrap_or_default();
        let Some(bss) = self.skel.maps.bss_data.as_deref() else {
            return Err(Error::Unsupported {
                what: "read the counts",
                reason: "the object's data are missing".to_owned(),
            });
        };
        let used = |count: u32, all: usize| (count as usize).min(all);
        let processes = (0..used(state.processes, bss.processes.len()))
            .filter_map(|index| bss.processes.get(index))
            .map(WatchedProcess::decode)
            .collect();
        let slots = used(state.slots, bss.slots.len());
        let mut mappings = Vec::with_capacity(slots);
        for (index, slot) in bss.slots.iter().enumerate().take(slots) {
            let key = u32::try_from(index).unwrap_or(0).to_ne_bytes();
            let counts = sum_of(&percpu::<counts>(&self.skel.maps.slot_counts, &key)?);
            let mut booked = Booked::default();
            booked.add(counts.minor, counts.major);
            mappings.push((Mapping::decode(index, slot, &counts), booked));
        }
        let (mappings, mut booked): (Vec<_>, Vec<_>) = mappings.into_iter().unzip();
        for seen in self.seen()? {
            let entries = seen.entries.cast_signed();
            for (slot, minor) in [(seen.slot, entries), (seen.kernel_slot, -entries)] {
                if let Some(sum) = booked.get_mut(slot as usize) {
                    sum.minor += minor;
                }
            }
        }
        for rest in self.unbooked()? {
            if let Some(sum) = booked.get_mut(rest.slot as usize) {
                sum.add(rest.minor, rest.major);
            }
        }
        let (minor, major) = self.latencies()?;
        Ok(Snapshot {
            processes,
            minor,
            major,
            sites: self.sites(),
            losses: Losses::decode(&state),
            ..Snapshot::of(mappings, booked)
        })
    }

    /// Of minor and of major faults.
    fn latencies(&self) -> Result<(Histogram, Histogram), Error> {
        let mut minor = Merge::default();
        let mut major = Merge::default();
        for part in percpu::<histograms>(&self.skel.maps.latencies, &0u32.to_ne_bytes())? {
            minor.add(&part.minor, part.minor_ns, part.minor_max_ns);
            major.add(&part.major, part.major_ns, part.major_max_ns);
        }
        Ok((minor.done(), major.done()))
    }

    fn sites(&self) -> Vec<Site> {
        let map = &self.skel.maps.sites;
        let mut sites: Vec<Site> = map
            .keys()
            .filter_map(|key| {
                let count = map.lookup(&key, MapFlags::ANY).ok()??;
                let count = u64::from_ne_bytes(count.get(..8)?.try_into().ok()?);
                let key = pod::read::<site_key>(&key)?;
                Some(Site {
                    mapping: key.slot as usize,
                    instruction: key.instruction,
                    count,
                })
            })
            .collect();
        sites.sort_by_key(|site| std::cmp::Reverse(site.count));
        sites
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("threads_alive", &self.threads_alive())
            .finish_non_exhaustive()
    }
}

/// Takes a process among the watched threads with all that it has counted so far.
fn adopt(skel: &mut FaultsSkel<'static>, pidfd: BorrowedFd<'_>) -> Result<(), Error> {
    let state = thread_state {
        counting: counting::COUNTING,
        ..thread_state::default()
    };
    if let Some(data) = skel.maps.data_data.as_deref_mut() {
        data.state.threads_alive += 1;
    }
    skel.maps
        .threads
        .update(
            &pidfd.as_raw_fd().to_ne_bytes(),
            pod::bytes_of(&state),
            MapFlags::NO_EXIST,
        )
        .map_err(refused("watch a new process"))
}

/// Each CPU's part of a value.
fn percpu<T: Pod>(map: &impl MapCore, key: &[u8]) -> Result<Vec<T>, Error> {
    let parts = map
        .lookup_percpu(key, MapFlags::ANY)
        .map_err(refused("read the counts"))?;
    Ok(parts
        .iter()
        .flatten()
        .filter_map(|bytes| pod::read(bytes))
        .collect())
}

/// All CPUs' parts of a slot's counts, which are what they are only in sum.
fn sum_of(parts: &[counts]) -> counts {
    parts.iter().fold(counts::default(), |sum, part| counts {
        minor: sum.minor.wrapping_add(part.minor),
        major: sum.major.wrapping_add(part.major),
        timed: sum.timed.wrapping_add(part.timed),
        timed_protected: sum.timed_protected.wrapping_add(part.timed_protected),
    })
}

#[derive(Debug, Default)]
struct Merge {
    counts: Vec<u64>,
    sum_ns: u64,
    max_ns: u64,
}

impl Merge {
    fn add(&mut self, counts: &[u64], sum_ns: u64, max_ns: u64) {
        self.counts.resize(counts.len().max(self.counts.len()), 0);
        for (sum, count) in self.counts.iter_mut().zip(counts) {
            *sum = sum.saturating_add(*count);
        }
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
        self.max_ns = self.max_ns.max(max_ns);
    }

    fn done(self) -> Histogram {
        Histogram::new(self.counts, self.sum_ns, self.max_ns)
    }
}

// SAFETY: integers and arrays of integers, see faults.h.
unsafe impl Pod for counts {}
// SAFETY: as above.
unsafe impl Pod for histograms {}
// SAFETY: as above.
unsafe impl Pod for site_key {}
// SAFETY: as above.
unsafe impl Pod for seen {}
// SAFETY: as above.
unsafe impl Pod for target {}
// SAFETY: as above.
unsafe impl Pod for thread_state {}
// SAFETY: as above.
unsafe impl Pod for fault_record {}

// SAFETY: as above.
unsafe impl Pod for unbooked {}
