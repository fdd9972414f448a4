// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench-malloc`: the allocation patterns that allocators are compared by (those of mimalloc-bench,
//! written anew), and the ones that showed faults in tmalloc.
//!
//! ```text
//! bursar-bench-malloc UID PATTERN
//! ```
//!
//! Which malloc that is, LD_PRELOAD says. The answer is one line: user and system time in microseconds, the
//! same of the clock, resident KiB at most and at the end.

use std::collections::VecDeque;
use std::process::exit;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn fail(what: &str) -> ! {
    eprintln!("bursar-bench-malloc: {what}");
    exit(1)
}

/// A block, in use: each of its pages is written to. Freed when it is dropped.
struct Block {
    start: *mut u8,
    size: usize,
}

// SAFETY: nobody else knows the block.
unsafe impl Send for Block {}

impl Block {
    /// Not touched.
    fn sparse(size: usize) -> Self {
        // SAFETY: no pointers.
        let start: *mut u8 = unsafe { libc::malloc(size) }.cast();
        if start.is_null() {
            fail("malloc answered NULL");
        }
        Self { start, size }
    }

    fn new(size: usize) -> Self {
        let mut block = Self::sparse(size);
        block.touch(0, PAGE);
        block
    }

    /// Writes to its bytes from `from` on, `step` apart, and to its last one.
    fn touch(&mut self, from: usize, step: usize) {
        for at in (from..self.size)
            .step_by(step)
            .chain(self.size.checked_sub(1))
        {
            // SAFETY: inside the block.
            unsafe { self.start.add(at).write_volatile(1) };
        }
    }

    fn grow(&mut self, size: usize) {
        let before = self.size;
        // SAFETY: a block of ours, which is the new one from now on.
        let start: *mut u8 = unsafe { libc::realloc(self.start.cast(), size) }.cast();
        if start.is_null() {
            fail("realloc answered NULL");
        }
        (self.start, self.size) = (start, size);
        self.touch(before, PAGE);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: a block of ours.
        unsafe { libc::free(self.start.cast()) };
    }
}

/// xorshift64* (Vigna 2016): the same numbers in each run.
struct Dice(u64);

impl Dice {
    fn new(seed: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound as u64) as usize
    }

    /// Small ones are the most frequent: as many between 16 and 32 as between 32 and 64.
    fn size(&mut self, doublings: usize) -> usize {
        let power = self.below(doublings);
        (16 << power) + self.below(16 << power)
    }
}

