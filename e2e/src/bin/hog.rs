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
//! | `cgroup=PATH` | moves into that control group (before `uid`) |
//! | `uid=N` | becomes that user for good (real, effective, saved), without groups |
//! | `name=TEXT` | sets its comm; `\n` and `\x1b` are understood |
//! | `hold=SIZE` | maps private memory and touches every page as fast as it can |
//! | `shm=SIZE` | the same with shared anonymous memory |
//! | `lock=SIZE` | the same as `hold`, locked into memory |
//! | `reserve=SIZE` | maps without touching |
//! | `drop` | unmaps everything it holds |
//! | `churn=MS` | maps 1 MiB, touches it, unmaps it, for so long |
//! | `work=MS` | the same with 10 ms between two times |
//! | `forks=MS` | forks children that hold 256 KiB and exit, for so long |
//! | `short-forks=N` | forks so many children at once, which end 3 ms later, and waits for all of them |
//! | `fork=N` | the rest is done by N children; the parent waits for them |
//! | `twin` | the rest is done by a process that shares this one's memory (CLONE_VM); this one waits |
//! | `sharers=N:SIZE` | N processes that share this one's memory wait for `release`, then touch so much each; they die with this one's group |
//! | `sharers-apart=N:SIZE` | the same, each in a user namespace of its own |
//! | `release` | lets them go |
//! | `leader-exits` | the rest is done by a second thread; the first one ends |
//! | `leader-hangs=PATH` | the same, but the first one does not get to its end, if PATH is a file of `stuck_fuse`'s |
//! | `untouchable` | sets its oom_score_adj to -1000 |
//! | `imitate=PATH` | after `userns-root`: shows this program as the one that it runs |
//! | `userns` | moves into a user namespace of its own, where it is root |
//! | `vfork-wait` | starts a child by vfork, which waits for ever |
//! | `read-device=PATH` | reads a page of it past the cache |
//! | `map=PATH` | maps a file shared and touches all of it |
//! | `spoil` | writes to every page it holds |
//! | `spoil-unseen` | the same without a page fault of its own (MADV_POPULATE_WRITE) |
//! | `spoil-huge` | the same by having huge pages made of it (MADV_COLLAPSE) |
//! | `look` | reads every page it holds |
//! | `pace=MS` | from now on look, spoil and work sleep so long for each MiB |
//! | `tally=PATH` | `spoil` counts its pages in this file, a number for each process by its pid |
//! | `huge=SIZE` | as `hold`, of huge pages |
//! | `small-until=SIZE` | many small allocations, until all of it is so much |
//! | `mergeable` | lets the kernel merge equal pages of what it holds (MADV_MERGEABLE) |
//! | `attachable` | lets processes of the same user write into it |
//! | `overwrite` | gives up what it holds and writes it anew where its children (`leave`) have it |
//! | `overwrite-by-pages` | the same page by page, each after a system call that fails for want of memory it may write to |
//! | `move` | moves what it held last from one place to another, for ever |
//! | `read-map=PATH` | maps a file and reads all of it |
//! | `vfork-exec=N`, `fork-exec=N` | starts a program N times, one after the other |
//! | `await=PATH` | waits until there is such a file |
//! | `leave=N` | as `fork`, but the parent does the rest and the children wait for ever |
//! | `deaf` | ignores SIGTERM |
//! | `session` | the rest is done by a child in a session of its own, which is, where the kernel has them, an autogroup |
//! | `terminal=PATH` | after `session`: sits at that terminal |
//! | `spin` | wants a CPU, for ever |
//! | `repeat=N` | the rest is done by N children, one after the other |
//! | `forks-checked=MS` | forks children for so long; exits with 9 if one was signalled |
//! | `exec` | the rest is done by a fresh image of this program |
//! | `sleep=MS`, `pause` | waits so long, for ever |
//! | `say=TEXT` | prints a line |
//! | `wait` | waits for a line on stdin |
//!
//! And those of hog/tricks.rs.

#[path = "hog/imitate.rs"]
mod imitate;
#[path = "hog/moving.rs"]
mod moving;
#[path = "hog/sharers.rs"]
mod sharers;
#[path = "hog/tricks.rs"]
mod tricks;

use std::ffi::CString;
use std::io::{BufRead, Write};
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// include/uapi/asm-generic/mman-common.h, 6.1
const MADV_COLLAPSE: i32 = 25;

fn fail(step: &str, why: impl std::fmt::Display) -> ! {
    eprintln!("hog: {step}: {why}");
    exit(1)
}

