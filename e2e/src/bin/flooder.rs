// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A program that takes as much as it can get of what a kernel has: the witness of the beancounters'
//! stories. Each argument is a step; steps that ask print `STEP: GOT` and, where something was refused,
//! `STEP: GOT ERRNO×TIMES`. What was got is kept until `drop` or the end.
//!
//! | step | asks for |
//! |---|---|
//! | `uid=N` | becomes that user |
//! | `as=N` | becomes that user and stays able to become another (saved uid 0) |
//! | `effective=N` | after `as`: stays that user, with the effective uid N, as in a set-uid program of N's |
//! | `nproc=N` | nothing: lowers RLIMIT_NPROC, as `ulimit -u` does |
//! | `fork=N` | processes that do nothing |
//! | `thread=N` | threads that do nothing |
//! | `bomb=SECONDS` | processes, again and again for so long |
//! | `open=N` | open files |
//! | `leak=N` | open files in a child each: descriptors of one open file count once |
//! | `tcp=N`, `udp=N`, `unix=N` | sockets |
//! | `pair=N` | pairs of local sockets |
//! | `connect=N` | TCP connections to ourselves, both ends |
//! | `mptcp=N` | MPTCP connections to ourselves, which nobody accepts |
//! | `send=BYTES` | so much queued in a local socket that nobody reads |
//! | `fill_stream=N`, `fill_dgram=N` | pairs of local sockets, each filled until it is refused |
//! | `fill_mmsg=N` | pairs of local datagram sockets, each filled by sendmmsg(2) to one name, the first message of a byte |
//! | `fill_tcp=N` | TCP connections, both ends of each filled |
//! | `tcp_byte=N` | a byte for each of N fresh TCP connections that poll(2) calls writable |
//! | `transfers=N` | N TCP connections at once, a reader that comes late, every byte compared; prints how many were right |
//! | `tcp_more` | nothing: asks for the largest buffers of all sockets that we have, and fills them again |
//! | `tcp_throughput=MILLISECONDS` | KiB a second through one TCP connection over the loopback |
//! | `tcp_connections=MILLISECONDS` | TCP connections made and closed a second |
//! | `tcp_segment` | a TCP connection to a listener that asked for larger segments; prints the size that they have |
//! | `widen` | the loopback of our own network namespace, with buffers of 64 MiB; behind `net=1` |
//! | `fill_udp=N` | UDP sockets, each sent more than it has room for |
//! | `fill_errors=N` | UDP sockets, each with its own datagrams in its error queue: their times of sending, which it asked for |
//! | `byte=N` | a byte for each of N fresh local sockets that poll(2) calls writable; waits for room |
//! | `buffers` | nothing: prints what the kernel says that our sockets hold: sent, received |
//! | `throughput=MILLISECONDS` | KiB a second through a local socket, datagrams a second over the loopback; each for so long |
//! | `flock=N` | flock(2) of as many files |
//! | `crowd=N` | one file opened N times, with as many locks |
//! | `share=N` | processes that do nothing and share our table of files |
//! | `range=N` | locks of as many bytes of one file |
//! | `split=N`, `recast=N` | locks made of one: by unlocking as many bytes in its middle, by locking them for reading |
//! | `relock=N` | one lock, taken and given back as many times |
//! | `pty=N` | pseudo terminals |
//! | `signal=N` | signals queued to ourselves |
//! | `sigio=N` | signals of a file that is ready, queued to ourselves (F_SETSIG); those that are not queued nobody is told of |
//! | `own=N` | signals that only the C library sends, to our own thread |
//! | `mlock=PAGES`, `maplocked=PAGES` | locked memory by mlock(2), by mmap(MAP_LOCKED), a page at a time |
//! | `shmget=PAGES`, `shared=PAGES` | shared memory: a System V segment, a shared anonymous mapping |
//! | `userns` | a user namespace of our own |
//! | `net=N`, `mnt=N`, `ipc=N`, `uts=N`, `cgroup=N`, `time_ns=N`, `pid=N`, `user=N` | namespaces of one kind; behind `userns` |
//! | `route=N` | routes in our own network namespace (`net=1`), by netlink |
//! | `unroute=N` | takes the last of the routes away again |
//! | `address=N` | the same as `route`, by ioctl(2) |
//! | `generic=N` | messages of 1 KiB by generic netlink, to a family that is not there |
//! | `table=N` | tables of packet filters in our own network namespace (`net=1`), by io_uring; counts those not answered EPERM |
//! | `names=N` | names of files that are not there, looked up in /sys and remembered by the kernel |
//! | `mount=N` | mounts of /tmp on itself, in a mount namespace of our own (`mnt=1`) |
//! | `time=N` | nothing: prints the median nanoseconds of fork and wait, of N |
//! | `group=PATH` | nothing: moves itself into that control group |
//! | `bench=MILLISECONDS`, `bench=MILLISECONDS:TEST,…` | S5's tables, more calls, and works (`build`, `find`, `journal`): each test, or each of these, for so long, works ten times as long; prints how often a second each was done |
//! | `harass=SOCKET` | bursard's attention: all the connections one may have, each asking without end |
//! | `pass=SOCKET` | bursard's time: descriptors passed to it that take long to close; prints how many went |
//! | `drop` | gives back files, terminals, sockets, segments, mappings and children |
//! | `say=WORD` | prints WORD |
//! | `wait` | waits for a line on stdin |

