// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `alloc_client`: a user's program that allocates by malloc's family, whichever that is, and by libbursar.
//!
//! ```text
//! alloc_client fill UID SIZE            blocks of SIZE until NULL; waits with them
//! alloc_client hammer UID SEED MS       random after a line on stdin, blocks as fast as it can
//! alloc_client speed UID PATTERN THREADS N nanoseconds a malloc and free
//! alloc_client transact UID LIBRARY     does what stdin says: reserve N · commit N · hold N · drop · fork
//! alloc_client limits UID LIBRARY       the same with S1's three calls: set UID BYTES · get ROOM · run
//! ```

use std::ffi::CString;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn number<T: std::str::FromStr>(text: Option<String>) -> T {
    text.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("alloc_client: a number is missing"))
}

fn become_user(uid: u32) {
    // SAFETY: no pointers.
    let done =
        unsafe { libc::setgroups(0, std::ptr::null()) == 0 && libc::setresuid(uid, uid, uid) == 0 };
    assert!(done, "alloc_client: become uid {uid}");
}

fn main() {
    // What stdout needs, before memory gets short.
    println!("ready");
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("fill") => fill(number(arguments.next()), number(arguments.next())),
        Some("hammer") => hammer(
            number(arguments.next()),
            number(arguments.next()),
            number(arguments.next()),
        ),
        Some("speed") => speed(
            number(arguments.next()),
            number(arguments.next()),
            number(arguments.next()),
            number(arguments.next()),
        ),
        Some("transact") => {
            transact(
                number(arguments.next()),
                &arguments.next().unwrap_or_default(),
            );
        }
        Some("limits") => {
            limits(
                number(arguments.next()),
                &arguments.next().unwrap_or_default(),
            );
        }
        other => panic!("alloc_client: {other:?}?"),
    }
}

/// Writes to each page of a block, and to its last byte.
unsafe fn use_all(block: *mut u8, size: usize) {
    for offset in (0..size).step_by(PAGE).chain([size - 1]) {
        // SAFETY: inside the block.
        unsafe { block.add(offset).write_volatile(1) };
    }
}

fn fill(uid: u32, size: usize) {
    become_user(uid);
    let mut bytes = 0;
    loop {
        // SAFETY: no pointers.
        let block = unsafe { libc::malloc(size) };
        if block.is_null() {
            break;
        }
        // SAFETY: a block of `size` bytes.
        unsafe { use_all(block.cast(), size) };
        bytes += size;
    }
    println!("{bytes}");
    // SAFETY: no arguments; waits to be killed. Nothing that allocates can be done here.
    unsafe { libc::pause() };
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn hammer(uid: u32, seed: u64, ms: u64) {
    become_user(uid);
    const SLOTS: usize = 2048;
    println!("there");
    // SAFETY: a live buffer and its length. Without std's, which would allocate.
    unsafe { libc::read(0, [0u8; 16].as_mut_ptr().cast(), 16) };
    let nulls = AtomicU64::new(0);
    let granted = AtomicU64::new(0);
    let end = Instant::now() + Duration::from_millis(ms);
    let run = |mut seed: u64| {
        let mut slots = [std::ptr::null_mut::<libc::c_void>(); SLOTS];
        while Instant::now() < end {
            let mut seen = 0;
            for _ in 0..64 {
                let place = &mut slots[usize::try_from(random(&mut seed)).unwrap() % SLOTS];
                // SAFETY: NULL or a block of ours.
                unsafe { libc::free(*place) };
                // Mostly small, some large: 16 bytes to 256 KiB.
                let shift = 4 + random(&mut seed) % 15;
                let size =
                    usize::try_from((1 << shift) + random(&mut seed) % (1 << shift)).unwrap();
                // SAFETY: no pointers.
                let block = unsafe { libc::malloc(size) };
                *place = block;
                if block.is_null() {
                    seen += 1;
                    continue;
                }
                // SAFETY: a block of `size` bytes.
                unsafe { use_all(block.cast(), size) };
            }
            nulls.fetch_add(seen, Ordering::Relaxed);
            granted.fetch_add(64 - seen, Ordering::Relaxed);
        }
        // SAFETY: NULL or blocks of ours.
        slots.iter().for_each(|&block| unsafe { libc::free(block) });
    };
    run(seed * 3 + 1);
    println!("{} {}", granted.into_inner(), nulls.into_inner());
}

fn speed(uid: u32, pattern: u32, threads: u64, count: u64) {
    become_user(uid);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || pattern_of(pattern, thread, count));
        }
    });
    let spent = u64::try_from(began.elapsed().as_nanos()).unwrap();
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let cpu = |time: libc::timeval| u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap();
    // Processor time: other programs on the machine do not belong to malloc.
    let cpu_ns = (cpu(usage.ru_utime) + cpu(usage.ru_stime)) * 1000;
    println!(
        "{} {}",
        cpu_ns * 100 / (count * threads),
        spent * 100 / count
    );
}