fn in_threads(count: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..count {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
}

/// Of `alive` blocks a random one is replaced, so many times.
fn replace(seed: usize, alive: usize, times: usize, size: impl Fn(&mut Dice) -> usize) {
    let mut dice = Dice::new(seed);
    let mut blocks: Vec<Option<Block>> = Vec::new();
    blocks.resize_with(alive, || None);
    for _ in 0..times {
        let size = size(&mut dice);
        let place = dice.below(alive);
        blocks[place] = Some(Block::new(size));
    }
}

/// alloc-test: sizes and lifetimes at random.
fn lifetimes(thread: usize) {
    replace(thread, 8192, 2_000_000, |dice| dice.size(6));
}

/// cfrac: numbers of a few words that live for a few operations.
fn tiny() {
    let mut dice = Dice::new(0);
    let mut alive = VecDeque::new();
    for _ in 0..6_000_000 {
        alive.push_back(Block::new(16 + dice.below(48)));
        if alive.len() > 12 {
            alive.pop_front();
        }
    }
}

/// larson: threads that end, and hand their blocks to the next one.
fn generations(thread: usize) {
    let mut blocks: Vec<Block> = (0..1000).map(|_| Block::new(16)).collect();
    for generation in 0..40 {
        let own = std::thread::spawn(move || {
            let mut dice = Dice::new(thread * 1000 + generation);
            for _ in 0..12_000 {
                let (place, size) = (dice.below(blocks.len()), 8 + dice.below(1000));
                blocks[place] = Block::new(size);
            }
            blocks
        });
        blocks = own.join().unwrap_or_else(|_| fail("a thread failed"));
    }
}

/// xmalloc: one thread allocates, another frees.
fn handed_over(thread: usize) {
    let (give, take) = sync_channel::<Vec<Block>>(8);
    let freeing = std::thread::spawn(move || take.into_iter().for_each(drop));
    let mut dice = Dice::new(thread);
    for _ in 0..4000 {
        let batch = (0..120).map(|_| Block::new(dice.size(5))).collect();
        if give.send(batch).is_err() {
            fail("a thread failed");
        }
    }
    drop(give);
    if freeing.join().is_err() {
        fail("a thread failed");
    }
}

/// sh6bench, sh8bench: batches of one size each, freed in the order they came in or in the opposite one.
fn batches(thread: usize) {
    for round in 0..60 {
        for size in [24, 40, 72, 136, 264, 520, 1000] {
            let mut batch: Vec<Block> = (0..2000).map(|_| Block::new(size + thread)).collect();
            if round % 2 == 0 {
                batch.reverse();
            }
        }
    }
}

/// mstress: generations of blocks of very different sizes, each of which a part survives.
fn stress(thread: usize) {
    let mut dice = Dice::new(thread);
    let mut kept = Vec::new();
    for _ in 0..40 {
        let mut own: Vec<Block> = (0..2500).map(|_| Block::new(dice.size(11))).collect();
        while own.len() > 250 {
            let place = dice.below(own.len());
            own.swap_remove(place);
        }
        kept.append(&mut own);
        while kept.len() > 4000 {
            let place = dice.below(kept.len());
            kept.swap_remove(place);
        }
    }
}

/// cache-scratch: each thread takes a small block, works in it, and frees it.
fn scratch(thread: usize) {
    for round in 0..4000 {
        let mut block = Block::new(8 + (thread + round) % 8);
        for _ in 0..300 {
            block.touch(0, 1);
        }
    }
}

/// malloc-large: few blocks of 5 to 25 MiB.
fn large() {
    replace(0, 8, 60, |dice| 5 * MIB + dice.below(20 * MIB));
}

/// Tables that grow by realloc.
fn growing() {
    let mut dice = Dice::new(0);
    for _ in 0..1600 {
        let mut tables: Vec<Block> = (0..16).map(|_| Block::new(64)).collect();
        for _ in 0..180 {
            let place = dice.below(tables.len());
            let size = tables[place].size;
            tables[place].grow(size + size / 2 + 16);
            if tables[place].size > 2 * MIB {
                tables[place] = Block::new(64);
            }
        }
    }
}

/// A buffer of 40 MiB for a millisecond, again and again; hardly used.
fn buffers() {
    for _ in 0..300 {
        let mut block = Block::sparse(40 * MIB);
        block.touch(0, 4 * MIB);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// 1 GiB, of which a page in 256 is used, and small blocks beside it.
fn sparse() {
    let mut block = Block::sparse(1024 * MIB);
    block.touch(0, 256 * PAGE);
    replace(0, 4096, 1_500_000, |dice| dice.size(6));
}

/// A program in its steady state: few blocks of middling sizes, replaced again and again.
fn steady() {
    replace(0, 64, 300_000, |dice| 1000 + dice.below(60_000));
}

/// A heap that grows to 200 MiB, block by block, and is freed.
fn filling() {
    let mut dice = Dice::new(0);
    let mut blocks = Vec::new();
    let mut bytes = 0;
    while bytes < 200 * MIB {
        let size = dice.size(9);
        blocks.push(Block::new(size));
        bytes += size;
    }
}

fn become_user(uid: &str) {
    let uid: u32 = uid.parse().unwrap_or_else(|_| fail("UID is a number"));
    // SAFETY: plain system calls on numbers.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(uid, uid, uid) != 0
            || libc::setresuid(uid, uid, uid) != 0
    };
    if failed {
        fail("cannot become the user");
    }
}

/// User and system time so far, and resident KiB at most.
fn usage() -> (u64, i64) {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let of = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (of(usage.ru_utime) + of(usage.ru_stime), usage.ru_maxrss)
}

fn resident_kib() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    pages.unwrap_or(0usize) * PAGE / 1024
}

fn main() {
    let began = Instant::now();
    let mut arguments = std::env::args().skip(1);
    become_user(&arguments.next().unwrap_or_default());
    let pattern = arguments.next().unwrap_or_default();
    match pattern.as_str() {
        "lifetimes" => lifetimes(0),
        "lifetimes-4" => in_threads(4, |thread| lifetimes(thread * 7)),
        "tiny" => tiny(),
        "generations" => in_threads(4, generations),
        "handed-over" => in_threads(2, handed_over),
        "batches" => in_threads(2, batches),
        "stress" => in_threads(2, stress),
        "scratch" => in_threads(4, scratch),
        "large" => large(),
        "growing" => growing(),
        "buffers" => buffers(),
        "sparse" => sparse(),
        "steady" => steady(),
        "filling" => filling(),
        other => fail(&format!("{other:?} is no pattern")),
    }
    let clock = began.elapsed().as_micros();
    let (cpu, peak) = usage();
    println!("{cpu} {clock} {peak} {}", resident_kib());
}
