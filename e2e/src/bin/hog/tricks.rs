// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways to hold memory that a plain sum of resident pages might miss: what `stories evasion` tries.
//!
//! | step | what it does |
//! | --- | --- |
//! | `file=PATH:SIZE` | writes so much into a file and closes it |
//! | `files=DIRECTORY:N:SIZE` | writes so much into each of N files |
//! | `remove=PATH` | removes a file |
//! | `unlinked=SIZE` | writes so much into a file of /dev/shm that has no name any more |
//! | `memfd=SIZE` | writes so much into a memfd |
//! | `memfds=N:SIZE` | the same in N of them |
//! | `allocated=SIZE` | the same by fallocate(2), without a write |
//! | `secret=SIZE` | touches a mapping of memfd_secret(2) |
//! | `parked=SIZE` | the same, with its only descriptor on its way through a socket |
//! | `sysv=SIZE` | fills a System V segment and lets go of it |
//! | `sysv-in-parts=SIZE:N` | the same a part at a time, N parts of so much, half a second between them |
//! | `hidden=SIZE` | fills shared anonymous memory and unmaps its pages, not the memory |
//! | `tmpfs=SIZE` | mounts a tmpfs in a mount namespace of its own and fills it (after `userns-root`) |
//! | `ramfs=SIZE` | the same with ramfs, which has no bound of its own |
//! | `mapped-file=PATH:SIZE` | makes a file, maps it and touches all of it |
//! | `private-file=PATH:SIZE` | the same file by a private mapping: each page written is a copy beside the file's |
//! | `heap=SIZE` | touches so much by sbrk(2) |
//! | `threads=N:SIZE` | N threads hold so much each, at once |
//! | `vfork-hold=SIZE` | a child of vfork holds it in this one's memory |
//! | `populate=SIZE` | one MAP_POPULATE |
//! | `huge=SIZE` | touches memory that asked for huge pages |
//! | `lockable` | may lock as much as it likes (before `uid`) |
//! | `grow=SIZE` | mremap by mremap, moving it each time |
//! | `lazy=SIZE` | touches it and gives it back with MADV_FREE, which nobody has to take |
//! | `by-copy=SIZE` | a userfaultfd handler fills it with UFFDIO_COPY |
//! | `write-child=SIZE` | fills the memory of a child that only waits, by process_vm_writev |
//! | `write-child-at-once=SIZE` | the same in a single call, which a dead child does not end |
//! | `poke-child=SIZE` | the same by /proc/PID/mem |
//! | `orphan=SIZE` | the same once the child has ended: a process_vm_readv(2) that takes long keeps the memory |
//! | `traced=SIZE` | a child holds it and is stopped under ptrace |
//! | `leaving=SIZE` | a child holds it, ends, and is held by its tracer at its exit |
//! | `stop` | stops itself |
//! | `detach` | double fork and setsid: the rest is done by a grandchild of nobody |
//! | `userns-root` | moves into a user namespace where it is root, mapped |
//! | `userns-for=UID:MAP` | becomes that user and moves into a user namespace of his; who he was before maps it: `FIRST-LOWER-COUNT,…` |
//! | `pidns` | the rest is done by pid 1 of a pid namespace (after `userns-root`) |
//! | `numbered=PID` | the rest is done by a child with this number, which nobody has; killed, it takes this one along |
//! | `uids=A:B` | becomes A in truth and B in effect, who may become B for good |
//! | `unseen-uids=A:B` | says `ready`, waits for a line, does that by system calls alone, without a page fault, and waits for ever |
//! | `zombies=N:SIZE` | N children hold so much and end; nobody waits for them |
//! | `run=PATH` | the rest is done by that program |
//! | `effective` | makes its effective uid its only one |
//! | `sparse=SIZE` | reads one page in every 2 MiB of so much, which takes page tables only |
//! | `hugetlb=SIZE` | touches pages of the pool of huge pages |
//! | `hugetlb-by=SIZE:N` | the same, shared with N children, which touch them too and do the rest |
//! | `swapped=SIZE` | touches it and has each MiB swapped out at once |
//! | `pipes=SIZE` | fills pipes |
//! | `sockets=SIZE` | fills socket buffers |
//! | `packet-ring=SIZE` | maps a packet socket's ring in a network namespace of its own and fills it (after `userns-root`) |
//! | `messages=SIZE` | fills System V message queues of an IPC namespace of its own (after `userns-root`) |
//! | `mappings=N` | makes so many mappings and touches none |
//! | `orphans=FIRST-COUNT:SOCKET` | keeps twenty connections to bursard for each of those uids, made by children that have ended; says so, waits for a line, and says how many it let in, and the account of one |
//! | `cling=SOCKET` | keeps twenty connections to bursard; says how many it let in, and its own account |
//! | `thread-asked=SOCKET:ACCOUNT` | asks to be let into an account while there is a second thread, which then does the rest in a fresh image |
//! | `thread-asking=SOCKET:ACCOUNT` | the same, and the thread is made behind the question and waits for no answer |
//! | `answer=FD` | prints the line that comes from a descriptor |
//! | `gift=SIZE` | a page of each huge page goes into a pipe, and the memory away |
//! | `keep-lock=PATH` | from now on nobody gets at its memory (maps, process_mrelease), if PATH is a file of `stuck_fuse`'s |
//! | `keep-lock-in-exec=PATH` | the same, and a child is in the middle of an execve, for which it wants that lock: who asks whether two processes have one memory waits for it |
//! | `caller=SOCKET` | whoever is in the middle of an execve from then on has connected to this socket before |
//! | `asks=REQUEST` | and has sent this line over it, without an answer |

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::{become_user, fail, fork, map, number, pause, perform, size, touch, unmap, vfork};

