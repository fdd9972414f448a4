// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The workload that makes allocations stall: readers that fill the page cache, and "compilers" that
//! start a process, fill some memory and end (S4 "Test and Metric", scaled down).
//!
//! Each is a process of its own, forked without exec: what stalls must be the memory it asks for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use serde::{Deserialize, Serialize};

const MIB: usize = 1 << 20;
const HUGE: usize = 2 * MIB;
/// A reader's stretch of its device, bytes: larger than any guest's memory.
const STRETCH: u64 = 8 << 30;
const BUCKETS: usize = 24;

/// What the workload is.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Load {
    /// How long, seconds
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Streams that read block devices
    #[arg(long, default_value_t = 2)]
    pub(crate) readers: u32,
    /// MiB a second of each
    #[arg(long, default_value_t = 30)]
    pub(crate) reader_mib: u32,
    /// Processes that start a child after the other
    #[arg(long, default_value_t = 3)]
    pub(crate) bursters: u32,
    /// MiB that a child fills before it ends
    #[arg(long, default_value_t = 48)]
    pub(crate) burst_mib: u32,
    /// Mean pause between children, milliseconds
    #[arg(long, default_value_t = 900)]
    pub(crate) gap_ms: u32,
    /// Children fill huge pages
    #[arg(long)]
    pub(crate) huge: bool,
    /// The sequence of pauses
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) read_mib: u64,
    pub(crate) bursts: u64,
    /// Bursts by the power of two of the milliseconds they took.
    pub(crate) burst_ms_log2: Vec<u64>,
    /// Time of all bursts together.
    pub(crate) burst_ms_total: u64,
}

/// Counters that all processes of a load share.
struct Board {
    cells: NonNull<[AtomicU64; 64]>,
}

const READ_BYTES: usize = 0;
const BURSTS: usize = 1;
const BURST_US: usize = 2;
const FIRST_BUCKET: usize = 8;

impl Board {
    fn new() -> Result<Self> {
        // SAFETY: a fresh mapping at an address the kernel chooses; it stays until the process ends.
        let memory = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let memory = memory.context("map the shared counters")?;
        let cells = NonNull::new(memory.cast()).context("map the shared counters")?;
        Ok(Self { cells })
    }

    fn cell(&self, index: usize) -> &AtomicU64 {
        // SAFETY: 64 cells of 8 bytes lie in the page that `new` mapped, zeroed, and never unmapped.
        let cells = unsafe { self.cells.as_ref() };
        &cells[index.min(cells.len() - 1)]
    }

    fn add(&self, index: usize, count: u64) {
        self.cell(index).fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self, index: usize) -> u64 {
        self.cell(index).load(Ordering::Relaxed)
    }
}

/// A small generator of pauses (xorshift64*); the same seed gives the same sequence.
struct Pauses(u64);

impl Pauses {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }
}

/// Runs `work` in a child that ends with it.
fn in_child(work: impl FnOnce() -> io::Result<()>) -> Result<libc::pid_t> {
    // SAFETY: this program has one thread, so the child may do whatever the parent may.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            let failed = work().is_err();
            // SAFETY: ends the child at once, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(failed)) }
        }
        pid => Ok(pid),
    }
}

fn wait_for(pid: libc::pid_t) -> Result<bool> {
    let mut status = 0;
    // SAFETY: `status` outlives the call; the pid is a child of ours that nobody else waits for.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    if waited != pid {
        return Err(io::Error::last_os_error()).context("wait for a child");
    }
    Ok(status == 0)
}

/// Runs the load; ends when all of its processes have.
pub(crate) fn run(load: &Load) -> Result<Done> {
    let board = Board::new()?;
    let end = Instant::now() + Duration::from_secs(load.seconds);
    let mut children = Vec::new();
    for id in 0..load.readers {
        children.push(in_child(|| read(&board, load, id, end))?);
    }
    for id in 0..load.bursters {
        children.push(in_child(|| burst_again_and_again(&board, load, id, end))?);
    }
    let mut failed = 0;
    for child in children {
        failed += u32::from(!wait_for(child)?);
    }
    if failed > 0 {
        bail!("{failed} processes of the load failed");
    }
    Ok(Done {
        read_mib: board.get(READ_BYTES) >> 20,
        bursts: board.get(BURSTS),
        burst_ms_log2: (0..BUCKETS)
            .map(|at| board.get(FIRST_BUCKET + at))
            .collect(),
        burst_ms_total: board.get(BURST_US) / 1000,
    })
}

