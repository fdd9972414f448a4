// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who waits for memory and how long: the object `bpf/stall/stall.bpf.c`, loaded, attached and read. It
//! lives as long as its [`StallMeter`]; nothing of it is pinned.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bursar_model::{Nanos, Uid};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::Error;
use crate::abi::{self, Pod};
use crate::mapped::Mapped;
use crate::older_kernels;
use crate::skeleton::stall::{self, types};

// SAFETY: integers and arrays of integers, see stall.h.
unsafe impl Pod for types::stall_row {}
// SAFETY: as above.
unsafe impl Pod for types::stall_total {}

/// `STALL_OTHERS` of stall.h.
const OTHERS: u32 = u32::MAX;
/// Spans of stall.h in which slow reactions count: two minutes.
const SPANS: u64 = 12;
const SPAN_NS: u64 = 10_000_000_000;

/// Stalls of one uid, or of all, since the meter was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StallRow {
    /// Allocations that had to reclaim by themselves.
    pub reclaims: u64,
    /// The time they took, nanoseconds.
    pub reclaim_ns: u64,
    /// Zones that allocations had to compact by themselves.
    pub compactions: u64,
    /// The time they took, nanoseconds.
    pub compaction_ns: u64,
    /// The longest of either, nanoseconds.
    pub longest_ns: u64,
    /// Times it emptied a zone so far that kswapd was woken: who does so causes the stalls.
    pub wakeups: u64,
}

/// All stalls, and how kswapd reacted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StallTotal {
    /// Of all users.
    pub all: StallRow,
    /// Stalls that were not timed because too many waited at once.
    pub untimed: u64,
    /// Stalls of users that found no row of their own.
    pub unattributed: u64,
    /// Times that kswapd was woken and came.
    pub reactions: u64,
    /// How slow it is in a bad moment, nanoseconds: of the spans of ten seconds in the last two minutes
    /// the slowest reaction of each, and of those the mean. `None` when it was not woken.
    pub slow_reaction_ns: Option<u64>,
    /// Direct reclaims by the power of two of their microseconds: bucket n is [2^(n−1), 2^n).
    pub reclaim_log2_us: [u64; 32],
    /// kswapd's reactions, likewise.
    pub reaction_log2_us: [u64; 32],
}

/// The attached programs and their maps.
#[derive(Debug)]
pub struct StallMeter {
    totals: Mapped<types::stall_total>,
    users: MapHandle,
    listening: MapHandle,
    wakeups: RingBuffer<'static>,
    /// The programs have been told to wake us, and have not done so yet as far as we know.
    is_listening: Arc<AtomicBool>,
    _links: Vec<Link>,
}

impl From<&types::stall_row> for StallRow {
    fn from(raw: &types::stall_row) -> Self {
        Self {
            reclaims: raw.reclaims,
            reclaim_ns: raw.reclaim_ns,
            compactions: raw.compactions,
            compaction_ns: raw.compaction_ns,
            longest_ns: raw.longest_ns,
            wakeups: raw.wakeups,
        }
    }
}

impl StallRow {
    /// Time in stalls of either kind, nanoseconds.
    pub const fn time_ns(&self) -> u64 {
        self.reclaim_ns.saturating_add(self.compaction_ns)
    }
}