const CHUNK: usize = 1 << 20;
const HUGE: usize = 2 << 20;

fn last(step: &str) -> ! {
    fail(step, std::io::Error::last_os_error())
}

fn fill(step: &str, file: &mut File, length: usize) {
    let chunk = vec![1_u8; CHUNK];
    let mut left = length;
    while left > 0 {
        let part = left.min(CHUNK);
        if let Err(why) = file.write_all(&chunk[..part]) {
            fail(step, why);
        }
        left -= part;
    }
}

fn memfd(step: &str) -> File {
    // SAFETY: a NUL-terminated name.
    let fd = unsafe { libc::memfd_create(c"hog".as_ptr(), 0) };
    if fd < 0 {
        last(step);
    }
    // SAFETY: fresh, and nobody else's.
    unsafe { File::from_raw_fd(fd) }
}

fn split<'a>(step: &str, value: &'a str) -> (&'a str, &'a str) {
    value
        .rsplit_once(':')
        .unwrap_or_else(|| fail(step, "PATH:SIZE"))
}

/// fork(2) of a child with this number: clone3(2) set_tid, 5.5.
fn fork_numbered(number: libc::pid_t) -> i64 {
    // SAFETY: a structure of numbers.
    let mut how: libc::clone_args = unsafe { std::mem::zeroed() };
    how.exit_signal = libc::SIGCHLD as u64;
    how.set_tid = std::ptr::from_ref(&number) as u64;
    how.set_tid_size = 1;
    // SAFETY: both live until the call returns; this program has one thread.
    unsafe { libc::syscall(libc::SYS_clone3, &raw mut how, size_of_val(&how)) }
}

/// Sets the real and the effective uid, the latter as the saved one too. Groups are left alone.
fn take_uids(step: &str, value: &str) -> bool {
    let (real, effective) = split(step, value);
    let (real, effective) = (
        number(step, real) as libc::uid_t,
        number(step, effective) as libc::uid_t,
    );
    // SAFETY: a plain system call on numbers.
    unsafe { libc::setresuid(real, effective, effective) == 0 }
}

fn create(step: &str, path: &str) -> File {
    File::create(path).unwrap_or_else(|why| fail(step, why))
}

/// Keeps it open for as long as this process lives.
fn keep(file: File) {
    std::mem::forget(file);
}

fn park(step: &str, file: File) {
    let mut pair = [0; 2];
    // SAFETY: two descriptors are written.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr()) } != 0 {
        last(step);
    }
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: zeroes are a message without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic; and the header and its descriptor lie within `control`.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header)
            .cast::<RawFd>()
            .write_unaligned(file.as_raw_fd());
        if libc::sendmsg(pair[0], &raw const message, 0) < 0 {
            last(step);
        }
    }
}

fn forget_pages(at: *mut u8, length: usize) {
    // SAFETY: a mapping of ours that holds nothing we need.
    unsafe { libc::madvise(at.cast(), length, libc::MADV_DONTNEED) };
}

/// Touches it piece by piece, and never has more than a piece of it mapped.
fn touch_hidden(at: *mut u8, length: usize) {
    for offset in (0..length).step_by(CHUNK) {
        let part = (length - offset).min(CHUNK);
        // SAFETY: inside the mapping.
        let piece = unsafe { at.add(offset) };
        touch(piece, part);
        forget_pages(piece, part);
    }
}

/// A System V segment of `count` parts, filled one after the other with a rest between them, and let go of.
fn fill_segment(step: &str, part: usize, count: usize, rest: Duration) {
    // SAFETY: a fresh segment, attached wherever the kernel likes.
    let at = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, part * count, 0o600 | libc::IPC_CREAT);
        if id < 0 {
            last(step);
        }
        libc::shmat(id, std::ptr::null(), 0)
    };
    if at as isize == -1 {
        last(step);
    }
    for index in 0..count {
        if index > 0 {
            std::thread::sleep(rest);
        }
        // SAFETY: inside what is attached.
        touch_hidden(unsafe { at.cast::<u8>().add(index * part) }, part);
    }
    // SAFETY: attached above, and not used any more.
    unsafe { libc::shmdt(at) };
}

fn must_map(step: &str, length: usize, flags: i32) -> *mut u8 {
    map(length, flags).unwrap_or_else(|| last(step))
}

/// A child that only waits, with so much reserved; its pid and where.
fn waiting_child(step: &str, length: usize) -> (i32, *mut u8) {
    let at = must_map(step, length, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    // Who has changed his uid is nobody's to look into, not even his own.
    // SAFETY: a plain system call.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) } != 0 {
        last(step);
    }
    match fork() {
        0 => loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        },
        child => (child, at),
    }
}

fn sized_file(step: &str, path: &str, length: usize) -> File {
    let mut options = File::options();
    let options = options.create(true).truncate(true).read(true).write(true);
    let file = options.open(path).unwrap_or_else(|why| fail(step, why));
    if let Err(why) = file.set_len(length as u64) {
        fail(step, why);
    }
    file
}

fn touch_privately(step: &str, file: &File, length: usize) {
    // SAFETY: a fresh mapping wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        last(step);
    }
    touch(at.cast(), length);
}

fn memory_of(step: &str, child: i32) -> File {
    let path = format!("/proc/{child}/mem");
    let memory = File::options().write(true).open(path);
    memory.unwrap_or_else(|why| fail(step, why))
}

fn poke(step: &str, memory: &File, at: *mut u8, length: usize) {
    use std::os::unix::fs::FileExt;
    let chunk = vec![1_u8; CHUNK];
    for offset in (0..length).step_by(CHUNK) {
        if let Err(why) = memory.write_all_at(&chunk, (at as usize + offset) as u64) {
            fail(step, why);
        }
    }
}

