// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that asks for memory in every way there is and says what it was answered: the witness of
//! the gate's stories. Each argument is a step; steps that ask print `STEP: ok` or `STEP: ERRNO`.
//!
//! | step | asks for |
//! |---|---|
//! | `uid=N` | becomes that user |
//! | `map=SIZE`, `noreserve=SIZE`, `shared=SIZE` | mmap, writable: private, MAP_NORESERVE, MAP_SHARED\|MAP_ANONYMOUS |
//! | `none=SIZE` | mmap PROT_NONE with MAP_NORESERVE: addresses only |
//! | `writable` | mprotect of the last mapping to writable |
//! | `readonly` | mprotect of the last mapping to readable |
//! | `compat=SIZE` | mmap2 by int 0x80; nothing, and no answer, on other processors than x86 |
//! | `grow=SIZE` | mremap of the last mapping to that size |
//! | `leave` | mremap of the last mapping to another place that leaves the old one mapped (MREMAP_DONTUNMAP) |
//! | `brk=SIZE` | sbrk |
//! | `malloc=SIZE` | malloc |
//! | `arenas=N` | N threads, each mallocs 1 MiB until NULL; prints how much all got, in MiB |
//! | `thread` | pthread_create with a stack of 64 MiB |
//! | `touch` | writes every page of the last mapping |
//! | `fill=SIZE` | maps and writes so much again and again until it is refused |
//! | `drop` | unmaps the last mapping |
//! | `fork` | a child that ends at once |
//! | `forked=STEPS` | a child that does these steps, separated by `+`; waits for it |
//! | `session` | nothing: leads a session of its own from now on (setsid) |
//! | `run=COMMAND` | `sh -c COMMAND`; prints its exit status |
//! | `image=SIZE` | a child that becomes a program with so much .bss; prints how it ended |
//! | `recurse=SIZE` | a recursion that needs so much stack |
//! | `reserve=PAGES`, `commit=PAGES` | the gate's prctl (abi.h GATE_PRCTL) |
//! | `file=SIZE` | write(2): a file in memory of that size |
//! | `append=SIZE`, `over=SIZE` | write(2): so much at the end, or the beginning, of the last file |
//! | `allocate=SIZE` | fallocate(2) of so much more of the last file |
//! | `hole=SIZE` | makes the last file so much longer and writes the last page of that |
//! | `send=SIZE` | sendfile(2) of so much of the last file to the end of a new one |
//! | `fault=SIZE` | makes the last file so much longer and writes to a mapping of that |
//! | `most=SIZE` | appends so much to the last file until it is refused; prints how much was written |
//! | `brim` | appends pages to the last file until, for a while, not one is granted |
//! | `delete` | the last file |
//! | `scribble=SECONDS` | makes, enlarges, cuts and deletes files in memory at random; prints counts |
//! | `hammer=SECONDS` | maps, touches, grows, protects, unmaps and forks at random; prints counts |
//! | `vain-map=SECONDS`, `vain-reserve=SECONDS` | mmap, the gate's prctl: far more than there is, all the time; prints how often that was granted |
//! | `modest=SECONDS` | maps and unmaps 2 MiB all the time; prints how often that was refused |
//! | `sequences=N` | N children, one after the other, each maps, grows, protects, unmaps, forks and execs at random; prints how they ended |
//! | `hugetlb=SIZE` | mmap of so much of the pool of huge pages |
//! | `time` | nothing: prints nanoseconds of getpid, mmap + munmap of 1 MiB untouched and touched, and reserving and committing a page by prctl |
//! | `exec` | the rest is done by a fresh image of this program |
//! | `wait` | waits for a line on stdin |

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::exit;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const WRITABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// abi.h enum gate_prctl.
const GATE_PRCTL: i32 = 0x4255_5253;

type Mapping = (*mut u8, usize);

