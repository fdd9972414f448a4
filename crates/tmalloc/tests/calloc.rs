// SPDX-License-Identifier: Apache-2.0 OR MIT
//! calloc(3) in an account that is nearly full: the library as it was built, in a program whose daemon is this test.

// As in library.rs: a release build has made the library before.
#![cfg(not(debug_assertions))]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Says to the program which part it has.
const PART: &str = "BURSAR_TEST_PART";
const BLOCK: usize = 16 << 20;
/// Requests for as many pages are for such a block: half of it, for a part may have been granted before.
const BLOCK_PAGES: u64 = 2048;
/// An answer that is late makes tmalloc do without, and says so; nothing follows from such a run.
const ATTEMPTS: usize = 20;

fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("libtmalloc.so")
}

/// Grants the first large block, and afterwards little more than must be.
fn answer(mut stream: UnixStream, has_granted: &mut bool) {
    let number = |line: &str, key: &str| -> u64 {
        let rest = line.split_once(key).map_or("", |(_, rest)| rest);
        let digits = rest.split(|it: char| !it.is_ascii_digit()).next();
        digits.unwrap_or_default().parse().unwrap_or(0)
    };
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let (pages, least) = (number(&line, "\"pages\":"), number(&line, "\"at_least\":"));
        let granted = match *has_granted {
            true if least >= BLOCK_PAGES => None,
            true => Some(pages.min(least + 64)),
            false => Some(pages),
        };
        *has_granted |= least >= BLOCK_PAGES;
        let reply = match granted {
            Some(pages) => format!("{{\"granted\":{{\"pages\":{pages},\"reserved\":0}}}}\n"),
            None => "{\"refused\":{\"kind\":\"refused\",\"message\":\"full\"}}\n".to_owned(),
        };
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn run_once(name: &str, part: &str, socket: &Path) -> Output {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    // Ends with us.
    std::thread::spawn(move || {
        let mut has_granted = false;
        while let Ok((stream, _)) = listener.accept() {
            answer(stream, &mut has_granted);
        }
    });
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .env("LD_PRELOAD", library())
        .env("BURSAR_SOCKET", socket)
        .env("TMALLOC_VERBOSE", "1")
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    std::fs::remove_file(socket).unwrap();
    output
}

/// Runs the test of this name as a program of its own, until the daemon was never late.
fn run(name: &str, part: &str) {
    for attempt in 0..ATTEMPTS {
        let file = format!("bursar-calloc-{part}-{}-{attempt}", std::process::id());
        let output = run_once(name, part, &std::env::temp_dir().join(file));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("tmalloc: ") {
            continue;
        }
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}{said}");
        return;
    }
    panic!("the daemon was late {ATTEMPTS} times");
}

fn is_part(part: &str) -> bool {
    std::env::var(PART).is_ok_and(|it| it == part)
}

fn allocate(size: usize) -> *mut u8 {
    // SAFETY: no pointers.
    let block = std::hint::black_box(unsafe { libc::malloc(size) }.cast::<u8>());
    assert!(!block.is_null());
    // SAFETY: a block of that size.
    unsafe { block.write_bytes(0xff, size) };
    block
}

/// Page faults of this thread.
fn faults() -> i64 {
    // SAFETY: plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_minflt
}

/// A block that was used and freed, in a full account. What calloc makes of it, and how many page faults that took.
fn zeroed_after(with_freed: impl FnOnce()) -> (*mut u8, i64) {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    // SAFETY: numbers only.
    unsafe { libc::mallopt(libc::M_MMAP_MAX, 0) };
    let block = allocate(BLOCK);
    // Asks once more, and hears that there is little.
    allocate(4 << 20);
    // SAFETY: a block that nobody uses.
    unsafe { libc::free(block.cast()) };
    with_freed();
    let before = faults();
    // SAFETY: no pointers.
    let zeroed = std::hint::black_box(unsafe { libc::calloc(1, BLOCK) });
    (zeroed.cast(), faults() - before)
}

#[test]
fn memory_that_was_given_back_is_not_touched_before_there_is_leave() {
    if !is_part("trimmed") {
        let name = "memory_that_was_given_back_is_not_touched_before_there_is_leave";
        return run(name, "trimmed");
    }
    let (block, faults) = zeroed_after(|| {
        // SAFETY: a number.
        unsafe { libc::malloc_trim(0) };
    });
    assert!(block.is_null(), "there is no room for it");
    assert!(faults < 256, "{faults} page faults");
}

#[test]
fn memory_that_is_resident_is_used_again_and_zeroed() {
    if !is_part("resident") {
        return run(
            "memory_that_is_resident_is_used_again_and_zeroed",
            "resident",
        );
    }
    let (block, faults) = zeroed_after(|| {});
    assert!(!block.is_null(), "the program has it already");
    assert!(faults < 256, "{faults} page faults");
    // SAFETY: a block of that size.
    let bytes = unsafe { std::slice::from_raw_parts(block, BLOCK) };
    assert!(bytes.iter().all(|&byte| byte == 0));
}