/// One call that copies 1 GiB out of `child`, 1 MiB over and over, when nobody else wants a processor.
fn read_slowly(child: i32, chunk: *mut u8) -> ! {
    let piece = libc::iovec {
        iov_base: chunk.cast(),
        iov_len: CHUNK,
    };
    let pieces = [piece; 1024];
    let idle = libc::sched_param { sched_priority: 0 };
    // SAFETY: a plain system call with a live structure; then one that writes to memory of ours.
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const idle);
        let count = pieces.len() as libc::c_ulong;
        libc::process_vm_readv(child, pieces.as_ptr(), count, pieces.as_ptr(), count, 0);
    }
    exit(0)
}

fn orphan(step: &str, length: usize) {
    let chunk = must_map(step, CHUNK, libc::MAP_PRIVATE);
    touch(chunk, CHUNK);
    let (child, at) = waiting_child(step, length);
    let memory = memory_of(step, child);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..2 * processors {
        if fork() == 0 {
            loop {
                std::hint::spin_loop();
            }
        }
    }
    if fork() == 0 {
        read_slowly(child, chunk);
    }
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: a child of ours, not waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    poke(step, &memory, at, length);
}

fn write_map(step: &str, what: &str, text: &str) {
    if let Err(why) = std::fs::write(format!("/proc/self/{what}"), text) {
        fail(step, why);
    }
}

/// As newuidmap does it: a child that stays outside, and who we are now, writes the map.
fn move_mapped(step: &str, uid: u32, map: &str) {
    let map = map.replace('-', " ").replace(',', "\n") + "\n";
    let Ok((mut ready, mut here)) = UnixStream::pair() else {
        last(step)
    };
    let us = std::process::id();
    let child = fork();
    if child == 0 {
        drop(here);
        let is_mapped = ready.read_exact(&mut [0]).is_ok()
            && ["uid_map", "gid_map"]
                .iter()
                .all(|what| std::fs::write(format!("/proc/{us}/{what}"), &map).is_ok());
        exit(i32::from(!is_mapped));
    }
    become_user(step, uid);
    // SAFETY: a plain system call; this program has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 || here.write_all(&[0]).is_err() {
        last(step);
    }
    let mut status = 0;
    // SAFETY: waits for our own child; the status is a live local.
    if unsafe { libc::waitpid(child, &raw mut status, 0) } != child || status != 0 {
        fail(step, "the map was not written");
    }
}

fn by_copy(step: &str, length: usize) {
    const UFFD_USER_MODE_ONLY: libc::c_int = 1;
    const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
    const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
    const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
    // SAFETY: a plain system call.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) }
        as RawFd;
    if fd < 0 {
        last(step);
    }
    // Touched first: the two may be neighbours, and one huge page would be in both.
    let source = must_map(step, CHUNK, libc::MAP_PRIVATE);
    touch(source, CHUNK);
    let at = must_map(step, length, libc::MAP_PRIVATE);
    // include/uapi/linux/userfaultfd.h: api, features, ioctls
    let mut api = [0xaa_u64, 0, 0];
    // start, len, mode (missing), ioctls
    let mut register = [at as u64, length as u64, 1, 0];
    // SAFETY: both are as long as the calls say.
    unsafe {
        if libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) != 0
            || libc::ioctl(fd, UFFDIO_REGISTER, register.as_mut_ptr()) != 0
        {
            last(step);
        }
    }
    for offset in (0..length).step_by(CHUNK) {
        // dst, src, len, mode, copied
        let mut copy = [
            (at as u64) + offset as u64,
            source as u64,
            CHUNK as u64,
            0,
            0,
        ];
        // SAFETY: inside the registered range.
        if unsafe { libc::ioctl(fd, UFFDIO_COPY, copy.as_mut_ptr()) } != 0 {
            last(step);
        }
    }
}

fn gift(step: &str, length: usize) {
    let at = must_map(step, length + HUGE, libc::MAP_PRIVATE);
    let first = (at as usize).next_multiple_of(HUGE) as *mut u8;
    // SAFETY: inside the mapping.
    unsafe { libc::madvise(first.cast(), length, libc::MADV_HUGEPAGE) };
    let mut pipe = [0; 2];
    let mut in_pipe = 16;
    for offset in (0..length).step_by(HUGE) {
        if in_pipe == 16 {
            in_pipe = 0;
            // SAFETY: two descriptors are written; those of a former pipe stay open on purpose.
            if unsafe { libc::pipe(pipe.as_mut_ptr()) } != 0 {
                last(step);
            }
        }
        // SAFETY: inside the mapping.
        let piece = unsafe { first.add(offset) };
        touch(piece, HUGE);
        let part = libc::iovec {
            iov_base: piece.cast(),
            iov_len: 4096,
        };
        // SAFETY: one page of ours.
        if unsafe { libc::vmsplice(pipe[1], &raw const part, 1, 0) } != 4096 {
            last(step);
        }
        in_pipe += 1;
        unmap(piece, HUGE);
    }
}