/// As vfork(2), which not every architecture has: the child has our memory and stack, and we wait until it ends.
///
/// # Safety
/// The child must not return.
unsafe fn vfork() -> i64 {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: numbers only; the caller sees to the rest.
    unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) }
}

/// Waits for a signal, by a system call alone.
///
/// # Safety
/// As any system call; this one touches no memory.
unsafe fn pause() {
    // SAFETY: numbers only.
    unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0) };
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

/// Milliseconds of sleep for each MiB that is read or written, and each round of work.
static PACE: AtomicU64 = AtomicU64::new(0);

fn keep_pace(offset: usize) {
    let pace = PACE.load(Ordering::Relaxed);
    if pace > 0 && offset.is_multiple_of(1 << 20) {
        std::thread::sleep(Duration::from_millis(pace));
    }
}

fn look(at: *mut u8, length: usize) {
    for offset in (0..length).step_by(PAGE) {
        keep_pace(offset);
        // SAFETY: inside the mapping of `length` bytes at `at`.
        let _ = unsafe { at.add(offset).read_volatile() };
    }
}

/// Writes to every page, and says after each how many it has written to.
fn spoil(at: *mut u8, length: usize, written: Option<&AtomicU64>) {
    for offset in (0..length).step_by(PAGE) {
        keep_pace(offset);
        // SAFETY: inside the mapping of `length` bytes at `at`.
        unsafe { at.add(offset).write_volatile(2) };
        if let Some(written) = written {
            written.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// This process's number in a file of numbers that everybody maps: the file is the page faults' witness.
fn tally(step: &str, path: &str) -> &'static AtomicU64 {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::options().read(true).write(true).open(path);
    let file = file.unwrap_or_else(|why| fail(step, why));
    let places = file.metadata().map_or(0, |it| it.len()) as usize / 8;
    // SAFETY: a fresh mapping of an open file, wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            places * 8,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED || places == 0 {
        fail(step, std::io::Error::last_os_error());
    }
    let place = std::process::id() as usize % places;
    // SAFETY: inside the mapping, which stays for ever; aligned, for pages are.
    unsafe { &*at.cast::<AtomicU64>().add(place) }
}

/// The same by 2 MiB at a time, by the kernel; told before it is done, and taken back if it is not.
fn spoil_by(step: &str, at: *mut u8, length: usize, advice: i32, written: Option<&AtomicU64>) {
    const PIECE: usize = 2 << 20;
    let padding = at.align_offset(PIECE);
    for offset in (padding..length.saturating_sub(PIECE - 1)).step_by(PIECE) {
        let pages = (PIECE / PAGE) as u64;
        if let Some(written) = written {
            written.fetch_add(pages, Ordering::Relaxed);
        }
        // SAFETY: inside the mapping of `length` bytes at `at`, whose content stays as it is.
        if unsafe { libc::madvise(at.add(offset).cast(), PIECE, advice) } != 0 {
            eprintln!("hog: {step}: {}", std::io::Error::last_os_error());
            if let Some(written) = written {
                written.fetch_sub(pages, Ordering::Relaxed);
            }
        }
    }
}

/// Writes into other processes, who do nothing themselves.
fn overwrite(
    step: &str,
    children: &[i32],
    places: &[(*mut u8, usize)],
    written: Option<&AtomicU64>,
    (piece, before): (usize, impl Fn()),
) {
    let mut source = vec![3_u8; piece];
    for &child in children {
        for &(at, length) in places {
            for offset in (0..length).step_by(piece) {
                before();
                let local = libc::iovec {
                    iov_base: source.as_mut_ptr().cast(),
                    iov_len: piece.min(length - offset),
                };
                let remote = libc::iovec {
                    iov_base: at.wrapping_add(offset).cast(),
                    iov_len: local.iov_len,
                };
                // SAFETY: reads our own buffer, writes into a child that only waits.
                let done = unsafe { libc::process_vm_writev(child, &local, 1, &remote, 1, 0) };
                if done < 0 {
                    // It may have been killed meanwhile.
                    eprintln!("hog: {step}: {}", std::io::Error::last_os_error());
                    break;
                }
                if let Some(written) = written {
                    written.fetch_add(done as u64 / PAGE as u64, Ordering::Relaxed);
                }
            }
        }
    }
}

/// What of this process counts against a limit, in bytes.
fn own_size(step: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_else(|why| fail(step, why));
    let of = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok())
            .unwrap_or(0)
    };
    ["RssAnon", "RssShmem", "VmSwap", "VmPTE"]
        .map(of)
        .iter()
        .sum::<usize>()
        << 10
}

