// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench-allocator`: S1 section 6.2's evaluation program. It "just allocates some size of
//! memory, and fills it with zero", as one process or several, and says what that took.
//!
//! A program of its own, so that what is forked is small and the same in every measurement.
//!
//! ```text
//! bursar-bench-allocator UID PROCESSES BYTES ITERATIONS BUDGET_MS [CGROUP_PROCS_FILE]
//! bursar-bench-allocator UID faults BYTES ITERATIONS BUDGET_MS [CGROUP_PROCS_FILE]
//! ```
//!
//! One iteration starts that many processes; each allocates (malloc), fills (memset), frees and
//! exits. It ends after so many iterations, or at the first one that began after BUDGET_MS. `faults`
//! instead times the first touch of every page alone, in this process, on one CPU. The answer is one
//! line: iterations, user+system time in microseconds, minor faults, nanoseconds spent in touching.

use std::process::exit;
use std::time::{Duration, Instant};

fn fail(what: &str) -> ! {
    eprintln!(
        "bursar-bench-allocator: {what}: {}",
        std::io::Error::last_os_error()
    );
    exit(1)
}

fn number(arguments: &[String], index: usize) -> u64 {
    let text = arguments.get(index).map_or("", String::as_str);
    text.parse()
        .unwrap_or_else(|_| fail(&format!("argument {index}: {text:?}")))
}

fn enter(arguments: &[String]) {
    if let Some(cgroup) = arguments.get(6)
        && std::fs::write(cgroup, "0").is_err()
    {
        fail(&format!("enter {cgroup}"));
    }
    let uid = number(arguments, 1) as u32;
    // SAFETY: plain system calls on numbers.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(uid, uid, uid) != 0
            || libc::setresuid(uid, uid, uid) != 0
    };
    if failed {
        fail("become the user");
    }
}

/// What S1's program does.
fn allocate(bytes: usize) {
    // SAFETY: the block is `bytes` long; it is checked, filled and freed once.
    unsafe {
        // Hidden from the compiler, which knows malloc and memset of zero to be calloc and would leave
        // fresh pages untouched.
        let block = std::hint::black_box(libc::malloc(bytes));
        if block.is_null() {
            fail("allocate");
        }
        libc::memset(block, 0, bytes);
        libc::free(std::hint::black_box(block));
    }
}

fn microseconds(usage: &libc::rusage) -> u64 {
    let of = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn usage_of(whom: libc::c_int) -> libc::rusage {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a live local.
    if unsafe { libc::getrusage(whom, &mut usage) } != 0 {
        fail("getrusage");
    }
    usage
}

/// One iteration: so many processes at a time.
fn iterate(processes: u64, bytes: usize) {
    for _ in 0..processes {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => {
                allocate(bytes);
                // SAFETY: ends this process; there is nothing to flush.
                unsafe { libc::_exit(0) }
            }
            child if child > 0 => {}
            _ => fail("fork"),
        }
    }
    for _ in 0..processes {
        let mut status = 0;
        // SAFETY: waits for a child of ours; a pointer to a live local.
        if unsafe { libc::wait(&mut status) } < 0 {
            fail("wait");
        }
        if status != 0 {
            eprintln!("bursar-bench-allocator: a process ended with status {status:#x}");
            exit(1);
        }
    }
}

fn cpu_nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a pointer to a live local.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The first touch of each page; returns nanoseconds.
fn touch(bytes: usize) -> u64 {
    // SAFETY: a fresh anonymous mapping wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | libc::MAP_PRIVATE,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        fail("map");
    }
    // SAFETY: the mapping just made. Small pages, whatever the machine likes: one fault, one page.
    unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    let began = cpu_nanoseconds();
    for offset in (0..bytes).step_by(4096) {
        // SAFETY: inside the mapping.
        unsafe { at.cast::<u8>().add(offset).write_volatile(1) };
    }
    let spent = cpu_nanoseconds() - began;
    // SAFETY: a mapping of ours that nobody uses any more.
    unsafe { libc::munmap(at, bytes) };
    spent
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    enter(&arguments);
    let is_faults = arguments.get(2).is_some_and(|it| it == "faults");
    let processes = if is_faults { 1 } else { number(&arguments, 2) };
    let bytes = number(&arguments, 3) as usize;
    let iterations = number(&arguments, 4);
    let budget = Duration::from_millis(number(&arguments, 5));
    let began = Instant::now();
    let (mut done, mut touching) = (0, 0);
    let own = usage_of(libc::RUSAGE_SELF);
    while done < iterations && (done == 0 || began.elapsed() < budget) {
        if is_faults {
            touching += touch(bytes);
        } else {
            iterate(processes, bytes);
        }
        done += 1;
    }
    // As time(1) counts: the program and its children.
    let (after, children) = (usage_of(libc::RUSAGE_SELF), usage_of(libc::RUSAGE_CHILDREN));
    let spent = microseconds(&after) - microseconds(&own) + microseconds(&children);
    let faults = after.ru_minflt - own.ru_minflt + children.ru_minflt;
    println!("{done} {spent} {faults} {touching}");
}
