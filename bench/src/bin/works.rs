// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench-works KIND SECONDS UID DIRECTORY`: one of S5 section 4's tests, done as often as it
//! goes in so many seconds as that user. Says how often, and how much user and system time that took
//! (microseconds, children included).
//!
//! | kind | one time |
//! | --- | --- |
//! | `spawn` | fork a process that exits at once, wait for it |
//! | `execl` | this program replaces itself by itself |
//! | `pipe` | 512 bytes written to a pipe and read back by the same process |
//! | `shell` | a shell script that sorts, searches and counts a small file through pipes |
//! | `read` | 1 KiB read from a file of 2000 of them, in order, again and again |
//! | `write` | 1 KiB written to such a file |
//! | `mmap` | 1 MiB mapped and unmapped, not touched |
//! | `brk` | the heap made larger by 128 KiB and smaller again |
//! | `prctl` | the gate's two calls: a page reserved and committed |
//!
//! Byte-unixbench's tests of these names do the same; nothing of their code is here.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::{Command, Stdio, exit};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 2000;

fn fail(what: &str) -> ! {
    eprintln!(
        "bursar-bench-works: {what}: {}",
        std::io::Error::last_os_error()
    );
    exit(1)
}

/// User and system time of this process and its children, microseconds; goes on through an exec.
fn spent_us() -> u64 {
    let of = |whom| {
        // SAFETY: plain data that the call fills.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a pointer to a live local.
        unsafe { libc::getrusage(whom, &mut usage) };
        let time = |it: libc::timeval| it.tv_sec as u64 * 1_000_000 + it.tv_usec as u64;
        time(usage.ru_utime) + time(usage.ru_stime)
    };
    of(libc::RUSAGE_SELF) + of(libc::RUSAGE_CHILDREN)
}

/// Nanoseconds since 1970: survives an exec.
fn now_ns() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |it| it.as_nanos())
}

fn become_user(uid: u32) {
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

/// How often `once` goes into the time.
fn repeat(long: Duration, mut once: impl FnMut()) -> u64 {
    let end = now_ns() + long.as_nanos();
    let mut count = 0;
    while now_ns() < end {
        once();
        count += 1;
    }
    count
}

fn spawn_once() {
    // SAFETY: this program has one thread; the child only exits.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child if child > 0 => {
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
            _ => fail("fork"),
        }
    }
}

/// Replaces this program by itself until the time is over; count and end go along as arguments.
fn execl(count: u64, end: u128) -> u64 {
    if now_ns() >= end {
        return count;
    }
    let me = CString::new("/proc/self/exe").unwrap_or_default();
    let texts = [
        "works".to_owned(),
        "execl-on".to_owned(),
        (count + 1).to_string(),
        end.to_string(),
    ];
    let texts: Vec<CString> = texts
        .into_iter()
        .filter_map(|it| CString::new(it).ok())
        .collect();
    let mut pointers: Vec<_> = texts.iter().map(|it| it.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: NUL-terminated strings and a null-terminated array of them, alive until the call ends.
    unsafe { libc::execv(me.as_ptr(), pointers.as_ptr()) };
    fail("execv")
}

fn pipe_test(long: Duration) -> u64 {
    let Ok((mut reader, mut writer)) = std::io::pipe() else {
        fail("make a pipe")
    };
    let mut buffer = [0_u8; 512];
    repeat(long, || {
        if writer
            .write_all(&buffer)
            .and_then(|()| reader.read_exact(&mut buffer))
            .is_err()
        {
            fail("use a pipe");
        }
    })
}

const SCRIPT: &str = "sort <words >sorted.$$; od sorted.$$ | sort -n -k 1 >od.$$; \
    grep the sorted.$$ | tee grep.$$ | wc >wc.$$; rm sorted.$$ od.$$ grep.$$ wc.$$";

fn shell_once() {
    let status = Command::new("sh")
        .args(["-c", SCRIPT])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    if !status.is_ok_and(|it| it.success()) {
        fail("run a shell script");
    }
}

fn file_test(long: Duration, writes: bool) -> u64 {
    let block = [b'x'; BLOCK];
    let name = format!("file.{}", std::process::id());
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&name)
        .unwrap_or_else(|_| fail("make a file"));
    let _ = fs::remove_file(&name);
    for _ in 0..BLOCKS {
        if file.write_all(&block).is_err() {
            fail("fill a file");
        }
    }
    let mut buffer = block;
    let mut at = BLOCKS;
    repeat(long, || {
        if at == BLOCKS {
            at = 0;
            if file.seek(SeekFrom::Start(0)).is_err() {
                fail("rewind a file");
            }
        }
        at += 1;
        let done = if writes {
            file.write_all(&block)
        } else {
            file.read_exact(&mut buffer)
        };
        if done.is_err() {
            fail("use a file");
        }
    })
}

fn map_once() {
    const LENGTH: usize = 1 << 20;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, which nobody uses before it is gone.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), LENGTH, access, kind, -1, 0);
        if at == libc::MAP_FAILED || libc::munmap(at, LENGTH) != 0 {
            fail("map memory");
        }
    }
}

fn brk_once() {
    const LENGTH: isize = 128 << 10;
    // SAFETY: nothing is allocated between the two: what malloc has of the heap is as it was.
    unsafe {
        if libc::sbrk(LENGTH).addr() == usize::MAX || libc::sbrk(-LENGTH).addr() == usize::MAX {
            fail("move the break");
        }
    }
}

/// Without a gate both are refused as unknown: the way into the kernel and back is the same.
fn reserve_once() {
    const GATE: libc::c_int = 0x4255_5253;
    for operation in [1, 2] {
        // SAFETY: numbers only.
        unsafe { libc::prctl(GATE, operation, 1, 0, 0) };
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let text = |index: usize| arguments.get(index).map_or("", String::as_str);
    if text(1) == "execl-on" {
        let (Ok(count), Ok(end)) = (text(2).parse(), text(3).parse()) else {
            fail("arguments")
        };
        println!("{} {}", execl(count, end), spent_us());
        return;
    }
    let (Ok(seconds), Ok(uid)) = (text(2).parse::<f64>(), text(3).parse()) else {
        fail("arguments")
    };
    let long = Duration::from_secs_f64(seconds);
    if std::env::set_current_dir(text(4)).is_err() {
        fail("enter the directory");
    }
    become_user(uid);
    let count = match text(1) {
        "spawn" => repeat(long, spawn_once),
        "execl" => execl(0, now_ns() + long.as_nanos()),
        "pipe" => pipe_test(long),
        "shell" => repeat(long, shell_once),
        "read" => file_test(long, false),
        "write" => file_test(long, true),
        "mmap" => repeat(long, map_once),
        "brk" => repeat(long, brk_once),
        "prctl" => repeat(long, reserve_once),
        _ => fail("no such kind"),
    };
    println!("{count} {}", spent_us());
}