#[path = "flooder/bench.rs"]
mod bench;
#[path = "flooder/buffers.rs"]
mod buffers;
#[path = "flooder/harass.rs"]
mod harass;
#[path = "flooder/namespaces.rs"]
mod namespaces;
#[path = "flooder/network.rs"]
mod network;
#[path = "flooder/passing.rs"]
mod passing;
#[path = "flooder/ring.rs"]
mod ring;
#[path = "flooder/tcp.rs"]
mod tcp;
#[path = "flooder/works.rs"]
mod works;

use std::ffi::CString;
use std::io::{BufRead, Write};
use std::process::exit;
use std::time::{Duration, Instant};

#[derive(Default)]
struct Kept {
    files: Vec<i32>,
    children: Vec<i32>,
    segments: Vec<*mut libc::c_void>,
    mappings: Vec<(*mut libc::c_void, usize)>,
    network: Option<network::Sockets>,
    routes: u32,
    names: u32,
}

fn say(text: &str) {
    // One system call and no buffer: a forked child must not say again what its parent said.
    let _ = std::io::stdout().write_all(format!("{text}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn name(errno: i32) -> String {
    let known = [
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::ENFILE, "ENFILE"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::ENOLCK, "ENOLCK"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EPERM, "EPERM"),
        (libc::EEXIST, "EEXIST"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    known
        .iter()
        .find(|(number, _)| *number == errno)
        .map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned())
}

/// Asks so many times and says how often it was granted.
fn ask(step: &str, times: u64, mut once: impl FnMut() -> Result<(), i32>) {
    let (mut got, mut refused, mut last) = (0_u64, 0_u64, 0);
    for _ in 0..times {
        match once() {
            Ok(()) => got += 1,
            Err(errno) => {
                refused += 1;
                last = errno;
            }
        }
    }
    match refused {
        0 => say(&format!("{step}: {got}")),
        _ => say(&format!("{step}: {got} {}×{refused}", name(last))),
    }
}

fn or_errno(answer: i32) -> Result<i32, i32> {
    if answer < 0 { Err(errno()) } else { Ok(answer) }
}

/// A child that does nothing until it is killed, or its parent is gone.
fn idle_child() -> Result<i32, i32> {
    // SAFETY: the child makes system calls only.
    unsafe {
        match libc::fork() {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
            child => or_errno(child),
        }
    }
}

/// The same with our table of files.
fn sharing_child() -> Result<i32, i32> {
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: as fork(2); the child makes system calls only.
    unsafe {
        match libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                loop {
                    libc::pause();
                }
            }
            child => or_errno(child as i32),
        }
    }
}

fn wait_for(child: i32) {
    let mut status = 0;
    // SAFETY: our own child.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 && errno() == libc::EINTR {}
}