fn advise(step: &str, held: &[(*mut u8, usize)], advice: i32) {
    for &(at, length) in held {
        // SAFETY: our own mapping, whose content stays as it is.
        if unsafe { libc::madvise(at.cast(), length, advice) } != 0 {
            eprintln!("hog: {step}: {}", std::io::Error::last_os_error());
        }
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
            // After the uid, whose change clears it: a story that is cut short leaves nobody behind.
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
    };
    if failed {
        fail(step, std::io::Error::last_os_error());
    }
}

/// All of a file, shared and touched.
fn touch_file(step: &str, file: &std::fs::File, length: usize) {
    use std::os::fd::AsRawFd;
    // SAFETY: a fresh mapping of an open file, wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        fail(step, std::io::Error::last_os_error());
    }
    touch(at.cast(), length);
}

fn fork() -> i32 {
    // SAFETY: this program has one thread.
    unsafe { libc::fork() }
}

fn short_child() -> i32 {
    let child = fork();
    if child == 0 {
        std::thread::sleep(Duration::from_millis(3));
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    child
}

fn main() {
    let steps: Vec<String> = std::env::args().skip(1).collect();
    perform(&steps);
}

/// What a twin is to do: it shares our memory, and so this.
static REST: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();

extern "C" fn be_twin(_: *mut libc::c_void) -> libc::c_int {
    perform(REST.get().map_or(&[], Vec::as_slice));
    0
}

fn become_twins(rest: &[String]) -> ! {
    let _ = REST.set(rest.to_vec());
    let mut stack = vec![0_u8; 1 << 20];
    // SAFETY: the stack lives as long as this process, which only waits from here on; the twin shares
    // our memory on purpose.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(
            be_twin,
            top,
            libc::CLONE_VM | libc::SIGCHLD,
            std::ptr::null_mut(),
        )
    };
    if pid < 0 {
        fail("twin", std::io::Error::last_os_error());
    }
    // SAFETY: waits for our own child; no status is asked for.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}

/// Ends when they have ended: whoever ends us before ends our process group.
fn outlive_children() -> ! {
    // SAFETY: waits for our own children; no status is asked for.
    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
    exit(0)
}