fn swapped_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    line.and_then(|it| it.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Does `verb`; false if it is none of these.
pub(super) fn perform_trick(step: &str, verb: &str, value: &str, rest: &[String]) -> bool {
    match verb {
        "file" => {
            let (path, length) = split(step, value);
            fill(step, &mut create(step, path), size(step, length));
        }
        "files" => {
            let (path, length) = split(step, value);
            let (path, count) = split(step, path);
            for index in 0..number(step, count) {
                fill(
                    step,
                    &mut create(step, &format!("{path}/{index}")),
                    size(step, length),
                );
            }
        }
        "cling" => cling(step, value),
        "orphans" => orphans(step, value),
        "thread-asked" => ask_beside_a_thread(step, value, rest, true),
        "thread-asking" => ask_beside_a_thread(step, value, rest, false),
        "answer" => {
            // SAFETY: a descriptor that nobody else in this image knows.
            let stream = unsafe { UnixStream::from_raw_fd(number(step, value) as RawFd) };
            let mut answer = String::new();
            if let Err(why) = BufReader::new(stream).read_line(&mut answer) {
                fail(step, why);
            }
            print!("{answer}");
            let _ = std::io::stdout().flush();
        }
        "remove" => {
            if let Err(why) = std::fs::remove_file(value) {
                fail(step, why);
            }
        }
        "unlinked" => {
            let path = format!("/dev/shm/hog-{}", std::process::id());
            let mut file = create(step, &path);
            let _ = std::fs::remove_file(path);
            fill(step, &mut file, size(step, value));
            keep(file);
        }
        "memfd" => {
            let mut file = memfd(step);
            fill(step, &mut file, size(step, value));
            keep(file);
        }
        "allocated" => {
            let file = memfd(step);
            let length = size(step, value) as u64;
            if let Err(why) =
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length)
            {
                fail(step, why);
            }
            keep(file);
        }
        "secret" => {
            // SAFETY: a plain system call.
            let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
            if fd < 0 {
                last(step);
            }
            // SAFETY: fresh, and nobody else's.
            let file = unsafe { File::from_raw_fd(fd as RawFd) };
            let length = size(step, value);
            if let Err(why) = file.set_len(length as u64) {
                fail(step, why);
            }
            super::touch_file(step, &file, length);
            keep(file);
        }
        "memfds" => {
            let (count, length) = split(step, value);
            for _ in 0..number(step, count) {
                let mut file = memfd(step);
                fill(step, &mut file, size(step, length));
                keep(file);
            }
        }
        "parked" => {
            let mut file = memfd(step);
            fill(step, &mut file, CHUNK);
            // The rest by another open file, so that nothing but the socket has it in the end.
            let mut other = file.try_clone().unwrap_or_else(|why| fail(step, why));
            park(step, file);
            fill(step, &mut other, size(step, value) - CHUNK);
        }
        "sysv" => fill_segment(step, size(step, value), 1, Duration::ZERO),
        "sysv-in-parts" => {
            let (part, count) = split(step, value);
            let count = count.parse().unwrap_or_else(|why| fail(step, why));
            fill_segment(step, size(step, part), count, Duration::from_millis(500));
        }
        "hidden" => {
            let length = size(step, value);
            touch_hidden(must_map(step, length, libc::MAP_SHARED), length);
        }
        "tmpfs" | "ramfs" => {
            let kind = if verb == "tmpfs" { c"tmpfs" } else { c"ramfs" };
            // SAFETY: plain system calls; the strings end with NUL.
            let failed = unsafe {
                libc::unshare(libc::CLONE_NEWNS) != 0
                    || libc::mount(
                        c"none".as_ptr(),
                        c"/tmp".as_ptr(),
                        kind.as_ptr(),
                        0,
                        // ramfs takes whatever option it is given, and has no size.
                        c"size=90%".as_ptr().cast(),
                    ) != 0
            };
            if failed {
                last(step);
            }
            fill(step, &mut create(step, "/tmp/hog"), size(step, value));
        }
        "mapped-file" => {
            let (path, length) = split(step, value);
            let length = size(step, length);
            super::touch_file(step, &sized_file(step, path, length), length);
        }
        "private-file" => {
            let (path, length) = split(step, value);
            let length = size(step, length);
            touch_privately(step, &sized_file(step, path, length), length);
        }
        "heap" => {
            let length = size(step, value);
            // SAFETY: nobody else moves the end of the heap meanwhile: there is one thread.
            let at = unsafe { libc::sbrk(length as libc::intptr_t) };
            if at as isize == -1 {
                last(step);
            }
            touch(at.cast(), length);
        }
        "threads" => {
            let (count, length) = split(step, value);
            let length = size(step, length);
            let workers: Vec<_> = (0..number(step, count))
                .map(|_| {
                    std::thread::spawn(move || {
                        if let Some(at) = map(length, libc::MAP_PRIVATE) {
                            touch(at, length);
                        }
                    })
                })
                .collect();
            for worker in workers {
                let _ = worker.join();
            }
        }
        "vfork-hold" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE);
            // SAFETY: the child writes to a mapping that both have and waits for a signal.
            if unsafe { vfork() } == 0 {
                touch(at, length);
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { pause() };
                }
            }
        }
        "populate" => {
            must_map(
                step,
                size(step, value),
                libc::MAP_PRIVATE | libc::MAP_POPULATE,
            );
        }
        "huge" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE);
            // SAFETY: a mapping of ours.
            unsafe { libc::madvise(at.cast(), length, libc::MADV_HUGEPAGE) };
            touch(at, length);
        }
        "lockable" => {
            let limit = libc::rlimit {
                rlim_cur: libc::RLIM_INFINITY,
                rlim_max: libc::RLIM_INFINITY,
            };
            // SAFETY: a live local.
            if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) } != 0 {
                last(step);
            }
        }
        "grow" => {
            let mut length = CHUNK;
            let mut at = must_map(step, length, libc::MAP_PRIVATE);
            while length < size(step, value) {
                touch(at, length);
                let wall = must_map(step, 4096, libc::MAP_PRIVATE);
                // SAFETY: our own mapping, which may move.
                let moved = unsafe {
                    libc::mremap(at.cast(), length, length + CHUNK, libc::MREMAP_MAYMOVE)
                };
                unmap(wall, 4096);
                if moved == libc::MAP_FAILED {
                    last(step);
                }
                at = moved.cast();
                length += CHUNK;
            }
        }
        "lazy" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE);
            for offset in (0..length).step_by(CHUNK) {
                // SAFETY: inside the mapping.
                let piece = unsafe { at.add(offset) };
                touch(piece, CHUNK.min(length - offset));
                // SAFETY: the same.
                unsafe { libc::madvise(piece.cast(), CHUNK.min(length - offset), libc::MADV_FREE) };
            }
        }
        "by-copy" => by_copy(step, size(step, value)),
        "write-child" => {
            let length = size(step, value);
            let (child, at) = waiting_child(step, length);
            let mut chunk = vec![1_u8; CHUNK];
            for offset in (0..length).step_by(CHUNK) {
                let from = libc::iovec {
                    iov_base: chunk.as_mut_ptr().cast(),
                    iov_len: CHUNK,
                };
                let to = libc::iovec {
                    // SAFETY: inside the mapping, which the child has too.
                    iov_base: unsafe { at.add(offset) }.cast(),
                    iov_len: CHUNK,
                };
                // SAFETY: reads our chunk and writes to the child.
                if unsafe { libc::process_vm_writev(child, &from, 1, &to, 1, 0) } < 0 {
                    last(step);
                }
            }
        }
        "write-child-at-once" => {
            let length = size(step, value);
            let (child, at) = waiting_child(step, length);
            let mut chunk = vec![1_u8; CHUNK];
            let from: Vec<_> = (0..length.div_ceil(CHUNK))
                .map(|_| libc::iovec {
                    iov_base: chunk.as_mut_ptr().cast(),
                    iov_len: CHUNK,
                })
                .collect();
            let to = libc::iovec {
                iov_base: at.cast(),
                iov_len: length,
            };
            let count = from.len() as libc::c_ulong;
            // SAFETY: reads our chunk many times and writes to the child.
            match unsafe { libc::process_vm_writev(child, from.as_ptr(), count, &to, 1, 0) } {
                ..0 => last(step),
                put if put.cast_unsigned() == length => fail(step, "all of it was written"),
                _ => {}
            }
        }
        "poke-child" => {
            let length = size(step, value);
            let (child, at) = waiting_child(step, length);
            poke(step, &memory_of(step, child), at, length);
        }
        "orphan" => orphan(step, size(step, value)),
        "leaving" => {
            let length = size(step, value);
            let child = fork();
            if child == 0 {
                // SAFETY: plain system calls; the parent says when to go on.
                unsafe {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                }
                touch(must_map(step, length, libc::MAP_PRIVATE), length);
                exit(0);
            }
            let mut status = 0;
            // SAFETY: our own child, stopped, and a live local.
            unsafe {
                libc::waitpid(child, &mut status, 0);
                let options = libc::PTRACE_O_TRACEEXIT as usize;
                libc::ptrace(libc::PTRACE_SETOPTIONS, child, 0usize, options);
                libc::ptrace(libc::PTRACE_CONT, child, 0usize, 0usize);
                libc::waitpid(child, &mut status, 0);
            }
            if status >> 16 != libc::PTRACE_EVENT_EXIT {
                fail(step, "it is not held at its exit");
            }
        }
        "caller" => {
            let _ = CALLED.set(CString::new(value).unwrap_or_default());
        }
        "asks" => {
            let _ = ASKED.set(format!("{value}\n").into_bytes());
        }
        "keep-lock" => keep_lock(step, value, false),
        "keep-lock-in-exec" => keep_lock(step, value, true),
        "traced" => {
            let length = size(step, value);
            let child = fork();
            if child == 0 {
                let at = must_map(step, length, libc::MAP_PRIVATE);
                touch(at, length);
                // SAFETY: plain system calls.
                unsafe {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: our own child and a live local.
            unsafe { libc::waitpid(child, &mut status, 0) };
            if !libc::WIFSTOPPED(status) {
                fail(step, "it is not stopped");
            }
        }
        "stop" => {
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        "detach" => {
            if fork() != 0 {
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            // SAFETY: this process leads no group.
            unsafe { libc::setsid() };
            let parent = std::process::id();
            if fork() != 0 {
                exit(0);
            }
            // Who is to die with his parent (step `uid`) means nobody's who has gone already.
            while std::os::unix::process::parent_id() == parent {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            perform(rest);
            exit(0)
        }
        "userns-root" => {
            // SAFETY: plain system calls; this program has one thread.
            let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
            // SAFETY: the same.
            if unsafe {
                libc::prctl(libc::PR_SET_DUMPABLE, 1) != 0
                    || libc::unshare(libc::CLONE_NEWUSER) != 0
            } {
                last(step);
            }
            write_map(step, "setgroups", "deny");
            write_map(step, "uid_map", &format!("0 {uid} 1"));
            write_map(step, "gid_map", &format!("0 {gid} 1"));
        }
        "userns-for" => {
            let (uid, map) = split(step, value);
            move_mapped(step, number(step, uid) as u32, map);
        }
        "pidns" => {
            // SAFETY: a plain system call.
            if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
                last(step);
            }
            let child = fork();
            if child == 0 {
                perform(rest);
                exit(0);
            }
            // SAFETY: waits for our own child; no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            exit(0)
        }
        "numbered" => {
            let number = number(step, value) as libc::pid_t;
            let child = fork_numbered(number);
            if child == 0 {
                perform(rest);
                exit(0);
            }
            let mut status = 0;
            // SAFETY: waits for our own child, whose status goes into a live local.
            let ended = unsafe { libc::waitpid(number, &raw mut status, 0) };
            if i64::from(number) != child || ended != number {
                last(step);
            }
            if libc::WIFSIGNALED(status) {
                // SAFETY: a signal to ourselves.
                unsafe { libc::raise(libc::WTERMSIG(status)) };
            }
            exit(0)
        }
        "uids" => {
            if !take_uids(step, value) {
                last(step);
            }
            // SAFETY: a plain system call on numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        }
        "unseen-uids" => {
            let (real, effective) = split(step, value);
            let (real, effective) = (number(step, real), number(step, effective));
            // SAFETY: takes and touches nothing; its code is there afterwards.
            unsafe { libc::syscall(libc::SYS_getpid) };
            println!("ready");
            let _ = std::io::stdout().flush();
            let mut line = [0_u8; 1];
            // SAFETY: system calls on numbers and a live byte; they touch no other memory.
            unsafe {
                libc::syscall(libc::SYS_read, 0, line.as_mut_ptr(), 1);
                libc::syscall(libc::SYS_setresuid, real, effective, effective);
                loop {
                    pause();
                }
            }
        }
        "zombies" => {
            let (count, length) = split(step, value);
            let length = size(step, length);
            let be_one = || {
                let child = fork();
                if child == 0 {
                    if let Some(at) = map(length, libc::MAP_PRIVATE) {
                        touch(at, length);
                    }
                    exit(0);
                }
                child as libc::id_t
            };
            let children: Vec<_> = (0..number(step, count)).map(|_| be_one()).collect();
            // Until all have ended, without taking their ends away.
            for child in children {
                // SAFETY: plain data that the call fills.
                let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
                // SAFETY: a live local.
                unsafe {
                    libc::waitid(libc::P_PID, child, &mut info, libc::WEXITED | libc::WNOWAIT);
                }
            }
        }
        "run" => {
            use std::os::unix::process::CommandExt;
            let why = std::process::Command::new(value).args(rest).exec();
            fail(step, why)
        }
        "effective" => {
            // SAFETY: plain system calls on numbers.
            let failed = unsafe {
                let uid = libc::geteuid();
                libc::setresuid(uid, uid, uid) != 0
                    || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
            };
            if failed {
                last(step);
            }
        }
        "sparse" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
            // SAFETY: a mapping of ours.
            unsafe { libc::madvise(at.cast(), length, libc::MADV_NOHUGEPAGE) };
            for offset in (0..length).step_by(HUGE) {
                // SAFETY: inside the mapping.
                unsafe { at.add(offset).read_volatile() };
            }
        }
        "hugetlb-by" => {
            let (length, children) = value.split_once(':').unwrap_or((value, "1"));
            let length = size(step, length);
            let at = must_map(step, length, libc::MAP_SHARED | libc::MAP_HUGETLB);
            touch(at, length);
            let children = number(step, children);
            // The parent only waits for them.
            if (0..children).any(|_| fork() == 0) {
                touch(at, length);
            } else {
                super::outlive_children();
            }
        }
        "hugetlb" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE | libc::MAP_HUGETLB);
            touch(at, length);
        }
        "swapped" => {
            let length = size(step, value);
            let at = must_map(step, length, libc::MAP_PRIVATE);
            // SAFETY: a mapping of ours. A huge page may be written out late.
            unsafe { libc::madvise(at.cast(), length, libc::MADV_NOHUGEPAGE) };
            for offset in (0..length).step_by(CHUNK) {
                let part = (length - offset).min(CHUNK);
                // SAFETY: inside the mapping.
                let piece = unsafe { at.add(offset) };
                touch(piece, part);
                // SAFETY: the same.
                if unsafe { libc::madvise(piece.cast(), part, libc::MADV_PAGEOUT) } != 0 {
                    last(step);
                }
                if offset >= 8 * CHUNK && swapped_kib() * 2 < offset >> 10 {
                    fail(step, "not even half of it was swapped out");
                }
            }
        }
        "pipes" => {
            let chunk = vec![1_u8; 65536];
            let mut written = 0;
            while written < size(step, value) {
                let mut pipe = [0; 2];
                // SAFETY: two descriptors are written.
                if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK) } != 0 {
                    last(step);
                }
                // SAFETY: reads the chunk.
                let put = unsafe { libc::write(pipe[1], chunk.as_ptr().cast(), chunk.len()) };
                written += usize::try_from(put).unwrap_or(0).max(1);
            }
        }
        "sockets" => {
            let chunk = vec![1_u8; 32 << 10];
            let mut written = 0;
            while written < size(step, value) {
                let mut pair = [0; 2];
                let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
                // SAFETY: two descriptors are written.
                if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
                    last(step);
                }
                loop {
                    // SAFETY: reads the chunk.
                    let put = unsafe { libc::write(pair[0], chunk.as_ptr().cast(), chunk.len()) };
                    let Ok(put) = usize::try_from(put) else { break };
                    written += put;
                }
            }
        }
        "packet-ring" => packet_ring(step, size(step, value)),
        "messages" => messages(step, size(step, value)),
        "mappings" => mappings(step, number(step, value) as usize),
        "gift" => gift(step, size(step, value)),
        _ => return false,
    }
    true
}