fn turn_into(uid: u32, keep_root: bool) {
    let saved = if keep_root { 0 } else { uid };
    // SAFETY: plain system calls on numbers.
    let done = unsafe {
        if keep_root {
            // Back to root first: only root may become anybody.
            libc::setresuid(0, 0, 0) == 0 && libc::setresuid(uid, uid, saved) == 0
        } else {
            libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(uid, uid, uid) == 0
                && libc::setresuid(uid, uid, saved) == 0
        }
    };
    if !done {
        say(&format!("cannot become {uid}: {}", name(errno())));
        exit(3);
    }
}

fn act_as(uid: u32) {
    // SAFETY: plain system calls on numbers. Only root may have another effective uid.
    let done = unsafe {
        let real = libc::getuid();
        libc::setresuid(real, 0, 0) == 0 && libc::setresuid(real, uid, uid) == 0
    };
    if !done {
        say(&format!("cannot act as {uid}: {}", name(errno())));
        exit(3);
    }
}

fn raise_limits() {
    for resource in [
        libc::RLIMIT_NOFILE,
        libc::RLIMIT_NPROC,
        libc::RLIMIT_SIGPENDING,
        libc::RLIMIT_MEMLOCK,
    ] {
        let most = if resource == libc::RLIMIT_NOFILE {
            60_000
        } else {
            libc::RLIM_INFINITY
        };
        // Where it is not allowed the old one holds.
        set_limit(resource, most);
    }
}

fn set_limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: a live local.
    unsafe { libc::setrlimit(resource, &limit) };
}

fn open(path: &str) -> Result<i32, i32> {
    let path = CString::new(path).unwrap_or_default();
    // SAFETY: a live string.
    or_errno(unsafe {
        libc::open(
            path.as_ptr(),
            libc::O_RDWR | libc::O_CLOEXEC | libc::O_CREAT,
            0o600,
        )
    })
}

fn scratch(number: u64) -> String {
    // SAFETY: no arguments.
    let uid = unsafe { libc::getuid() };
    format!("/tmp/bursar-flooder-{uid}-{}-{number}", std::process::id())
}

fn socket(family: i32, kind: i32) -> Result<i32, i32> {
    // SAFETY: plain numbers.
    or_errno(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) })
}

/// A listener on the loopback and its address.
fn listener() -> Result<(i32, libc::sockaddr_in), i32> {
    listening(socket(libc::AF_INET, libc::SOCK_STREAM)?)
}

fn listening(fd: i32) -> Result<(i32, libc::sockaddr_in), i32> {
    // SAFETY: plain data; both calls get a live address and its size.
    unsafe {
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::to_be(0x7f00_0001);
        let mut size = std::mem::size_of_val(&address) as libc::socklen_t;
        or_errno(libc::bind(fd, (&raw const address).cast(), size))?;
        or_errno(libc::listen(fd, 512))?;
        or_errno(libc::getsockname(fd, (&raw mut address).cast(), &mut size))?;
        Ok((fd, address))
    }
}

fn connect(kept: &mut Kept, to: (i32, libc::sockaddr_in)) -> Result<(), i32> {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM)?;
    kept.files.push(fd);
    // A dropped request is asked again for minutes; we have no such time.
    let timeout: libc::c_int = 1500;
    // SAFETY: live locals and their sizes.
    unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const timeout).cast(),
            4,
        );
        let retries: libc::c_int = 1;
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw const retries).cast(),
            4,
        );
        let size = std::mem::size_of_val(&to.1) as libc::socklen_t;
        or_errno(libc::connect(fd, (&raw const to.1).cast(), size))?;
        let accepted = or_errno(libc::accept(
            to.0,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        ))?;
        kept.files.push(accepted);
    }
    Ok(())
}

/// A listener of MPTCP, and so many connections to it that wait to be accepted.
fn connect_by_mptcp(kept: &mut Kept, step: &str, times: u64) -> Result<(), i32> {
    // SAFETY: plain numbers.
    let socket =
        || or_errno(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) });
    let (fd, address) = listening(socket()?)?;
    kept.files.push(fd);
    ask(step, times, || {
        let fd = socket()?;
        kept.files.push(fd);
        let size = size_of_val(&address) as libc::socklen_t;
        // SAFETY: a live local and its size.
        or_errno(unsafe { libc::connect(fd, (&raw const address).cast(), size) }).map(drop)
    });
    Ok(())
}