/// After mimalloc-bench: what allocators are measured by.
fn pattern_of(pattern: u32, seed: u64, count: u64) {
    let mut seed = seed * 7919 + 88_172_645_463_325_252;
    let mut slots = vec![(std::ptr::null_mut::<u8>(), 0usize); 4096];
    for round in 0..count {
        let (slot, size) = match pattern {
            // The same small block again and again (no work between: malloc alone).
            0 => (0, 64),
            // alloc-test, larson: small blocks that live for a random time.
            1 => (random(&mut seed) % 1024, 16 + random(&mut seed) % 496),
            // sh8bench, cfrac: many alive, larger ones among them.
            2 => (random(&mut seed) % 4096, 1 << (4 + random(&mut seed) % 10)),
            // A growing structure that is thrown away whole (glibc-bench, espresso).
            _ => (round % 4096, 32 + round % 7 * 24),
        };
        let place = &mut slots[usize::try_from(slot).unwrap()];
        let size = usize::try_from(size).unwrap();
        // SAFETY: NULL or a block of ours; then a fresh one of `size` bytes, filled whole.
        unsafe {
            libc::free(place.0.cast());
            place.0 = libc::malloc(size).cast();
            assert!(!place.0.is_null());
            std::ptr::write_bytes(place.0, 1, size);
        }
        place.1 = size;
    }
    // SAFETY: NULL or blocks of ours.
    slots
        .iter()
        .for_each(|slot| unsafe { libc::free(slot.0.cast()) });
}

/// Twice there and back, nanoseconds, median: what the kernel takes for waking one after the other.
fn echo(count: i64) -> i32 {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let mut message = [0; 32];
    // SAFETY: this program has one thread; the child sends back what it is sent, until there is nobody.
    if unsafe { libc::fork() } == 0 {
        drop(ours);
        while theirs.read_exact(&mut message).is_ok() && theirs.write_all(&message).is_ok() {}
        std::process::exit(0);
    }
    drop(theirs);
    let mut spent: Vec<u128> = (0..count)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..2 {
                ours.write_all(&message).unwrap();
                ours.read_exact(&mut message).unwrap();
            }
            began.elapsed().as_nanos()
        })
        .collect();
    spent.sort_unstable();
    i32::try_from(spent[spent.len() / 2]).unwrap()
}

type Call = unsafe extern "C" fn(libc::c_long) -> libc::c_int;

/// An open library.
struct Library(*mut libc::c_void);

impl Library {
    fn open(path: &str) -> Self {
        let path = CString::new(path).unwrap();
        // SAFETY: a C string.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "alloc_client: load {path:?}");
        Self(handle)
    }

    /// A function of it.
    ///
    /// # Safety
    /// `F` is how the library's header declares it.
    unsafe fn find<F: Copy>(&self, name: &std::ffi::CStr) -> F {
        // SAFETY: an open library and a C string.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "alloc_client: find {name:?}");
        // SAFETY: a function pointer is as large as any other, and this is one of that type.
        unsafe { std::mem::transmute_copy(&found) }
    }
}