fn packet_ring(step: &str, length: usize) {
    const BLOCK: usize = 1 << 20;
    const FRAME: usize = 1 << 16;
    // SAFETY: takes numbers.
    let socket = unsafe {
        if libc::unshare(libc::CLONE_NEWNET) != 0 {
            last(step);
        }
        libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
    };
    let ring = [BLOCK, length / BLOCK, FRAME, length / FRAME].map(|it| it as u32);
    // SAFETY: reads the request.
    let made = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_RX_RING,
            ring.as_ptr().cast(),
            size_of_val(&ring) as libc::socklen_t,
        )
    };
    if made != 0 {
        last(step);
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of the ring, which stays until the process ends.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            protection,
            libc::MAP_SHARED,
            socket,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        last(step);
    }
    touch(at.cast(), length);
}

fn messages(step: &str, length: usize) {
    const TEXT: usize = 8192;
    // SAFETY: takes a number.
    if unsafe { libc::unshare(libc::CLONE_NEWIPC) } != 0 {
        last(step);
    }
    // Its type, then its text.
    let mut message = vec![1_u8; size_of::<libc::c_long>() + TEXT];
    message[1..size_of::<libc::c_long>()].fill(0);
    let mut sent = 0;
    while sent < length {
        // SAFETY: takes numbers.
        let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) };
        if queue < 0 {
            last(step);
        }
        // SAFETY: reads the message.
        while unsafe { libc::msgsnd(queue, message.as_ptr().cast(), TEXT, libc::IPC_NOWAIT) } == 0 {
            sent += TEXT;
        }
    }
}