fn perform(steps: &[String]) {
    let mut held: Vec<(*mut u8, usize)> = Vec::new();
    let mut small: Vec<Box<[u8; 48]>> = Vec::new();
    let mut written: Option<&'static AtomicU64> = None;
    let mut tallies = None;
    let mut left: Vec<i32> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let (verb, value) = step.split_once('=').unwrap_or((step, ""));
        match verb {
            "cgroup" => {
                let procs = format!("{value}/cgroup.procs");
                if let Err(why) = std::fs::write(procs, "0") {
                    fail(step, why);
                }
            }
            "uid" => become_user(step, number(step, value) as u32),
            "name" => {
                let name = value.replace("\\n", "\n").replace("\\x1b", "\x1b");
                let name = CString::new(name).unwrap_or_default();
                // SAFETY: a NUL-terminated string.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
            }
            "hold" | "shm" | "reserve" => {
                let length = size(step, value);
                let flags = match verb {
                    "shm" => libc::MAP_SHARED,
                    "reserve" => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
                    _ => libc::MAP_PRIVATE,
                };
                let Some(at) = map(length, flags) else {
                    fail(step, std::io::Error::last_os_error())
                };
                if verb != "reserve" {
                    touch(at, length);
                }
                held.push((at, length));
            }
            "lock" => {
                let length = size(step, value);
                let Some(at) = map(length, libc::MAP_PRIVATE | libc::MAP_LOCKED) else {
                    fail(step, std::io::Error::last_os_error())
                };
                touch(at, length);
                held.push((at, length));
            }
            "vfork-wait" => {
                // The parent of a vfork waits in the kernel until its child, who has its memory, is gone.
                // SAFETY: the child touches nothing but waits for a signal.
                match unsafe { vfork() } {
                    0 => loop {
                        // SAFETY: waits for a signal.
                        unsafe { pause() };
                    },
                    _ => exit(0),
                }
            }
            "read-device" => {
                // In uninterruptible sleep for as long as the device takes.
                use std::os::unix::fs::OpenOptionsExt;
                let mut file = std::fs::File::options()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(value)
                    .unwrap_or_else(|why| fail(step, why));
                let Some(at) = map(4096, libc::MAP_PRIVATE) else {
                    fail(step, std::io::Error::last_os_error())
                };
                // SAFETY: a page of our own.
                let page = unsafe { std::slice::from_raw_parts_mut(at, 4096) };
                let _ = std::io::Read::read(&mut file, page);
            }
            "map" => {
                let file = std::fs::File::options().read(true).write(true).open(value);
                let file = file.unwrap_or_else(|why| fail(step, why));
                let length = file.metadata().unwrap_or_else(|why| fail(step, why)).len() as usize;
                touch_file(step, &file, length);
            }
            "spoil" => {
                if let Some(path) = tallies {
                    written = Some(tally(step, path));
                }
                held.iter()
                    .for_each(|&(at, length)| spoil(at, length, written));
            }
            "spoil-unseen" | "spoil-huge" => {
                let advice = if verb == "spoil-huge" {
                    MADV_COLLAPSE
                } else {
                    libc::MADV_POPULATE_WRITE
                };
                let written = tallies.map(|path| tally(step, path));
                held.iter()
                    .for_each(|&(at, length)| spoil_by(step, at, length, advice, written));
            }
            "pace" => PACE.store(number(step, value), Ordering::Relaxed),
            "look" => held.iter().for_each(|&(at, length)| look(at, length)),
            "tally" => tallies = Some(value),
            "huge" => {
                let length = size(step, value);
                let Some(at) = map(length, libc::MAP_PRIVATE) else {
                    fail(step, std::io::Error::last_os_error())
                };
                advise(step, &[(at, length)], libc::MADV_HUGEPAGE);
                touch(at, length);
                held.push((at, length));
            }
            "small-until" => {
                // SAFETY: a plain system call on numbers. Small ones are meant, not 2 MiB at a time.
                unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
                while own_size(step) < size(step, value) {
                    small.extend((0..512).map(|_| Box::new([1; 48])));
                }
            }
            "mergeable" => advise(step, &held, libc::MADV_MERGEABLE),
            "attachable" => {
                // SAFETY: a plain system call on numbers.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
            }
            "overwrite" => {
                let written = tallies.map(|path| tally(step, path));
                held.iter().for_each(|&(at, length)| unmap(at, length));
                overwrite(step, &left, &held, written, (256 << 10, || ()));
            }
            "overwrite-by-pages" => {
                let page = map(PAGE, libc::MAP_PRIVATE).unwrap_or_else(|| fail(step, "no page"));
                // SAFETY: our own page, which nobody else knows: touched, and read-only from then on.
                unsafe {
                    page.write_volatile(1);
                    libc::mprotect(page.cast(), PAGE, libc::PROT_READ);
                }
                // SAFETY: the kernel may not write there, and says so.
                let in_vain = || assert!(unsafe { libc::getrandom(page.cast(), 1, 0) } < 0);
                held.iter().for_each(|&(at, length)| unmap(at, length));
                overwrite(step, &left, &held, None, (PAGE, in_vain));
            }
            "move" => moving::for_ever(&held),
            "read-map" => {
                use std::os::fd::AsRawFd;
                let file = std::fs::File::open(value).unwrap_or_else(|why| fail(step, why));
                let length = file.metadata().unwrap_or_else(|why| fail(step, why)).len() as usize;
                // SAFETY: a fresh mapping of an open file, wherever the kernel likes.
                let at = unsafe {
                    libc::mmap(
                        std::ptr::null_mut(),
                        length,
                        libc::PROT_READ,
                        libc::MAP_SHARED,
                        file.as_raw_fd(),
                        0,
                    )
                };
                if at == libc::MAP_FAILED {
                    fail(step, std::io::Error::last_os_error());
                }
                look(at.cast(), length);
            }
            "vfork-exec" | "fork-exec" => {
                let me = std::env::current_exe().unwrap_or_else(|why| fail(step, why));
                let path = CString::new(me.as_os_str().as_encoded_bytes()).unwrap_or_default();
                let arguments = [path.as_ptr(), std::ptr::null()];
                for _ in 0..number(step, value) {
                    let mut child = -1;
                    if verb == "vfork-exec" {
                        // SAFETY: NUL-terminated strings and NULL-terminated arrays; the C library
                        // starts it by CLONE_VM | CLONE_VFORK.
                        unsafe {
                            libc::posix_spawn(
                                &mut child,
                                path.as_ptr(),
                                std::ptr::null(),
                                std::ptr::null(),
                                arguments.as_ptr().cast(),
                                [std::ptr::null_mut()].as_ptr(),
                            );
                        }
                    } else {
                        child = fork();
                    }
                    if child == 0 {
                        // SAFETY: NUL-terminated strings and a NULL-terminated array of them.
                        unsafe {
                            libc::execv(path.as_ptr(), arguments.as_ptr());
                            libc::_exit(127);
                        }
                    }
                    let mut status = 0;
                    // SAFETY: our own child and a live local.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    if child < 0 || status != 0 {
                        fail(step, format!("a program ended by {status:#x}"));
                    }
                }
            }
            "await" => {
                while !std::path::Path::new(value).exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            "short-forks" => {
                let children: Vec<i32> = (0..number(step, value)).map(|_| short_child()).collect();
                for child in children {
                    let mut status = 0;
                    // SAFETY: our own child and a live local.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    if child < 0 || status != 0 {
                        fail(step, format!("a child ended by {status:#x}"));
                    }
                }
            }
            "leave" => {
                for _ in 0..number(step, value) {
                    let child = fork();
                    left.push(child);
                    if child == 0 {
                        loop {
                            // SAFETY: waits for a signal.
                            unsafe { libc::pause() };
                        }
                    }
                }
            }
            "session" => {
                if fork() > 0 {
                    outlive_children()
                }
                // Whoever ends us ends our group, which it leaves.
                // SAFETY: a plain system call about this process.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                if let Err(error) = rustix::process::setsid() {
                    fail(step, error);
                }
            }
            "terminal" => {
                // The first that the first of a session opens is the session's.
                let opened = std::fs::File::options().read(true).write(true).open(value);
                let terminal = opened.unwrap_or_else(|error| fail(step, error));
                std::mem::forget(terminal);
            }
            "spin" => loop {
                std::hint::spin_loop();
            },
            "deaf" => {
                // SAFETY: no handler of ours is installed.
                unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
            }
            "repeat" => {
                // One child after the other does the rest; each is expected to be killed.
                for _ in 0..number(step, value) {
                    let child = fork();
                    if child == 0 {
                        return perform(&steps[index + 1..]);
                    }
                    // SAFETY: waits for our own child; no status is asked for.
                    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
                }
                exit(0)
            }
            "forks-checked" => {
                let end = Instant::now() + Duration::from_millis(number(step, value));
                while Instant::now() < end {
                    let child = fork();
                    if child == 0 {
                        std::thread::sleep(Duration::from_millis(5));
                        // SAFETY: ends this process at once.
                        unsafe { libc::_exit(0) };
                    }
                    let mut status = 0;
                    // SAFETY: our own child and a live local.
                    unsafe { libc::waitpid(child, &mut status, 0) };
                    if child > 0 && libc::WIFSIGNALED(status) {
                        exit(9)
                    }
                }
            }
            "drop" => held.drain(..).for_each(|(at, length)| unmap(at, length)),
            "churn" | "work" => {
                let end = Instant::now() + Duration::from_millis(number(step, value));
                while Instant::now() < end {
                    if let Some(at) = map(1 << 20, libc::MAP_PRIVATE) {
                        touch(at, 1 << 20);
                        unmap(at, 1 << 20);
                    }
                    if verb == "work" {
                        keep_pace(0);
                        std::thread::sleep(Duration::from_millis(10));
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
                    outlive_children()
                }
            }
            "twin" => become_twins(&steps[index + 1..]),
            "sharers" => sharers::start(step, value, 0),
            "sharers-apart" => sharers::start(step, value, libc::CLONE_NEWUSER),
            "release" => sharers::release(),
            "leader-exits" | "leader-hangs" => {
                if verb == "leader-hangs" {
                    tricks::hang_at_exit(step, value);
                }
                let rest = steps[index + 1..].to_vec();
                std::thread::spawn(move || {
                    perform(&rest);
                    exit(0)
                });
                // SAFETY: ends this thread only; what it borrowed is not used by the other.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            }
            "untouchable" => {
                if let Err(why) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
                    fail(step, why);
                }
            }
            "imitate" => imitate::imitate(step, value),
            "userns" => {
                // SAFETY: a plain system call; this program has one thread.
                if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
                    fail(step, std::io::Error::last_os_error());
                }
            }
            "exec" => {
                use std::os::unix::process::CommandExt;
                // Of the process nothing is told once its first thread has ended.
                let me = std::fs::read_link("/proc/thread-self/exe");
                let me = me.unwrap_or_else(|why| fail(step, why));
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
            _ if tricks::perform_trick(step, verb, value, &steps[index + 1..]) => {}
            _ => fail(step, "no such step"),
        }
    }
}