fn say(step: &str, answer: impl std::fmt::Display) {
    // One system call and no buffer: a forked child must not say again what its parent said.
    let line = format!("{step}: {answer}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn name(errno: i32) -> String {
    match errno {
        libc::ENOMEM => "ENOMEM".to_owned(),
        libc::EAGAIN => "EAGAIN".to_owned(),
        libc::EINVAL => "EINVAL".to_owned(),
        libc::ENXIO => "ENXIO".to_owned(),
        libc::EINPROGRESS => "EINPROGRESS".to_owned(),
        libc::ENOSPC => "ENOSPC".to_owned(),
        other => format!("errno {other}"),
    }
}

fn size(text: &str) -> usize {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().unwrap_or_else(|_| {
        eprintln!("grower: no size: {text}");
        exit(2)
    }) << shift
}

fn map(length: usize, protection: i32, flags: i32) -> Result<Mapping, i32> {
    // SAFETY: a fresh anonymous mapping wherever the kernel likes.
    let at = unsafe {
        let flags = libc::MAP_ANONYMOUS | flags;
        libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0)
    };
    if at == libc::MAP_FAILED {
        Err(errno())
    } else {
        Ok((at.cast(), length))
    }
}

fn touch((at, length): Mapping) {
    for offset in (0..length).step_by(PAGE) {
        // SAFETY: inside a writable mapping of ours.
        unsafe { at.add(offset).write_volatile(1) };
    }
}

fn unmap((at, length): Mapping) {
    // SAFETY: a mapping of ours that nobody uses any more.
    unsafe { libc::munmap(at.cast(), length) };
}