fn mappings(step: &str, count: usize) {
    const PAGE: usize = 4096;
    // Every other page is protected otherwise: each piece is a mapping of its own.
    let length = count * PAGE;
    let at = must_map(step, length, libc::MAP_PRIVATE | libc::MAP_NORESERVE);
    for offset in (0..length).step_by(2 * PAGE) {
        // SAFETY: inside a mapping of ours.
        if unsafe { libc::mprotect(at.add(offset).cast(), PAGE, libc::PROT_NONE) } != 0 {
            last(step);
        }
    }
}

/// Keeps twenty connections to bursard, and says how many it let in, and what this process pays into.
fn cling(step: &str, socket: &str) {
    let connect = || UnixStream::connect(socket).unwrap_or_else(|why| fail(step, why));
    keep_asked(step, (0..20).map(|_| connect()));
}

/// They are gone before bursard has let them in, if it is held up until we are told to go on.
fn orphans(step: &str, value: &str) {
    let (uids, socket) = split(step, value);
    let (first, count) = uids
        .split_once('-')
        .unwrap_or_else(|| fail(step, "no uids"));
    let (first, count) = (number(step, first) as u32, number(step, count) as u32);
    let address = SocketAddrUnix::new(socket).unwrap_or_else(|why| fail(step, why));
    let mut connections = Vec::new();
    for uid in (first..first + count).flat_map(|uid| [uid; 20]) {
        let shared = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)
            .unwrap_or_else(|why| fail(step, why));
        let child = fork();
        if child == 0 {
            // SAFETY: numbers.
            let is_he = unsafe { libc::setresuid(uid, uid, uid) } == 0;
            let is_connected = is_he && rustix::net::connect(&shared, &address).is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_connected)) };
        }
        let mut status = 0;
        // SAFETY: our own child and a live local.
        unsafe { libc::waitpid(child, &mut status, 0) };
        if status != 0 {
            fail(step, "a child did not connect");
        }
        connections.push(UnixStream::from(shared));
    }
    println!("orphans: {}", connections.len());
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().lock().read_line(&mut String::new());
    keep_asked(step, connections.into_iter());
}