/// What a call answered; minus errno where it failed.
fn answer_of(answer: libc::c_int) -> i32 {
    if answer < 0 {
        -std::io::Error::last_os_error().raw_os_error().unwrap_or(1)
    } else {
        answer
    }
}

fn limits(uid: u32, library: &str) {
    type Set = unsafe extern "C" fn(libc::uid_t, libc::c_ulong) -> libc::c_int;
    type Get =
        unsafe extern "C" fn(*mut libc::uid_t, *mut libc::c_ulong, libc::c_uint) -> libc::c_int;
    type Run = unsafe extern "C" fn() -> libc::c_int;
    become_user(uid);
    let library = Library::open(library);
    // SAFETY: bursar.h declares them so.
    let (set, get, run): (Set, Get, Run) = unsafe {
        (
            library.find(c"set_mm_limit"),
            library.find(c"get_mm_limit"),
            library.find(c"run_oom_killer"),
        )
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            // SAFETY: numbers.
            ["set", who, bytes] => println!("{}", unsafe {
                answer_of(set(who.parse().unwrap(), bytes.parse().unwrap()))
            }),
            ["get", room] => {
                let room = room.parse().unwrap();
                let (mut users, mut limits) = (vec![0; room], vec![0; room]);
                let length = u32::try_from(room).unwrap();
                // SAFETY: both have room for so many.
                let answer =
                    answer_of(unsafe { get(users.as_mut_ptr(), limits.as_mut_ptr(), length) });
                let found = usize::try_from(answer).unwrap_or(0);
                let pairs = users.iter().zip(&limits).take(found);
                let pairs: String = pairs
                    .map(|(who, limit)| format!(" {who}:{limit}"))
                    .collect();
                println!("{answer}{pairs}");
            }
            // SAFETY: no arguments.
            ["run"] => println!("{}", answer_of(unsafe { run() })),
            _ => panic!("alloc_client: {line}?"),
        }
    }
}

fn transact(uid: u32, library: &str) {
    become_user(uid);
    let library = Library::open(library);
    // SAFETY: bursar.h declares both so.
    let (reserve, commit): (Call, Call) = unsafe {
        (
            library.find(c"transaction_reserve"),
            library.find(c"transaction_commit"),
        )
    };
    // 0, or errno.
    // SAFETY: libbursar's functions of that signature; they take a number.
    let call = |call: Call, pages| match unsafe { call(pages) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(-1),
    };
    let mut held: Vec<Vec<u8>> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (word, rest) = line.split_once(' ').unwrap_or((&line, "0"));
        let count: i64 = rest.parse().unwrap();
        let answer = match word {
            "reserve" => call(reserve, count),
            "commit" => call(commit, count),
            "hold" => {
                held.push(vec![1; usize::try_from(count).unwrap() * PAGE]);
                0
            }
            "drop" => {
                held.clear();
                0
            }
            // A child that commits what its parent reserved, and stays behind with the descriptors.
            "fork" => {
                // SAFETY: the child only calls, prints and waits.
                match unsafe { libc::fork() } {
                    0 => {
                        println!("{}", call(commit, count));
                        std::thread::sleep(Duration::from_secs(60));
                        std::process::exit(0)
                    }
                    _ => continue,
                }
            }
            // The time of a reserve and commit, nanoseconds, median.
            "time" => {
                let mut spent: Vec<u128> = (0..count)
                    .map(|_| {
                        let began = Instant::now();
                        assert_eq!((call(reserve, 1), call(commit, 1)), (0, 0));
                        began.elapsed().as_nanos()
                    })
                    .collect();
                spent.sort_unstable();
                i32::try_from(spent[spent.len() / 2]).unwrap()
            }
            // The time of as many messages to a process that only sends them back, the same way.
            "echo" => echo(count),
            _ => panic!("alloc_client: {word}?"),
        };
        println!("{answer}");
    }
}