fn send(kept: &mut Kept, bytes: usize) -> Result<(), i32> {
    let mut pair = [0; 2];
    // SAFETY: a live array of two, then a live buffer and its length.
    unsafe {
        or_errno(libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            0,
            pair.as_mut_ptr(),
        ))?;
        kept.files.extend(pair);
        let data = vec![1_u8; bytes];
        match libc::write(pair[0], data.as_ptr().cast(), bytes) {
            -1 => Err(errno()),
            _ => Ok(()),
        }
    }
}

fn lock(fd: i32, from: i64, kind: i32) -> Result<(), i32> {
    lock_range(fd, from, 1, kind)
}

fn lock_range(fd: i32, from: i64, length: i64, kind: i32) -> Result<(), i32> {
    // SAFETY: plain data, a live local.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = from;
        lock.l_len = length;
        or_errno(libc::fcntl(fd, libc::F_SETLK, &raw const lock)).map(drop)
    }
}

fn terminal() -> Result<i32, i32> {
    open("/dev/ptmx")
}

fn queue_signal() -> Result<(), i32> {
    let value = libc::sigval {
        sival_ptr: std::ptr::null_mut(),
    };
    // SAFETY: to ourselves, where it is blocked.
    or_errno(unsafe { libc::sigqueue(libc::getpid(), libc::SIGRTMIN() + 1, value) }).map(drop)
}

/// Signals queued for our user (SigQ).
fn queued_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigQ:"));
    let queued = line.and_then(|line| line.trim().split('/').next());
    queued.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// A pipe that tells its reader by a real-time signal of each byte.
fn pipe_with_signal(kept: &mut Kept) -> Result<i32, i32> {
    const F_SETSIG: i32 = 10;
    let mut pipe = [0; 2];
    // SAFETY: a live array of two, then plain numbers.
    unsafe {
        or_errno(libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK))?;
        kept.files.extend(pipe);
        or_errno(libc::fcntl(pipe[0], libc::F_SETOWN, libc::getpid()))?;
        or_errno(libc::fcntl(pipe[0], F_SETSIG, libc::SIGRTMIN() + 1))?;
        or_errno(libc::fcntl(
            pipe[0],
            libc::F_SETFL,
            libc::O_ASYNC | libc::O_NONBLOCK,
        ))?;
    }
    Ok(pipe[1])
}

/// How many of so many are queued.
fn signals_of_file(kept: &mut Kept, times: u64) -> Result<u64, i32> {
    let before = queued_signals();
    let writer = pipe_with_signal(kept)?;
    for _ in 0..times {
        // SAFETY: one live byte.
        or_errno(unsafe { libc::write(writer, [1_u8].as_ptr().cast(), 1) } as i32)?;
    }
    Ok(queued_signals() - before)
}

/// SIGSETXID of glibc and musl's alike, in which setuid(2) reaches a thread. Blocked, so that they queue.
fn signal_as_libc() -> Result<(), i32> {
    const SIGSETXID: i32 = 33;
    let blocked: u64 = 1 << (SIGSETXID - 1);
    // SAFETY: a live set of the kernel's size; then plain numbers, to ourselves.
    unsafe {
        let how = libc::SIG_BLOCK;
        let none = std::ptr::null_mut::<u64>();
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const blocked, none, 8);
        let (pid, thread) = (libc::getpid(), libc::gettid());
        or_errno(libc::syscall(libc::SYS_tgkill, pid, thread, SIGSETXID) as i32).map(drop)
    }
}

fn map(kept: &mut Kept, pages: usize, flags: i32) -> Result<*mut libc::c_void, i32> {
    // SAFETY: a fresh anonymous mapping.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            pages * 4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(errno());
        }
        kept.mappings.push((at, pages * 4096));
        Ok(at)
    }
}

/// A child that ends at once.
fn ending_child() -> Result<i32, i32> {
    // SAFETY: the child makes one system call.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child => or_errno(child),
        }
    }
}