/// Keeps those that bursard answers, asked for the quota one after the other.
fn keep_asked(step: &str, connections: impl ExactSizeIterator<Item = UnixStream>) {
    let all = connections.len();
    let verb = step.split('=').next().unwrap_or(step);
    let mut payer = None;
    let mut got = 0;
    for mut stream in connections {
        // Who is turned away may be so before he has asked.
        let _ = stream.write_all(b"{\"version\":1,\"ask\":\"quota\"}\n");
        let mut reply = String::new();
        let read = BufReader::new(&stream).read_line(&mut reply);
        read.unwrap_or_else(|why| fail(step, why));
        if reply.starts_with("{\"quota\"") {
            got += 1;
            std::mem::forget(stream);
            let after = reply.split_once("\"account\":\"").map(|(_, it)| it);
            payer = after.and_then(|it| Some(it.split_once('"')?.0.to_owned()));
        }
    }
    println!("{verb}: {got} of {all}");
    println!("pays into: {}", payer.as_deref().unwrap_or("nobody"));
    let _ = std::io::stdout().flush();
}

/// The leader asks and the other thread executes, which makes it the leader.
fn ask_beside_a_thread(step: &str, value: &str, rest: &[String], is_first: bool) -> ! {
    use std::os::unix::process::CommandExt;

    let (socket, account) = split(step, value);
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|why| fail(step, why));
    // SAFETY: a flag of a descriptor of ours: the fresh image is to have it.
    unsafe { libc::fcntl(stream.as_raw_fd(), libc::F_SETFD, 0) };
    let mut steps = vec![format!("answer={}", stream.as_raw_fd())];
    steps.extend_from_slice(rest);
    let (tell, told) = std::sync::mpsc::channel();
    let execute = move || {
        let _ = told.recv();
        let me = std::env::current_exe().unwrap_or_else(|why| fail("exec", why));
        let why = std::process::Command::new(me).args(&steps).exec();
        fail("exec", why)
    };
    let question = format!("{{\"version\":1,\"ask\":\"enter\",\"account\":\"{account}\"}}\n");
    let mut ask = || {
        if let Err(why) = stream.write_all(question.as_bytes()) {
            fail(step, why);
        }
    };
    if is_first {
        std::thread::spawn(execute);
        ask();
        let mut byte = 0_u8;
        // SAFETY: a byte of ours; it stays to be read.
        unsafe {
            let byte = (&raw mut byte).cast();
            libc::recv(stream.as_raw_fd(), byte, 1, libc::MSG_PEEK)
        };
    } else {
        ask();
        std::thread::spawn(execute);
    }
    let _ = tell.send(());
    loop {
        std::thread::park();
    }
}

/// Where whoever executes has connected to.
static CALLED: OnceLock<CString> = OnceLock::new();
/// What it has asked there.
static ASKED: OnceLock<Vec<u8>> = OnceLock::new();

