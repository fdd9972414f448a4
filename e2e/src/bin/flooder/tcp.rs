// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP connections over the loopback: whole transfers while buffers are short, what poll(2) promises, how fast one is.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::{Duration, Instant};

use super::buffers::is_writable;

/// What a transfer is, in bytes: more than any buffer.
const WHOLE: usize = 600_000;
/// How long a reader is away before it begins.
const AWAY: Duration = Duration::from_millis(300);
const TIMEOUT: Duration = Duration::from_secs(120);

fn pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let from = TcpStream::connect(listener.local_addr()?)?;
    Ok((from, listener.accept()?.0))
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// A writer that waits, and a reader that comes later; an error is the first that anybody saw.
pub(crate) fn transfer() -> Result<()> {
    let (mut from, mut to) = pair()?;
    to.set_read_timeout(Some(TIMEOUT))?;
    from.set_write_timeout(Some(TIMEOUT))?;
    let writer = std::thread::spawn(move || {
        let data: Vec<u8> = (0..WHOLE).map(pattern).collect();
        from.write_all(&data)
    });
    std::thread::sleep(AWAY);
    let mut got = Vec::with_capacity(WHOLE);
    to.read_to_end(&mut got)?;
    writer
        .join()
        .unwrap_or_else(|_| Err(ErrorKind::Other.into()))?;
    let is_right = got.len() == WHOLE && got.iter().enumerate().all(|(at, &it)| it == pattern(at));
    is_right.then_some(()).ok_or(ErrorKind::InvalidData.into())
}

/// So many of them at once; how many were right.
pub(crate) fn transfers(number: u64) -> (u64, Option<Error>) {
    let all: Vec<_> = (0..number).map(|_| std::thread::spawn(transfer)).collect();
    let mut right = 0;
    let mut last = None;
    for one in all {
        match one.join() {
            Ok(Ok(())) => right += 1,
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(ErrorKind::Other.into()),
        }
    }
    (right, last)
}

/// A byte for a fresh connection that poll(2) calls writable, which arrives.
pub(crate) fn send_byte(kept: &mut Vec<i32>) -> std::result::Result<(), i32> {
    let sent = pair().and_then(|(mut from, mut to)| {
        from.set_nonblocking(true)?;
        to.set_read_timeout(Some(Duration::from_secs(10)))?;
        if !is_writable(from.as_raw_fd()) {
            return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        from.write_all(b"1")?;
        to.read_exact(&mut [0])?;
        kept.extend([from.into_raw_fd(), to.into_raw_fd()]);
        Ok(())
    });
    sent.map_err(|error| error.raw_os_error().unwrap_or(0))
}

/// Bytes of the largest segment of a connection whose listener asked for larger ones once it listened.
pub(crate) fn segment() -> Result<i32> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    set(
        listener.as_raw_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_MAXSEG,
        32_000,
    );
    let from = TcpStream::connect(listener.local_addr()?)?;
    let _to = listener.accept()?;
    let (mut bytes, mut size) = (0_i32, 4);
    // SAFETY: a live number and its size.
    let done = unsafe {
        libc::getsockopt(
            from.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut bytes).cast(),
            &raw mut size,
        )
    };
    if done != 0 {
        return Err(Error::last_os_error());
    }
    Ok(bytes)
}

/// Connections made and closed a second, one after the other.
pub(crate) fn connections(span: Duration) -> Result<u64> {
    let began = Instant::now();
    let mut number = 0_u64;
    while began.elapsed() < span {
        drop(pair()?);
        number += 1;
    }
    Ok((u128::from(number) * 1000 / began.elapsed().as_millis().max(1)) as u64)
}

/// More than a page, which is more than programs in the kernel are shown.
fn set_at_length(fd: i32, option: i32, value: i32) {
    let mut page = vec![0_i32; 1250];
    page[0] = value;
    // SAFETY: a live buffer and its size.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, page.as_ptr().cast(), 5000) };
}

/// By a call of 32 bits, which no setsockopt program sees.
#[cfg(target_arch = "x86_64")]
fn set_by_32_bits(fd: i32, option: i32, value: i32) {
    const SETSOCKOPT: u64 = 366;
    // SAFETY: a mapping of our own, which such a call can name; the call changes no memory of ours, and rbx is put back.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return;
        }
        page.cast::<i32>().write(value);
        std::arch::asm!(
            "xchg rbx, {fd}",
            "int 0x80",
            "xchg rbx, {fd}",
            fd = inout(reg) i64::from(fd) => _,
            inout("rax") SETSOCKOPT => _,
            in("rcx") i64::from(libc::SOL_SOCKET),
            in("rdx") i64::from(option),
            in("rsi") page,
            in("rdi") 4_i64,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
        libc::munmap(page, 4096);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn set_by_32_bits(_: i32, _: i32, _: i32) {}

fn set(fd: i32, level: i32, option: i32, value: i32) {
    // SAFETY: a live number and its size.
    unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), 4) };
}

/// KiB a second through one connection, which is read at once.
pub(crate) fn throughput(span: Duration) -> Result<u64> {
    let (mut from, mut to) = pair()?;
    let reader = std::thread::spawn(move || {
        let (mut sum, mut block) = (0_u64, vec![0; 64 << 10]);
        while let Ok(read @ 1..) = to.read(&mut block) {
            sum += read as u64;
        }
        sum
    });
    let block = vec![1; 64 << 10];
    let began = Instant::now();
    while began.elapsed() < span {
        from.write_all(&block)?;
    }
    drop(from);
    let sum = u128::from(reader.join().unwrap_or(0));
    Ok((sum * 1000 / 1024 / began.elapsed().as_millis().max(1)) as u64)
}

/// Asks for the largest buffers that there are, of sockets that are there, and fills them again.
pub(crate) fn ask_for_more(sockets: &[i32]) {
    const SO_BUF_LOCK: i32 = 72;
    const MOST: i32 = 64 << 20;
    for &fd in sockets {
        let block = vec![1_u8; 64 << 10];
        for (option, value) in [
            (SO_BUF_LOCK, 0),
            (libc::SO_SNDBUF, MOST),
            (libc::SO_RCVBUF, MOST),
        ] {
            set(fd, libc::SOL_SOCKET, option, value);
            set_at_length(fd, option, value);
            set_by_32_bits(fd, option, value);
        }
        // SAFETY: a live buffer and its length.
        while unsafe { libc::send(fd, block.as_ptr().cast(), block.len(), libc::MSG_DONTWAIT) } > 0
        {
        }
    }
}

/// Behind `userns` and `net=1`: the loopback is up, and its namespace's own sysctls let buffers grow to 64 MiB.
pub(crate) fn widen() -> std::result::Result<(), i32> {
    const WIDE: &str = "4096 4194304 67108864";
    // SAFETY: plain numbers; a live request.
    let done = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
        libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request)
    };
    super::or_errno(done)?;
    for name in ["tcp_wmem", "tcp_rmem"] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        std::fs::write(path, WIDE).map_err(|error| error.raw_os_error().unwrap_or(0))?;
    }
    Ok(())
}