fn time_forks(times: usize) -> u128 {
    let mut spans: Vec<u128> = (0..times)
        .filter_map(|_| {
            let began = Instant::now();
            let child = ending_child().ok()?;
            wait_for(child);
            Some(began.elapsed().as_nanos())
        })
        .collect();
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().unwrap_or(0)
}

impl Kept {
    fn drop_all(&mut self) {
        // SAFETY: our own descriptors, segments, mappings and children.
        unsafe {
            for fd in self.files.drain(..) {
                libc::close(fd);
            }
            for at in self.segments.drain(..) {
                libc::shmdt(at);
            }
            for (at, length) in self.mappings.drain(..) {
                libc::munmap(at, length);
            }
            for child in self.children.drain(..) {
                // Another user's by now, if we have become somebody else since: nobody of his may
                // signal them, root may.
                let own = libc::geteuid();
                let is_root = libc::seteuid(0) == 0;
                let killed = libc::kill(child, libc::SIGKILL) == 0;
                if is_root {
                    libc::seteuid(own);
                }
                if killed {
                    wait_for(child);
                } else {
                    say(&format!("cannot end a child: {}", name(errno())));
                }
            }
        }
    }
}

fn block_signals() {
    // SAFETY: a live local; before there are threads, which would take the signals otherwise.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGRTMIN() + 1);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

fn main() {
    block_signals();
    // SAFETY: plain numbers. What we inherited is nobody's business here.
    unsafe { libc::close_range(3, u32::MAX, 0) };
    let mut kept = Kept::default();
    let mut locked = 0_u64;
    for step in std::env::args().skip(1) {
        let (what, value) = step.split_once('=').unwrap_or((&step, ""));
        let number: u64 = value.parse().unwrap_or(0);
        match what {
            "uid" => {
                raise_limits();
                turn_into(number as u32, false);
            }
            "as" => turn_into(number as u32, true),
            "effective" => act_as(number as u32),
            "nproc" => set_limit(libc::RLIMIT_NPROC, number),
            "fork" => ask(&step, number, || {
                idle_child().map(|child| kept.children.push(child))
            }),
            "thread" => ask(&step, number, || {
                std::thread::Builder::new()
                    .stack_size(64 << 10)
                    .spawn(|| {
                        loop {
                            std::thread::park();
                        }
                    })
                    .map(drop)
                    .map_err(|error| error.raw_os_error().unwrap_or(0))
            }),
            "bomb" => {
                let (mut got, mut refused) = (0_u64, 0_u64);
                let until = Instant::now() + Duration::from_secs(number);
                while Instant::now() < until {
                    match idle_child() {
                        Ok(child) => {
                            got += 1;
                            kept.children.push(child);
                        }
                        Err(_) => refused += 1,
                    }
                }
                say(&format!("bomb: {got} {refused}"));
            }
            "open" => ask(&step, number, || {
                open("/dev/null").map(|fd| kept.files.push(fd))
            }),
            "share" => ask(&step, number, || {
                sharing_child().map(|child| kept.children.push(child))
            }),
            "leak" => {
                let fd = open("/dev/null").unwrap_or(-1);
                kept.files.push(fd);
                ask(&step, number, || {
                    idle_child().map(|child| kept.children.push(child))
                });
            }
            "pass" => match passing::pass(value) {
                Ok((passed, kept)) => {
                    say(&format!("pass: {passed}"));
                    std::mem::forget(kept);
                }
                Err(error) => say(&format!("pass: {error}")),
            },
            "harass" => harass::harass(value),
            "tcp" => ask(&step, number, || {
                socket(libc::AF_INET, libc::SOCK_STREAM).map(|fd| kept.files.push(fd))
            }),
            "udp" => ask(&step, number, || {
                socket(libc::AF_INET, libc::SOCK_DGRAM).map(|fd| kept.files.push(fd))
            }),
            "unix" => ask(&step, number, || {
                socket(libc::AF_UNIX, libc::SOCK_STREAM).map(|fd| kept.files.push(fd))
            }),
            "pair" => ask(&step, number, || {
                let mut pair = [0; 2];
                // SAFETY: a live array of two.
                let made = unsafe {
                    libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, pair.as_mut_ptr())
                };
                or_errno(made).map(|_| kept.files.extend(pair))
            }),
            "connect" => match listener() {
                Ok(to) => {
                    kept.files.push(to.0);
                    ask(&step, number, || connect(&mut kept, to));
                }
                Err(errno) => say(&format!("{step}: no listener, {}", name(errno))),
            },
            "mptcp" => {
                if let Err(errno) = connect_by_mptcp(&mut kept, &step, number) {
                    say(&format!("{step}: no listener, {}", name(errno)));
                }
            }
            "send" => ask(&step, 1, || send(&mut kept, number as usize)),
            "fill_stream" | "fill_dgram" => ask(&step, number, || {
                buffers::fill_pair(&mut kept.files, what == "fill_stream")
            }),
            "fill_mmsg" => ask(&step, number, || buffers::fill_by_many(&mut kept.files)),
            "fill_tcp" => ask(&step, number, || buffers::fill_tcp(&mut kept.files)),
            "tcp_byte" => ask(&step, number, || tcp::send_byte(&mut kept.files)),
            "transfers" => match tcp::transfers(number) {
                (right, None) => say(&format!("{step}: {right}")),
                (right, Some(error)) => say(&format!("{step}: {right} {error}")),
            },
            "tcp_more" => tcp::ask_for_more(&kept.files),
            "tcp_throughput" => match tcp::throughput(Duration::from_millis(number)) {
                Ok(kib) => say(&format!("tcp_throughput: {kib}")),
                Err(error) => say(&format!("tcp_throughput: {error}")),
            },
            "tcp_connections" => match tcp::connections(Duration::from_millis(number)) {
                Ok(connections) => say(&format!("tcp_connections: {connections}")),
                Err(error) => say(&format!("tcp_connections: {error}")),
            },
            "tcp_segment" => match tcp::segment() {
                Ok(bytes) => say(&format!("tcp_segment: {bytes}")),
                Err(error) => say(&format!("tcp_segment: {error}")),
            },
            "widen" => ask(&step, 1, tcp::widen),
            "fill_udp" => ask(&step, number, || buffers::fill_udp(&mut kept.files)),
            "fill_errors" => ask(&step, number, || buffers::fill_errors(&mut kept.files)),
            "byte" => ask(&step, number, || buffers::send_byte(&mut kept.files)),
            "buffers" => {
                let (sent, received) = buffers::held(&kept.files);
                say(&format!("buffers: {sent} {received}"));
            }
            "throughput" => match buffers::throughput(Duration::from_millis(number)) {
                Ok((kib, datagrams)) => say(&format!("throughput: {kib} {datagrams}")),
                Err(error) => say(&format!("throughput: {error}")),
            },
            "flock" => ask(&step, number, || {
                locked += 1;
                let path = scratch(locked);
                let fd = open(&path)?;
                let _ = std::fs::remove_file(&path);
                kept.files.push(fd);
                // SAFETY: a live descriptor.
                or_errno(unsafe { libc::flock(fd, libc::LOCK_EX) }).map(drop)
            }),
            "crowd" => {
                let path = scratch(0);
                ask(&step, number, || {
                    let fd = open(&path)?;
                    kept.files.push(fd);
                    // SAFETY: a live descriptor.
                    or_errno(unsafe { libc::flock(fd, libc::LOCK_SH) }).map(drop)
                });
                let _ = std::fs::remove_file(&path);
            }
            "split" | "recast" => {
                let path = scratch(0);
                let fd = open(&path).unwrap_or(-1);
                let _ = std::fs::remove_file(&path);
                kept.files.push(fd);
                let length = i64::try_from(number).unwrap_or(i64::MAX / 4) * 2 + 2;
                if lock_range(fd, 1, length, libc::F_WRLCK).is_err() {
                    println!("{step}: no lock to split");
                    continue;
                }
                let kind = if what == "split" {
                    libc::F_UNLCK
                } else {
                    libc::F_RDLCK
                };
                let mut at = 0;
                ask(&step, number, || {
                    at += 2; // neighbours would be joined
                    lock(fd, at, kind)
                });
            }
            "range" | "relock" => {
                let path = scratch(0);
                let fd = open(&path).unwrap_or(-1);
                let _ = std::fs::remove_file(&path);
                kept.files.push(fd);
                let mut at = 0;
                ask(&step, number, || {
                    if what == "relock" {
                        lock(fd, 0, libc::F_WRLCK)?;
                        return lock(fd, 0, libc::F_UNLCK);
                    }
                    at += 2; // neighbours would be joined
                    lock(fd, at, libc::F_WRLCK)
                });
            }
            "pty" => ask(&step, number, || terminal().map(|fd| kept.files.push(fd))),
            "signal" => ask(&step, number, queue_signal),
            "sigio" => match signals_of_file(&mut kept, number) {
                Ok(got) => say(&format!("{step}: {got}")),
                Err(errno) => say(&format!("{step}: {}", name(errno))),
            },
            "own" => ask(&step, number, signal_as_libc),
            "mlock" => ask(&step, number, || {
                let at = map(&mut kept, 1, libc::MAP_PRIVATE)?;
                // SAFETY: a page of ours.
                or_errno(unsafe { libc::mlock(at, 4096) }).map(drop)
            }),
            "maplocked" => ask(&step, number, || {
                map(&mut kept, 1, libc::MAP_PRIVATE | libc::MAP_LOCKED).map(drop)
            }),
            "shmget" => ask(&step, 1, || {
                // SAFETY: plain numbers.
                let made = unsafe {
                    libc::shmget(
                        libc::IPC_PRIVATE,
                        number as usize * 4096,
                        libc::IPC_CREAT | 0o600,
                    )
                };
                let id = or_errno(made)?;
                // It goes with us, however we end.
                // SAFETY: a fresh segment, mapped where the kernel likes.
                unsafe {
                    let at = libc::shmat(id, std::ptr::null(), 0);
                    libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
                    kept.segments.push(at);
                }
                Ok(())
            }),
            "shared" => ask(&step, 1, || {
                map(&mut kept, number as usize, libc::MAP_SHARED).map(drop)
            }),
            "userns" => ask(&step, 1, || {
                // SAFETY: plain numbers; we have one thread.
                or_errno(unsafe { libc::unshare(libc::CLONE_NEWUSER) }).map(drop)
            }),
            "net" | "mnt" | "ipc" | "uts" | "cgroup" | "time_ns" | "pid" | "user" => {
                let name = what.trim_end_matches("_ns");
                ask(&step, number, || namespaces::keep_one(&mut kept, name));
            }
            "route" | "unroute" | "address" => network::fill(&mut kept, &step, what, number),
            "generic" => {
                if let Err(errno) = network::send_generic(&mut kept, &step, number) {
                    say(&format!("{step}: no socket, {}", name(errno)));
                }
            }
            "table" => match (ring::Ring::new(), socket(libc::AF_INET, libc::SOCK_DGRAM)) {
                (Ok(ring), Ok(fd)) => {
                    kept.files.push(fd);
                    ask(&step, number, || ring::set_table(&ring, fd));
                }
                (Err(errno), _) | (_, Err(errno)) => say(&format!("{step}: no {}", name(errno))),
            },
            "names" => ask(&step, number, || {
                kept.names += 1;
                let path = format!("/sys/kernel/flooder-no-such-file-{}", kept.names);
                std::fs::metadata(path).err().map(drop).ok_or(libc::EEXIST)
            }),
            "mount" => ask(&step, number, namespaces::mount_one),
            "time" => say(&format!("time: {}", time_forks(number as usize))),
            "group" => {
                if let Err(error) = std::fs::write(format!("{value}/cgroup.procs"), "0") {
                    say(&format!("cannot enter {value}: {error}"));
                    exit(3);
                }
            }
            "bench" => bench::bench(value),
            "drop" => {
                kept.drop_all();
                say("drop: done");
            }
            "say" => say(value),
            "wait" => {
                let mut line = String::new();
                let _ = std::io::stdin().lock().read_line(&mut line);
            }
            _ => {
                eprintln!("flooder: no such step: {step}");
                exit(2);
            }
        }
    }
    kept.drop_all();
}
