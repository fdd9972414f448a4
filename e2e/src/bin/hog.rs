// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `hog`: a user's program, as the stories need them. Does the steps of its command line in order,
//! as the uid given first.
//!
//! ```text
//! hog uid=60001 hold=10M say=ready pause
//! hog uid=60001 fork=4 hold=1G pause
//! ```
//!
//! | step | what it does |
//! | --- | --- |
//! | `uid=N` | becomes that user for good (real, effective, saved), without groups |
//! | `name=TEXT` | sets its comm; `\n` and `\x1b` are understood |
//! | `hold=SIZE` | maps private memory and touches every page as fast as it can |
//! | `shm=SIZE` | the same with shared anonymous memory |
//! | `reserve=SIZE` | maps without touching |
//! | `drop` | unmaps everything it holds |
//! | `churn=MS` | maps 1 MiB, touches it, unmaps it, for so long |
//! | `forks=MS` | forks children that hold 256 KiB and exit, for so long |
//! | `fork=N` | the rest is done by N children; the parent waits for them |
//! | `exec` | the rest is done by a fresh image of this program |
//! | `sleep=MS`, `pause` | waits so long, for ever |
//! | `say=TEXT` | prints a line |
//! | `wait` | waits for a line on stdin |

use std::ffi::CString;
use std::io::{BufRead, Write};
use std::process::exit;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn fail(step: &str, why: impl std::fmt::Display) -> ! {
    eprintln!("hog: {step}: {why}");
    exit(1)
}

fn map(length: usize, flags: i32) -> Option<*mut u8> {
    // SAFETY: a fresh anonymous mapping wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    (at != libc::MAP_FAILED).then_some(at.cast())
}

fn touch(at: *mut u8, length: usize) {
    for offset in (0..length).step_by(PAGE) {
        // SAFETY: inside the mapping of `length` bytes at `at`.
        unsafe { at.add(offset).write_volatile(1) };
    }
}

fn unmap(at: *mut u8, length: usize) {
    // SAFETY: a mapping of ours that nobody uses any more.
    unsafe { libc::munmap(at.cast(), length) };
}

fn size(step: &str, text: &str) -> usize {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number
        .parse::<usize>()
        .unwrap_or_else(|why| fail(step, why))
        << shift
}

fn number(step: &str, text: &str) -> u64 {
    text.parse().unwrap_or_else(|why| fail(step, why))
}

fn become_user(step: &str, uid: u32) {
    // SAFETY: plain system calls on numbers.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(uid, uid, uid) != 0
            || libc::setresuid(uid, uid, uid) != 0
    };
    if failed {
        fail(step, std::io::Error::last_os_error());
    }
}

fn fork() -> i32 {
    // SAFETY: this program has one thread.
    unsafe { libc::fork() }
}

fn main() {
    let steps: Vec<String> = std::env::args().skip(1).collect();
    let mut held: Vec<(*mut u8, usize)> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let (verb, value) = step.split_once('=').unwrap_or((step, ""));
        match verb {
            "uid" => become_user(step, number(step, value) as u32),
            "name" => {
                let name = value.replace("\\n", "\n").replace("\\x1b", "\x1b");
                let name = CString::new(name).unwrap_or_default();
                // SAFETY: a NUL-terminated string.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            }
            "hold" | "shm" | "reserve" => {
                let length = size(step, value);
                let flags = if verb == "shm" {
                    libc::MAP_SHARED
                } else {
                    libc::MAP_PRIVATE
                };
                let Some(at) = map(length, flags) else {
                    fail(step, std::io::Error::last_os_error())
                };
                if verb != "reserve" {
                    touch(at, length);
                }
                held.push((at, length));
            }
            "drop" => held.drain(..).for_each(|(at, length)| unmap(at, length)),
            "churn" => {
                let end = Instant::now() + Duration::from_millis(number(step, value));
                while Instant::now() < end {
                    if let Some(at) = map(1 << 20, libc::MAP_PRIVATE) {
                        touch(at, 1 << 20);
                        unmap(at, 1 << 20);
                    }
                }
            }
            "forks" => {
                let end = Instant::now() + Duration::from_millis(number(step, value));
                while Instant::now() < end {
                    match fork() {
                        0 => {
                            if let Some(at) = map(256 << 10, libc::MAP_PRIVATE) {
                                touch(at, 256 << 10);
                            }
                            exit(0)
                        }
                        child if child > 0 => {
                            // SAFETY: waits for our own child; no status is asked for.
                            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                        }
                        _ => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            }
            "fork" => {
                let children = (0..number(step, value))
                    .map(|_| fork())
                    .take_while(|&it| it > 0);
                // `take_while` ends at once in a child, whose fork() returned 0.
                let count = children.count() as u64;
                if count == number(step, value) {
                    // SAFETY: waits for our own children; no status is asked for.
                    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
                    exit(0)
                }
            }
            "exec" => {
                use std::os::unix::process::CommandExt;
                let me = std::env::current_exe().unwrap_or_else(|why| fail(step, why));
                let why = std::process::Command::new(me)
                    .args(&steps[index + 1..])
                    .exec();
                fail(step, why)
            }
            "sleep" => std::thread::sleep(Duration::from_millis(number(step, value))),
            "pause" => loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            },
            "say" => {
                println!("{value}");
                let _ = std::io::stdout().flush();
            }
            "wait" => {
                let mut line = String::new();
                let _ = std::io::stdin().lock().read_line(&mut line);
            }
            _ => fail(step, "no such step"),
        }
    }
}