impl StallMeter {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel lacks one of the events or does not let us.
    pub fn start() -> Result<Self, Error> {
        let unsupported = Error::unsupported("stall");
        let mut storage = MaybeUninit::uninit();
        let mut open = stall::StallSkelBuilder::default()
            .open(&mut storage)
            .map_err(unsupported)?;
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
        open.maps
            .wakeups
            .set_max_entries(page)
            .map_err(Error::io("size a map"))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.has_bpf_loop = older_kernels::has_loops();
        }
        older_kernels::fit_maps(open.open_object_mut(), 0)?;
        let skel = open.load().map_err(unsupported)?;
        let shared = Error::io("share a map of stalls");
        let totals = MapHandle::try_from(&skel.maps.totals).map_err(&shared)?;
        let users = MapHandle::try_from(&skel.maps.users).map_err(&shared)?;
        let listening = MapHandle::try_from(&skel.maps.listening).map_err(&shared)?;
        let mut builder = RingBufferBuilder::new();
        let is_listening = Arc::new(AtomicBool::new(false));
        let ear = Arc::clone(&is_listening);
        // That it came is all there is to it: who writes one no longer listens.
        let heard = move |_: &[u8]| {
            ear.store(false, Ordering::Relaxed);
            0
        };
        builder
            .add(&skel.maps.wakeups, heard)
            .map_err(Error::io("listen for stalls"))?;
        let wakeups = builder.build().map_err(Error::io("listen for stalls"))?;
        // The row of those who find no room must itself have room.
        let nobody = types::stall_row::default();
        users
            .update(&OTHERS.to_ne_bytes(), abi::bytes_of(&nobody), MapFlags::ANY)
            .map_err(Error::io("prepare the rows of stalls"))?;
        // Ends before beginnings: what ends without a beginning is nothing, the reverse would stay.
        let progs = &skel.progs;
        let links = [
            progs.on_reclaim_end.attach(),
            progs.on_compaction_end.attach(),
            progs.on_reclaim_begin.attach(),
            progs.on_compaction_begin.attach(),
            progs.on_kswapd_wake.attach(),
            progs.on_wakeup_kswapd.attach(),
        ];
        let links: Result<Vec<Link>, _> = links.into_iter().collect();
        Ok(Self {
            totals: Mapped::new(&totals)?,
            users,
            listening,
            wakeups,
            is_listening,
            _links: links.map_err(unsupported)?,
        })
    }

    /// All stalls up to `now` (CLOCK_MONOTONIC). Allocates nothing and makes no system call.
    pub fn total(&self, now: Nanos) -> StallTotal {
        let Some(raw) = self.totals.get(0) else {
            return StallTotal::default();
        };
        let span = now.get() / SPAN_NS;
        let slots = raw.span.iter().zip(&raw.slowest_ns);
        let recent = slots.filter(|(then, ns)| span.saturating_sub(**then) < SPANS && **ns > 0);
        let (count, sum) = recent.fold((0_u64, 0_u64), |(count, sum), (_, ns)| {
            (count.saturating_add(1), sum.saturating_add(*ns))
        });
        StallTotal {
            all: (&raw.all).into(),
            untimed: raw.tasks_full,
            unattributed: raw.users_full,
            reactions: raw.reactions,
            slow_reaction_ns: sum.checked_div(count),
            reclaim_log2_us: raw.reclaim_log2_us,
            reaction_log2_us: raw.reaction_log2_us,
        }
    }

    /// From now on the next stall, or the next time kswapd is woken, makes [`AsFd::as_fd`] readable,
    /// once. What was heard before is forgotten. No system call where nothing was heard since it was
    /// called last.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen(&self) -> Result<(), Error> {
        self.wakeups
            .consume()
            .map_err(Error::io("listen for stalls"))?;
        if self.is_listening.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.listening
            .update(&0_u32.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(Error::io("listen for stalls"))?;
        self.is_listening.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The rows of all users that have one; `None` is the row of those who found no room.
    pub fn users(&self) -> Vec<(Option<Uid>, StallRow)> {
        let keys = self.users.keys();
        let rows = keys.filter_map(|key| {
            let uid = u32::from_ne_bytes(key.get(..4)?.try_into().ok()?);
            let bytes = self.users.lookup(&key, MapFlags::ANY).ok()??;
            let row = StallRow::from(&abi::read::<types::stall_row>(&bytes)?);
            Some(((uid != OTHERS).then(|| Uid::new(uid)), row))
        });
        rows.filter(|(_, row)| *row != StallRow::default())
            .collect()
    }
}

/// Readable when there was a wakeup since [`StallMeter::listen`].
impl AsFd for StallMeter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the epoll fd lives as long as the ring buffer, which the borrow keeps alive.
        unsafe { BorrowedFd::borrow_raw(self.wakeups.epoll_fd().as_raw_fd()) }
    }
}