fn read(board: &Board, load: &Load, id: u32, end: Instant) -> io::Result<()> {
    let device = File::open(format!("/dev/nullb{}", id % 4))?;
    let mut buffer = vec![1; MIB];
    let first = u64::from(id) * STRETCH;
    let mut offset = first;
    let mut begun = Instant::now();
    let mut done = 0_u64;
    while Instant::now() < end {
        let count = device.read_at(&mut buffer, offset)?;
        offset += count as u64;
        if offset >= first + STRETCH {
            offset = first;
        }
        done += count as u64;
        board.add(READ_BYTES, count as u64);
        if load.reader_mib == 0 {
            continue;
        }
        let due = Duration::from_secs_f64(done as f64 / MIB as f64 / f64::from(load.reader_mib));
        let late = begun.elapsed().saturating_sub(due);
        if late > Duration::from_secs(2) {
            // Held up for long: it does not try to make up for it.
            begun = Instant::now() - due;
        }
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(())
}

fn burst_again_and_again(board: &Board, load: &Load, id: u32, end: Instant) -> io::Result<()> {
    let mut pauses = Pauses(load.seed.wrapping_mul(1000).wrapping_add(u64::from(id) + 1));
    while Instant::now() < end {
        let begun = Instant::now();
        let child = in_child(|| burst(load)).map_err(io::Error::other)?;
        if wait_for(child).map_err(io::Error::other)? {
            let took = begun.elapsed();
            board.add(BURSTS, 1);
            board.add(BURST_US, took.as_micros() as u64);
            let bucket = (64 - (took.as_millis() as u64).leading_zeros()) as usize;
            board.add(FIRST_BUCKET + bucket.min(BUCKETS - 1), 1);
        }
        let gap = u64::from(load.gap_ms);
        std::thread::sleep(Duration::from_millis(gap / 2 + pauses.below(gap + 1)));
    }
    Ok(())
}

/// Fills memory and leaves it to the end of the process to give it back.
fn burst(load: &Load) -> io::Result<()> {
    let length = (load.burst_mib as usize) << 20;
    // SAFETY: a fresh private mapping at an address the kernel chooses, of this process alone.
    let memory = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            length + HUGE,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }?;
    let aligned = memory.map_addr(|address| (address + HUGE - 1) & !(HUGE - 1));
    let kind = if load.huge {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    // SAFETY: the range lies in the mapping just made, which is HUGE bytes longer than `length`.
    unsafe { madvise(aligned, length, kind) }?;
    let (step, advice) = if load.huge {
        (HUGE, None)
    } else {
        (MIB, Some(Advice::LinuxPopulateWrite))
    };
    for offset in (0..length).step_by(step) {
        let at = aligned.wrapping_byte_add(offset);
        match advice {
            // SAFETY: as above; populating writes zeros where there were zeros.
            Some(advice) => unsafe { madvise(at, step, advice) }?,
            // SAFETY: as above; nobody else has a pointer into the mapping.
            None => unsafe { at.cast::<u8>().write_volatile(1) },
        }
    }
    Ok(())
}

/// Breaks memory up: many small kernel objects among file pages, most of them freed again, so that
/// hardly a block of 2 MiB is left whole.
pub(crate) fn break_up(folder: &std::path::Path) -> Result<()> {
    const FILES: u32 = 100_000;
    std::fs::create_dir_all(folder).with_context(|| format!("make {folder:?}"))?;
    let path = |number: u32| folder.join(number.to_string());
    for number in 0..FILES {
        File::create(path(number)).with_context(|| format!("make file {number} in {folder:?}"))?;
    }
    for number in (0..FILES).filter(|number| number % 8 != 0) {
        std::fs::remove_file(path(number)).context("remove a file")?;
    }
    Ok(())
}
