// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often a second: the six tests of S5's tables 2 and 3, calls of which each makes what a row counts, and works
//! that take ten times as long.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use super::works::{WORKS, Work};
use super::{ending_child, listener, open, say, scratch, socket, wait_for};

/// How often a second, begun in so long.
fn often(span: Duration, mut once: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut times = 0_u32;
    while began.elapsed() < span {
        once();
        times += 1;
    }
    f64::from(times) / began.elapsed().as_secs_f64()
}

fn run(command: &mut std::process::Command) {
    let _ = command.stdin(std::process::Stdio::null()).status();
}

fn close(fd: i32) {
    // SAFETY: ours, and used no more.
    unsafe { libc::close(fd) };
}

fn close_pair(pair: [i32; 2]) {
    pair.into_iter().for_each(close);
}

fn process() {
    if let Ok(child) = ending_child() {
        wait_for(child);
    }
}

fn execl() {
    run(&mut std::process::Command::new("/bin/true"));
}

fn shell() {
    let script = "echo a | cat | cat >/dev/null; :";
    run(std::process::Command::new("/bin/sh").args(["-c", script]));
}

fn thread() {
    let started = std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(|| {});
    let _ = started.map(std::thread::JoinHandle::join);
}

fn open_and_close() {
    if let Ok(fd) = open("/dev/null") {
        close(fd);
    }
}

fn socket_and_close() {
    if let Ok(fd) = socket(libc::AF_INET, libc::SOCK_DGRAM) {
        close(fd);
    }
}

fn socketpair() {
    let mut pair = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: a live array of two.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } == 0 {
        close_pair(pair);
    }
}

/// Two sockets, the first of which sends to the second.
fn connected(family: i32, kind: i32) -> Option<[i32; 2]> {
    if family == libc::AF_UNIX {
        let mut pair = [0; 2];
        // SAFETY: a live array of two.
        let made =
            unsafe { libc::socketpair(family, kind | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
        return (made == 0).then_some(pair);
    }
    let to = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
    let from = std::net::UdpSocket::bind("127.0.0.1:0").ok()?;
    from.connect(to.local_addr().ok()?).ok()?;
    Some([from.into_raw_fd(), to.into_raw_fd()])
}

/// One message, sent and received.
fn exchange(from: i32, to: i32, at: *mut libc::c_void, length: usize) {
    // SAFETY: a live buffer that is at least as long.
    unsafe {
        libc::send(from, at, length, 0);
        libc::recv(to, at, length, 0);
    }
}

fn new_pipe() {
    let mut pair = [0; 2];
    // SAFETY: a live array of two.
    if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } == 0 {
        close_pair(pair);
    }
}

/// A connection over the loopback, from both ends, ended by a reset: nothing of it stays.
fn accept(to: (i32, libc::sockaddr_in)) {
    let Ok(fd) = socket(libc::AF_INET, libc::SOCK_STREAM) else {
        return;
    };
    let reset = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // SAFETY: live locals and their sizes.
    unsafe {
        let size = std::mem::size_of_val(&to.1) as libc::socklen_t;
        if libc::connect(fd, (&raw const to.1).cast(), size) < 0 {
            libc::close(fd);
            return;
        }
        let null = std::ptr::null_mut();
        let accepted = libc::accept(to.0, null, null.cast());
        let size = std::mem::size_of_val(&reset) as libc::socklen_t;
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const reset).cast(),
            size,
        );
        libc::close(fd);
        libc::close(accepted);
    }
}

fn lock(file: i32) {
    // SAFETY: plain numbers.
    unsafe {
        libc::flock(file, libc::LOCK_EX);
        libc::flock(file, libc::LOCK_UN);
    }
}

fn map() {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a fresh mapping, used by nobody.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        libc::munmap(at, 4096);
    }
}

/// Prints how often a second each test was done, or each of these, separated by commas. Works whose programs are not
/// there are left out.
pub(crate) fn bench(wanted: &str) {
    let (span, names) = wanted.split_once(':').unwrap_or((wanted, ""));
    let span = Duration::from_millis(span.parse().unwrap_or(0));
    let names: BTreeSet<&str> = names.split(',').filter(|it| !it.is_empty()).collect();
    let is_wanted = |name: &str| names.is_empty() || names.contains(name);
    let figure = |name: &str, a_second: f64| format!("{name} {a_second:.5}");
    let Ok((from, to)) = std::io::pipe() else {
        return say("no pipe");
    };
    let to_listener = listener().ok();
    let path = scratch(0);
    let file = open(&path).unwrap_or(-1);
    let _ = std::fs::remove_file(&path);
    let mut block = vec![1_u8; 4096];
    let at = block.as_mut_ptr().cast::<libc::c_void>();
    let mut said = Vec::new();
    let mut measure = |name: &str, once: &mut dyn FnMut()| {
        if is_wanted(name) {
            said.push(figure(name, often(span, once)));
        }
    };
    measure("process", &mut process);
    measure("execl", &mut execl);
    // SAFETY: a live buffer that is longer.
    measure("pipe", &mut || unsafe {
        libc::write(to.as_raw_fd(), at, 512);
        libc::read(from.as_raw_fd(), at, 512);
    });
    measure("shell", &mut shell);
    // SAFETY: a live buffer of that length.
    measure("write", &mut || unsafe {
        libc::pwrite(file, at, 4096, 0);
    });
    // SAFETY: as above.
    measure("read", &mut || unsafe {
        libc::pread(file, at, 4096, 0);
    });
    measure("open", &mut open_and_close);
    measure("socket", &mut socket_and_close);
    measure("socketpair", &mut socketpair);
    if let Some(to) = to_listener {
        measure("accept", &mut || accept(to));
    }
    if let Some([from, to]) = connected(libc::AF_UNIX, libc::SOCK_STREAM) {
        measure("stream", &mut || exchange(from, to, at, 4096));
        close_pair([from, to]);
    }
    if let Some([from, to]) = connected(libc::AF_INET, libc::SOCK_DGRAM) {
        measure("packet", &mut || exchange(from, to, at, 512));
        close_pair([from, to]);
    }
    measure("newpipe", &mut new_pipe);
    measure("thread", &mut thread);
    measure("flock", &mut || lock(file));
    measure("map", &mut map);
    for (name, programs) in WORKS.into_iter().filter(|(name, _)| is_wanted(name)) {
        if let Some(work) = Work::prepare(name, programs) {
            said.push(figure(name, often(span * 10, || work.once())));
        }
    }
    say(&said.join(" "));
    close(file);
    if let Some((fd, _)) = to_listener {
        close(fd);
    }
}