/// Takes no memory.
fn connect(place: &CStr) -> bool {
    // SAFETY: zeroes are an address of nothing.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(place.to_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: an address that lives across the call; the socket stays until the process ends.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let is_there = libc::connect(socket, (&raw const address).cast(), length) == 0;
        is_there
            && ASKED.get().is_none_or(|it| {
                let sent = libc::write(socket, it.as_ptr().cast(), it.len());
                usize::try_from(sent) == Ok(it.len())
            })
    }
}

fn map_first_page(step: &str, path: &str) -> *mut libc::c_void {
    let file = File::open(path).unwrap_or_else(|why| fail(step, why));
    // Its size is to be known.
    if file.metadata().is_ok_and(|it| it.len() == 0) {
        fail(step, "the file is empty");
    }
    // SAFETY: a fresh mapping of an open file, wherever the kernel likes.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        last(step);
    }
    keep(file);
    at
}

/// This thread's list of futexes is in a file that nobody answers for: at its end the kernel reads it, and waits.
pub(crate) fn hang_at_exit(step: &str, path: &str) {
    let at = map_first_page(step, path);
    // SAFETY: the kernel alone reads there, which may fail. The size is that of struct robust_list_head.
    unsafe { libc::syscall(libc::SYS_set_robust_list, at, 24) };
}

/// One thread reads our own memory where a file is mapped that nobody answers for: it holds the lock of our memory
/// and waits, for it may not let go of it meanwhile (access_remote_vm). Others want to change something, not to be
/// interrupted: whoever comes after them waits, too.
fn keep_lock(step: &str, path: &str, in_exec: bool) {
    use std::os::unix::fs::FileExt;

    let at = map_first_page(step, path);
    // SAFETY: a plain system call on numbers; a change of uid has made us private.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    let own = File::open("/proc/self/mem").unwrap_or_else(|why| fail(step, why));
    // All are there, with all that they need, before the lock is taken: it takes that to make a thread.
    let (say, heard) = std::sync::mpsc::channel();
    let address = at as u64;
    let reader = std::thread::spawn(move || {
        // SAFETY: takes nothing, returns a number.
        let _ = say.send(unsafe { libc::gettid() });
        std::thread::park();
        let _ = own.read_at(&mut [0], address);
    });
    let call_of = |thread: i32| {
        let place = format!("/proc/self/task/{thread}/syscall");
        File::open(place).unwrap_or_else(|why| fail(step, why))
    };
    let reading = heard.recv().unwrap_or(0);
    let (one, other) = (call_of(reading), call_of(reading));
    // What there is of the two: NUMA, memory protection keys.
    let (ready, there) = std::sync::mpsc::channel();
    let its = ready.clone();
    std::thread::spawn(move || {
        // SAFETY: takes nothing, returns a number.
        let _ = its.send(unsafe { libc::gettid() });
        until_asleep_in(&one, libc::SYS_pread64);
        // SAFETY: changes no mapping: there is none at 0.
        unsafe { libc::syscall(libc::SYS_mbind, 0, 4096, 0, 0, 0, 0) };
    });
    std::thread::spawn(move || {
        // SAFETY: takes nothing, returns a number.
        let _ = ready.send(unsafe { libc::gettid() });
        until_asleep_in(&other, libc::SYS_pread64);
        // SAFETY: takes numbers only.
        unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    });
    // What they have sent they have allocated: each has its heap.
    let writers = [there.recv(), there.recv()].map(|it| call_of(it.unwrap_or(0)));
    let mut stack = vec![1_u8; 1 << 16];
    if in_exec {
        // A page that the child needed for the first time later would stop it on its way to execve.
        let child = execute(REHEARSAL, &mut stack);
        // SAFETY: of a child of ours; nobody asks how it ended.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
    reader.thread().unpark();
    if in_exec {
        while !writers
            .iter()
            .any(|it| is_asleep_in(it, libc::SYS_mbind) || is_asleep_in(it, libc::SYS_pkey_alloc))
        {
            std::thread::yield_now();
        }
        execute(c"/bin/true", &mut stack);
    }
}

/// Where nothing is run: it only takes the way there.
const REHEARSAL: &CStr = c"";

/// Has a child that uses our memory run a program, and waits until it uses it no more.
fn execute(program: &'static CStr, stack: &mut [u8]) -> libc::pid_t {
    extern "C" fn child(program: *mut libc::c_void) -> libc::c_int {
        // SAFETY: what was given below, which lives for ever.
        let program = unsafe { CStr::from_ptr(program.cast_const().cast()) };
        let is_rehearsal = program == REHEARSAL;
        let called = CALLED.get().map(|it| match is_rehearsal {
            true => REHEARSAL,
            false => it.as_c_str(),
        });
        if called.is_some_and(|it| !connect(it)) && !is_rehearsal {
            return 1;
        }
        let arguments = [program.as_ptr(), std::ptr::null()];
        // SAFETY: ends this child's use of our memory, or the child.
        unsafe { libc::execve(arguments[0], arguments.as_ptr(), arguments[1..].as_ptr()) };
        1
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: a stack that outlives the child's use of our memory: this thread waits for its end.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(child, top, flags, program.as_ptr().cast_mut().cast())
    }
}

fn is_asleep_in(place: &File, call: libc::c_long) -> bool {
    use std::os::unix::fs::FileExt;

    let mut text = [0; 256];
    // "running" while it does not sleep.
    let length = place.read_at(&mut text, 0).unwrap_or(0);
    let number = text[..length].split(|&it| it == b' ').next();
    let number = number.and_then(|it| str::from_utf8(it).ok());
    number.and_then(|it| it.parse::<libc::c_long>().ok()) == Some(call)
}

/// Without taking memory.
fn until_asleep_in(place: &File, call: libc::c_long) {
    while !is_asleep_in(place, call) {
        std::thread::yield_now();
    }
}