fn protect((at, length): Mapping, protection: i32) -> Result<(), i32> {
    // SAFETY: a mapping of ours.
    match unsafe { libc::mprotect(at.cast(), length, protection) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn grow((at, length): Mapping, to: usize) -> Result<Mapping, i32> {
    // SAFETY: a mapping of ours; only the answer is used from here on.
    let moved = unsafe { libc::mremap(at.cast(), length, to, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED {
        Err(errno())
    } else {
        Ok((moved.cast(), to))
    }
}

/// The old mapping stays.
fn leave((at, length): Mapping) -> Result<Mapping, i32> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    // SAFETY: a mapping of ours; what was in it is in the new one, wherever the kernel likes.
    let moved = unsafe {
        let anywhere = std::ptr::null_mut::<libc::c_void>();
        libc::mremap(at.cast(), length, length, flags, anywhere)
    };
    if moved == libc::MAP_FAILED {
        Err(errno())
    } else {
        Ok((moved.cast(), length))
    }
}

/// Without a name: gone with its descriptor.
fn file_in_memory() -> Result<File, i32> {
    // SAFETY: a fresh descriptor, ours alone.
    unsafe {
        match libc::memfd_create(c"grower".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(errno()),
            descriptor => Ok(File::from_raw_fd(descriptor)),
        }
    }
}

fn error(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn length_of(file: &File) -> Result<u64, i32> {
    file.metadata().map(|it| it.len()).map_err(|it| error(&it))
}

/// In blocks, for a buffer of that size would be refused itself. What was written stays.
fn write_at(file: &File, at: u64, length: usize) -> Result<(), i32> {
    let block = [b'x'; 64 << 10];
    for offset in (0..length).step_by(block.len()) {
        let part = &block[..block.len().min(length - offset)];
        file.write_all_at(part, at + offset as u64)
            .map_err(|it| error(&it))?;
    }
    Ok(())
}

fn append(file: &File, length: usize) -> Result<(), i32> {
    write_at(file, length_of(file)?, length)
}

fn allocate(file: &File, length: usize) -> Result<(), i32> {
    let at = length_of(file)? as libc::off_t;
    // SAFETY: a descriptor of ours and numbers.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, at, length as libc::off_t) } {
        0 => Ok(()),
        _ => Err(errno()),
    }
}

fn hole(file: &File, length: usize) -> Result<(), i32> {
    let longer = length_of(file)? + length as u64;
    file.set_len(longer).map_err(|it| error(&it))?;
    write_at(file, longer - PAGE as u64, PAGE)
}

/// What is granted while files are being counted can be counted twice until the next count.
fn brim(file: &File) -> Result<(), i32> {
    let mut refused = 0;
    while refused < 5 {
        match append(file, PAGE) {
            Ok(()) => refused = 0,
            Err(libc::ENOSPC) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn send(from: &File, to: &File, length: usize) -> Result<(), i32> {
    let (mut sent, mut at) = (0, 0);
    while sent < length {
        // SAFETY: descriptors of ours; `at` is ours to write.
        match unsafe {
            libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), &raw mut at, length - sent)
        } {
            -1 => return Err(errno()),
            0 => break,
            more => sent += more as usize,
        }
    }
    Ok(())
}

fn fault(file: &File, length: usize) -> Result<(), i32> {
    let at = length_of(file)?.next_multiple_of(PAGE as u64);
    file.set_len(at + length as u64).map_err(|it| error(&it))?;
    // SAFETY: a fresh mapping of a file of ours, touched inside its length only.
    unsafe {
        let flags = libc::MAP_SHARED;
        let at = at as libc::off_t;
        let mapped = libc::mmap(
            std::ptr::null_mut(),
            length,
            WRITABLE,
            flags,
            file.as_raw_fd(),
            at,
        );
        if mapped == libc::MAP_FAILED {
            return Err(errno());
        }
        touch((mapped.cast(), length));
        unmap((mapped.cast(), length));
    }
    Ok(())
}

fn scribble(seconds: u64) -> String {
    let mut files: Vec<File> = Vec::new();
    let (mut granted, mut refused, mut other) = (0_u64, 0_u64, 0_u64);
    let mut seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let dice = random(&mut seed);
        let length = (1 + random(&mut seed) % 256) * PAGE;
        let asked = match (dice % 16, files.last()) {
            (0, _) | (_, None) => file_in_memory().map(|it| files.push(it)),
            (1..=8, Some(file)) => append(file, length),
            (9 | 10, Some(file)) => allocate(file, length),
            (11 | 12, Some(file)) => hole(file, length),
            (13, Some(file)) => write_at(file, 0, length),
            (14, Some(file)) => {
                let half = length_of(file).unwrap_or(0) / 2;
                file.set_len(half).map_err(|it| error(&it))
            }
            (_, Some(_)) => {
                files.truncate(files.len() / 2);
                Ok(())
            }
        };
        match asked {
            Ok(()) => granted += 1,
            Err(libc::ENOSPC) => refused += 1,
            Err(_) => other += 1,
        }
    }
    format!("granted {granted} refused {refused} other {other}")
}

/// mmap2 as a 32-bit program would: anonymous, private, writable.
#[cfg(target_arch = "x86_64")]
fn compat_map(length: usize) -> Result<(), i32> {
    let answer: i32;
    // SAFETY: the system call reads registers only and makes a fresh mapping below 4 GiB; rbx is
    // reserved by the compiler and put back.
    unsafe {
        std::arch::asm!(
            "push rbx", "push rbp", "xor ebx, ebx", "xor ebp, ebp", "int 0x80", "pop rbp", "pop rbx",
            inlateout("eax") 192 => answer,
            in("ecx") length as u32,
            in("edx") WRITABLE,
            in("esi") libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            in("edi") -1,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    if (-4095..0).contains(&answer) {
        Err(-answer)
    } else {
        Ok(())
    }
}

fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status
}

fn fork(then: impl FnOnce()) -> Result<i32, i32> {
    // SAFETY: called while this program has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(errno()),
        0 => {
            then();
            exit(0)
        }
        child => Ok(child),
    }
}

/// A whole program: ends at once, and has so much .bss.
fn image(bss: usize) -> Vec<u8> {
    #[cfg(target_arch = "x86_64")]
    // xor edi, edi; mov eax, 60; syscall
    const CODE: (u16, &[u8]) = (62, &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
    #[cfg(target_arch = "aarch64")]
    // mov x0, #0; mov x8, #93; svc #0
    const CODE: (u16, &[u8]) = (
        183,
        &[0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4],
    );
    const HEADERS: u64 = 64 + 2 * 56;
    let (text, data) = (0x40_0000_u64, 0x1000_0000_u64);
    let length = HEADERS + CODE.1.len() as u64;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |file: &mut Vec<u8>, it: u16| file.extend(it.to_le_bytes());
    let word = |file: &mut Vec<u8>, it: u32| file.extend(it.to_le_bytes());
    let long = |file: &mut Vec<u8>, it: u64| file.extend(it.to_le_bytes());
    // ET_EXEC, the machine, the version, where it begins, its program headers.
    [2, CODE.0].into_iter().for_each(|it| half(&mut file, it));
    word(&mut file, 1);
    [text + HEADERS, 64, 0]
        .into_iter()
        .for_each(|it| long(&mut file, it));
    word(&mut file, 0);
    [64, 56, 2, 0, 0, 0]
        .into_iter()
        .for_each(|it| half(&mut file, it));
    // PT_LOAD, readable and executable, then readable and writable; from the file's beginning.
    for (flags, at, size) in [(5, text, length), (6, data, length + bss as u64)] {
        word(&mut file, 1);
        word(&mut file, flags);
        [0, at, at, length, size, 0x1_0000]
            .into_iter()
            .for_each(|it| long(&mut file, it));
    }
    file.extend(CODE.1);
    file
}

/// How it ended.
fn become_image(bss: usize) -> Result<String, i32> {
    let file = file_in_memory()?;
    file.write_all_at(&image(bss), 0).map_err(|it| error(&it))?;
    let child = fork(|| {
        let nothing = [std::ptr::null::<libc::c_char>()];
        // SAFETY: a live descriptor, and two lists that are empty.
        unsafe { libc::fexecve(file.as_raw_fd(), nothing.as_ptr(), nothing.as_ptr()) };
        say("fexecve", name(errno()));
        exit(2)
    })?;
    let status = wait_for(child);
    Ok(if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("status {}", libc::WEXITSTATUS(status))
    })
}

fn arenas(count: usize) -> usize {
    // A thread of Rust's that begins where nothing is left aborts the program: all begin before.
    let begun = std::sync::Arc::new(std::sync::Barrier::new(count));
    let threads: Vec<_> = (0..count)
        .filter_map(|_| {
            let begun = begun.clone();
            std::thread::Builder::new()
                .spawn(move || {
                    begun.wait();
                    let mut got = 0;
                    // Small enough that glibc serves it from the thread's arena.
                    // SAFETY: malloc of a fixed size; kept until the process ends.
                    let one_more = || unsafe { std::hint::black_box(libc::malloc(64 << 10)) };
                    while got < 100_000 && !one_more().is_null() {
                        got += 1;
                    }
                    got
                })
                .ok()
        })
        .collect();
    let got: usize = threads.into_iter().filter_map(|it| it.join().ok()).sum();
    got >> 4
}

fn recurse(depth: usize) -> usize {
    let frame = std::hint::black_box([depth as u8; PAGE]);
    if depth == 0 {
        return usize::from(frame[0]);
    }
    recurse(depth - 1) + usize::from(std::hint::black_box(&frame)[depth % PAGE] & 1)
}

fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

fn hammer(seconds: u64) -> String {
    let mut held: Vec<(Mapping, bool)> = Vec::new();
    let (mut granted, mut refused, mut forks, mut no_forks) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    let end = Instant::now() + Duration::from_secs(seconds);
    // Larger than what starts up: from here on the barrier counts.
    let ballast = map(2 << 20, WRITABLE, libc::MAP_PRIVATE);
    while Instant::now() < end {
        let dice = random(&mut seed);
        let length = (1 + random(&mut seed) % 512) * PAGE;
        let mut note = |answer: bool| if answer { granted += 1 } else { refused += 1 };
        match dice % 8 {
            0..=2 => {
                let extra = if dice & 16 == 0 {
                    0
                } else {
                    libc::MAP_NORESERVE
                };
                let got = map(length, WRITABLE, libc::MAP_PRIVATE | extra);
                note(got.is_ok());
                held.extend(got.map(|it| (it, true)));
            }
            3 => {
                let got = map(
                    length,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_NORESERVE,
                );
                if let Ok(it) = got {
                    let writable = protect(it, WRITABLE).is_ok();
                    note(writable);
                    held.push((it, writable));
                }
            }
            4 => {
                if let Some((it, true)) = held.pop() {
                    match grow(it, it.1 + length) {
                        Ok(larger) => {
                            note(true);
                            held.push((larger, true));
                        }
                        Err(_) => {
                            note(false);
                            unmap(it);
                        }
                    }
                }
            }
            5 if dice & 0x70 == 0 => match fork(|| ()) {
                Ok(child) => {
                    wait_for(child);
                    forks += 1;
                }
                Err(_) => no_forks += 1,
            },
            6 => {
                if let Some(&(it, true)) = held.last() {
                    touch(it);
                }
            }
            _ => {
                let keep = held.len() / 2;
                held.drain(keep..).for_each(|(it, _)| unmap(it));
            }
        }
    }
    held.drain(..).for_each(|(it, _)| unmap(it));
    if let Ok(it) = ballast {
        unmap(it);
    }
    format!("granted {granted} refused {refused} forks {forks} refused-forks {no_forks}")
}

/// A child's life: ends by exit, or as another image of this program.
fn live(seed: &mut u64) {
    let mut held: Vec<(Mapping, bool)> = Vec::new();
    for _ in 0..4 + random(seed) % 16 {
        let length = (1 + random(seed) % 1024) * PAGE;
        match (random(seed) % 16, held.last().copied()) {
            (0..=4, _) | (_, None) => {
                let got = map(length, WRITABLE, libc::MAP_PRIVATE);
                held.extend(got.map(|it| (it, true)));
            }
            (5, _) => {
                let got = map(length, libc::PROT_NONE, libc::MAP_PRIVATE);
                held.extend(got.map(|it| (it, false)));
            }
            (6 | 7, Some((it, true))) => touch(it),
            (8 | 9, Some((it, is_writable))) => {
                if let Ok(larger) = grow(it, it.1 + length) {
                    held.pop();
                    held.push((larger, is_writable));
                }
            }
            (10, Some((it, is_writable))) => {
                let protection = if is_writable {
                    libc::PROT_READ
                } else {
                    WRITABLE
                };
                if protect(it, protection).is_ok() {
                    held.pop();
                    held.push((it, !is_writable));
                }
            }
            (11 | 12, Some((it, _))) => {
                held.pop();
                unmap(it);
            }
            (13, _) => {
                let end = |mine: &Mapping| unmap(*mine);
                let got = fork(|| held.iter().map(|(it, _)| it).for_each(end));
                let _ = got.map(wait_for);
            }
            (14, _) if random(seed).is_multiple_of(2) => {
                let me = std::env::current_exe().unwrap_or_default();
                let _ = std::process::Command::new(me)
                    .args(["map=3M", "touch", "grow=5M", "fork"])
                    .exec();
            }
            (15, _) => return,
            _ => {}
        }
    }
}

fn sequences(count: u64) -> String {
    let (mut ended, mut not_made, mut given_up, mut killed) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut seed = 0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id());
    while ended + given_up + killed < count {
        random(&mut seed);
        match fork(|| live(&mut seed)) {
            Ok(child) => match wait_for(child) {
                status if libc::WIFEXITED(status) => ended += 1,
                status if libc::WTERMSIG(status) == libc::SIGKILL => killed += 1,
                // Some programs, and ld.so, end themselves where they are refused memory as they start.
                _ => given_up += 1,
            },
            Err(_) => {
                // The others fill the account: their children end.
                not_made += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    format!("ended {ended} not-made {not_made} given-up {given_up} killed {killed}")
}

/// Does it for so long; returns how often it was as asked.
fn count_while(seconds: u64, is_so: impl Fn() -> bool) -> u64 {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut count = 0;
    while Instant::now() < end {
        count += u64::from(is_so());
    }
    count
}

/// A mapping of that size that is given back at once; whether it was granted.
fn maps(length: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    let got = map(length, WRITABLE, flags);
    got.inspect(|&it| unmap(it)).is_ok()
}

fn reserves(pages: libc::c_ulong) -> bool {
    // SAFETY: numbers only.
    let answer = unsafe { libc::prctl(GATE_PRCTL, 1, pages, 0, 0) };
    answer != 0 && errno() == libc::EINPROGRESS
}

/// The median of 15 rounds, in nanoseconds each.
fn nanoseconds(repeat: u32, act: impl Fn()) -> u128 {
    let mut rounds: Vec<u128> = (0..15)
        .map(|_| {
            let begun = Instant::now();
            (0..repeat).for_each(|_| act());
            begun.elapsed().as_nanos() / u128::from(repeat)
        })
        .collect();
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

fn time() -> String {
    let map_and = |act: fn(Mapping)| {
        if let Ok(it) = map(1 << 20, WRITABLE, libc::MAP_PRIVATE) {
            act(it);
            unmap(it);
        }
    };
    // SAFETY: plain system calls on numbers; whether they are granted is not asked.
    let (getpid, pair) = unsafe {
        (
            nanoseconds(2000, || {
                libc::syscall(libc::SYS_getpid);
            }),
            nanoseconds(2000, || {
                libc::prctl(GATE_PRCTL, 1, 1, 0, 0);
                libc::prctl(GATE_PRCTL, 2, 1, 0, 0);
            }),
        )
    };
    let untouched = nanoseconds(500, || map_and(|_| ()));
    let touched = nanoseconds(20, || map_and(touch));
    format!("{getpid} {untouched} {touched} {pair}")
}

fn perform(steps: &[String]) {
    let mut held: Vec<Mapping> = Vec::new();
    let mut files: Vec<File> = Vec::new();
    let answer = |step: &str, result: Result<(), i32>| match result {
        Ok(()) => say(step, "ok"),
        Err(errno) => say(step, name(errno)),
    };
    for (index, step) in steps.iter().enumerate() {
        let (verb, value) = step.split_once('=').unwrap_or((step, ""));
        let last = held.last().copied();
        match verb {
            "uid" => {
                let uid = value.parse().unwrap_or(u32::MAX);
                // SAFETY: plain system calls on numbers.
                let failed = unsafe {
                    libc::setgroups(0, std::ptr::null()) != 0
                        || libc::setresgid(uid, uid, uid) != 0
                        || libc::setresuid(uid, uid, uid) != 0
                        || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                };
                if failed {
                    say(step, name(errno()));
                    exit(2);
                }
            }
            "map" | "noreserve" | "shared" | "none" | "hugetlb" => {
                let (protection, flags) = match verb {
                    "map" => (WRITABLE, libc::MAP_PRIVATE),
                    "noreserve" => (WRITABLE, libc::MAP_PRIVATE | libc::MAP_NORESERVE),
                    "shared" => (WRITABLE, libc::MAP_SHARED),
                    "hugetlb" => (WRITABLE, libc::MAP_PRIVATE | libc::MAP_HUGETLB),
                    _ => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_NORESERVE),
                };
                let got = map(size(value), protection, flags);
                answer(step, got.map(|it| held.push(it)));
            }
            "writable" | "readonly" => {
                let protection = if verb == "writable" {
                    WRITABLE
                } else {
                    libc::PROT_READ
                };
                let got = last.map_or(Err(libc::EINVAL), |it| protect(it, protection));
                answer(step, got);
            }
            #[cfg(target_arch = "x86_64")]
            "compat" => answer(step, compat_map(size(value))),
            #[cfg(not(target_arch = "x86_64"))]
            "compat" => {}
            "grow" => {
                let got = last.map_or(Err(libc::EINVAL), |it| grow(it, size(value)));
                answer(
                    step,
                    got.map(|it| {
                        held.pop();
                        held.push(it);
                    }),
                );
            }
            "leave" => {
                let got = last.map_or(Err(libc::EINVAL), leave);
                answer(step, got.map(|it| held.push(it)));
            }
            "brk" => {
                // SAFETY: the heap's end; nothing below it changes.
                let at = unsafe { libc::sbrk(size(value) as isize) };
                let failed = at as isize == -1;
                answer(step, if failed { Err(errno()) } else { Ok(()) });
            }
            "malloc" => {
                // SAFETY: never freed, only counted.
                let at = unsafe { std::hint::black_box(libc::malloc(size(value))) };
                answer(step, if at.is_null() { Err(errno()) } else { Ok(()) });
            }
            "arenas" => say(step, arenas(size(value))),
            "thread" => {
                let made = std::thread::Builder::new()
                    .stack_size(64 << 20)
                    .spawn(|| ());
                let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
                answer(step, made.map(|it| drop(it.join())).map_err(failed));
            }
            "touch" => last.into_iter().for_each(touch),
            "drop" => held.pop().into_iter().for_each(unmap),
            "fork" => answer(
                step,
                fork(|| ()).map(|child| {
                    wait_for(child);
                }),
            ),
            "forked" => {
                let rest: Vec<String> = value.split('+').map(str::to_owned).collect();
                match fork(|| perform(&rest)) {
                    Ok(child) => {
                        let status = wait_for(child);
                        if status != 0 {
                            say(step, format!("status {status}"));
                        }
                    }
                    Err(errno) => say(step, name(errno)),
                }
            }
            "session" => {
                // SAFETY: no arguments.
                let led = unsafe { libc::setsid() };
                if led < 0 {
                    say(step, name(errno()));
                }
            }
            "run" => match std::process::Command::new("sh")
                .args(["-c", value])
                .status()
            {
                Ok(status) => say(step, status.code().unwrap_or(-1)),
                Err(error) => say(step, name(error.raw_os_error().unwrap_or(0))),
            },
            "image" => match become_image(size(value)) {
                Ok(end) => say(step, end),
                Err(errno) => say(step, name(errno)),
            },
            "recurse" => {
                std::hint::black_box(recurse(size(value) / (PAGE + 256)));
                say(step, "ok");
            }
            "reserve" | "commit" => {
                let operation: libc::c_ulong = if verb == "reserve" { 1 } else { 2 };
                let pages = value.parse::<libc::c_ulong>().unwrap_or(0);
                let none: libc::c_ulong = 0;
                // SAFETY: numbers only.
                let got = unsafe { libc::prctl(GATE_PRCTL, operation, pages, none, none) };
                say(
                    step,
                    if got == 0 {
                        "0".to_owned()
                    } else {
                        name(errno())
                    },
                );
            }
            "file" => answer(
                step,
                file_in_memory().and_then(|file| {
                    let written = append(&file, size(value));
                    files.push(file);
                    written
                }),
            ),
            "append" | "over" | "allocate" | "hole" | "fault" => {
                let act = |file: &File| match verb {
                    "append" => append(file, size(value)),
                    "over" => write_at(file, 0, size(value)),
                    "allocate" => allocate(file, size(value)),
                    "hole" => hole(file, size(value)),
                    _ => fault(file, size(value)),
                };
                answer(step, files.last().map_or(Err(libc::EBADF), act));
            }
            "send" => {
                let sent = files.last().ok_or(libc::EBADF).and_then(|from| {
                    let to = file_in_memory()?;
                    send(from, &to, size(value)).map(|()| to)
                });
                answer(step, sent.map(|to| files.push(to)));
            }
            "most" => {
                let file = files.last();
                let before = file.map_or(Err(libc::EBADF), length_of).unwrap_or(0);
                while file.is_some_and(|it| append(it, size(value)).is_ok()) {}
                let after = file.map_or(Err(libc::EBADF), length_of).unwrap_or(0);
                say(step, (after - before) >> 20);
            }
            "brim" => answer(step, files.last().map_or(Err(libc::EBADF), brim)),
            "delete" => drop(files.pop()),
            "scribble" => say(step, scribble(value.parse().unwrap_or(1))),
            "sequences" => say(step, sequences(value.parse().unwrap_or(1))),
            "hammer" => say(step, hammer(value.parse().unwrap_or(1))),
            "vain-map" | "vain-reserve" | "modest" => {
                let seconds = value.parse().unwrap_or(1);
                let count = match verb {
                    "vain-map" => count_while(seconds, || maps(1 << 42)),
                    "vain-reserve" => count_while(seconds, || reserves(1 << 30)),
                    _ => count_while(seconds, || !maps(2 << 20)),
                };
                say(step, count);
            }
            "fill" => {
                while let Ok(it) = map(size(value), WRITABLE, libc::MAP_PRIVATE) {
                    touch(it);
                    held.push(it);
                }
                answer(step, Ok(()));
            }
            "time" => say(step, time()),
            "exec" => {
                let me = std::env::current_exe().unwrap_or_default();
                let why = std::process::Command::new(me)
                    .args(&steps[index + 1..])
                    .exec();
                say(step, name(why.raw_os_error().unwrap_or(0)));
                return;
            }
            "wait" => {
                say(step, "waiting");
                let mut line = String::new();
                let _ = std::io::stdin().lock().read_line(&mut line);
            }
            _ => {
                say(step, "no such step");
                exit(2)
            }
        }
    }
}

fn main() {
    let steps: Vec<String> = std::env::args().skip(1).collect();
    perform(&steps);
}
