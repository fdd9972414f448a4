// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench-grower UID SLOT CAP_BYTES [CGROUP_PROCS_FILE]`: a process that allocates as fast as
//! it can (S1 section 6.3), until it is killed or holds CAP_BYTES. Its standard input is the board
//! (src/board.rs): it starts when that says go, and keeps its own page count there.

#[path = "../board.rs"]
mod board;

use std::os::fd::AsFd;
use std::process::exit;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use board::{Board, monotonic_ns};

const PAGE: u64 = 4096;
/// Pages that one page table maps.
const TABLE: u64 = 512;

fn fail(what: &str) -> ! {
    eprintln!(
        "bursar-bench-grower: {what}: {}",
        std::io::Error::last_os_error()
    );
    exit(1)
}

/// What this process holds already, pages, as bursar counts.
fn held_at_birth() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |key: &str| -> u64 {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|it| it.split_whitespace().next()?.parse().ok())
            .unwrap_or(0)
    };
    let keys = ["RssAnon", "RssShmem", "VmSwap", "VmPTE"];
    keys.iter().map(|key| of(key)).sum::<u64>() * 1024 / PAGE
}

fn sum(board: &Board) -> u64 {
    let living = board
        .slots
        .iter()
        .filter(|it| it.pid.load(Relaxed) != 0 && it.is_dead.load(Relaxed) == 0);
    living.map(|it| it.pages.load(Relaxed)).sum()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize| -> u64 {
        arguments
            .get(index)
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| fail("arguments"))
    };
    let (uid, slot, cap) = (number(1) as u32, number(2) as usize, number(3));
    if let Some(cgroup) = arguments.get(4)
        && std::fs::write(cgroup, "0").is_err()
    {
        fail("enter the cgroup");
    }
    let Ok(board) = Board::map(std::io::stdin().as_fd()) else {
        fail("map the board")
    };
    let Some(slot) = board.slots.get(slot) else {
        fail("no such slot")
    };
    // SAFETY: a fresh anonymous mapping wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            cap as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    // SAFETY: plain system calls on numbers.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(uid, uid, uid) != 0
            || libc::setresuid(uid, uid, uid) != 0
    };
    if at == libc::MAP_FAILED || failed {
        fail("begin");
    }
    let limit = board.limit_pages.load(Relaxed);
    let birth = held_at_birth();
    slot.pages.store(birth, Relaxed);
    slot.pid.store(u64::from(std::process::id()), SeqCst);
    while board.go.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    for page in 0..cap / PAGE {
        // SAFETY: inside the mapping.
        unsafe {
            at.cast::<u8>()
                .add((page * PAGE) as usize)
                .write_volatile(1)
        };
        slot.pages
            .store(birth + page + 1 + page / TABLE + 1, Relaxed);
        if board.crossed_ns.load(Relaxed) == 0 && sum(board) > limit {
            let _ = board
                .crossed_ns
                .compare_exchange(0, monotonic_ns(), SeqCst, Relaxed);
        }
    }
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}
