// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filling sockets that nobody reads, and what the kernel says that they hold (SO_MEMINFO).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

const PIECE: [u8; 8 << 10] = [1; 8 << 10];
/// More than fits into a socket of any kind here.
const PIECES: usize = 60;

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Sends pieces until one is refused.
fn fill(mut send: impl FnMut() -> std::io::Result<usize>) -> std::io::Result<()> {
    for _ in 0..PIECES {
        send()?;
    }
    Ok(())
}

/// A pair of local sockets, one of them full; an error is the one that ended it.
pub(crate) fn fill_pair(kept: &mut Vec<i32>, is_stream: bool) -> Result<(), i32> {
    let filled = match is_stream {
        true => UnixStream::pair().and_then(|(mut from, to)| {
            from.set_nonblocking(true)?;
            let filled = fill(|| from.write(&PIECE));
            kept.extend([from.into_raw_fd(), to.into_raw_fd()]);
            filled
        }),
        false => UnixDatagram::pair().and_then(|(from, to)| {
            from.set_nonblocking(true)?;
            let filled = fill(|| from.send(&PIECE));
            kept.extend([from.into_raw_fd(), to.into_raw_fd()]);
            filled
        }),
    };
    filled.map_err(|error| errno(&error))
}

/// A pair of local datagram sockets, filled by sendmmsg(2): of messages that name the same receiver the kernel asks its
/// security modules about the first one, which is small here.
pub(crate) fn fill_by_many(kept: &mut Vec<i32>) -> Result<(), i32> {
    let (from, to) = UnixDatagram::pair().map_err(|error| errno(&error))?;
    let (from, to) = (from.into_raw_fd(), to.into_raw_fd());
    kept.extend([from, to]);
    // SAFETY: plain data, which may be all zeroes.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    let mut size = size_of::<libc::sa_family_t>() as libc::socklen_t;
    // The kernel chooses a name for who gives none.
    // SAFETY: a live local and its size.
    let named = unsafe { libc::bind(to, (&raw const name).cast(), size) };
    crate::or_errno(named)?;
    size = size_of_val(&name) as libc::socklen_t;
    // SAFETY: as above.
    let asked = unsafe { libc::getsockname(to, (&raw mut name).cast(), &mut size) };
    crate::or_errno(asked)?;
    let mut pieces = [libc::iovec {
        iov_base: PIECE.as_ptr().cast_mut().cast(),
        iov_len: PIECE.len(),
    }; PIECES];
    pieces[0].iov_len = 1;
    let mut messages = pieces.each_mut().map(|piece| {
        // SAFETY: plain data, which may be all zeroes.
        let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
        message.msg_hdr.msg_name = (&raw mut name).cast();
        message.msg_hdr.msg_namelen = size;
        message.msg_hdr.msg_iov = piece;
        message.msg_hdr.msg_iovlen = 1;
        message
    });
    // SAFETY: live messages, whose parts live as long.
    let sent = unsafe {
        let number = messages.len() as libc::c_uint;
        libc::sendmmsg(from, messages.as_mut_ptr(), number, libc::MSG_DONTWAIT)
    };
    // More than fits: what was not sent says no errno, and the next one would.
    match crate::or_errno(sent)? as usize {
        PIECES => Ok(()),
        _ => Err(libc::EAGAIN),
    }
}

/// A UDP socket on the loopback, which is sent more than it has room for.
pub(crate) fn fill_udp(kept: &mut Vec<i32>) -> Result<(), i32> {
    let filled = UdpSocket::bind("127.0.0.1:0").and_then(|to| {
        let from = UdpSocket::bind("127.0.0.1:0")?;
        from.connect(to.local_addr()?)?;
        kept.push(to.into_raw_fd());
        fill(|| from.send(&PIECE))
    });
    filled.map_err(|error| errno(&error))
}

/// A UDP socket that asks when its datagrams are sent: each comes back whole, into its error queue (SO_TIMESTAMPING). Nobody
/// receives them.
pub(crate) fn fill_errors(kept: &mut Vec<i32>) -> Result<(), i32> {
    const NOWHERE: (&str, u16) = ("127.0.0.1", 9);
    let asked = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    let filled = UdpSocket::bind("127.0.0.1:0").and_then(|from| {
        let fd = from.as_raw_fd();
        // SAFETY: a live local and its size.
        let set = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMPING,
                (&raw const asked).cast(),
                size_of_val(&asked) as libc::socklen_t,
            )
        };
        if set != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let filled = fill(|| from.send_to(&PIECE, NOWHERE));
        kept.push(from.into_raw_fd());
        filled
    });
    filled.map_err(|error| errno(&error))
}

/// A connection over the loopback, both ends of which are full: what fits is far more than into other sockets, because
/// the kernel lets its buffers grow.
pub(crate) fn fill_tcp(kept: &mut Vec<i32>) -> Result<(), i32> {
    const GROWING: u32 = 20;
    let filled = TcpListener::bind("127.0.0.1:0").and_then(|listener| {
        let mut from = TcpStream::connect(listener.local_addr()?)?;
        let (to, _) = listener.accept()?;
        from.set_nonblocking(true)?;
        let mut refused = 0;
        while refused < GROWING {
            match from.write(&PIECE) {
                Ok(_) => refused = 0,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
        kept.extend([from.into_raw_fd(), to.into_raw_fd()]);
        Ok(())
    });
    filled.map_err(|error| errno(&error))
}

/// What these sockets hold for sending and of what they have received.
pub(crate) fn held(sockets: &[i32]) -> (u64, u64) {
    const SO_MEMINFO: i32 = 55;
    const RECEIVED: usize = 0;
    /// Of TCP the queue, which is 0 of others.
    const SENDING: [usize; 2] = [2, 5];
    let (mut sending, mut received) = (0, 0);
    for &fd in sockets {
        let mut facts = [0_u32; 9];
        let mut size = std::mem::size_of_val(&facts) as libc::socklen_t;
        // SAFETY: a live array and its size.
        let answer = unsafe {
            libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                SO_MEMINFO,
                facts.as_mut_ptr().cast(),
                &mut size,
            )
        };
        if answer == 0 {
            sending += u64::from(SENDING.map(|it| facts[it]).into_iter().max().unwrap_or(0));
            received += u64::from(facts[RECEIVED]);
        }
    }
    (sending, received)
}

pub(crate) fn is_writable(fd: i32) -> bool {
    let mut asked = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one live element.
    unsafe { libc::poll(&mut asked, 1, 0) == 1 && asked.revents & libc::POLLOUT != 0 }
}

/// A byte for a fresh socket that poll(2) calls writable.
pub(crate) fn send_byte(kept: &mut Vec<i32>) -> Result<(), i32> {
    let sent = UnixStream::pair().and_then(|(mut from, to)| {
        let sent = match is_writable(from.as_raw_fd()) {
            true => from.write(b"1"),
            false => Err(std::io::Error::from_raw_os_error(libc::ETIMEDOUT)),
        };
        kept.extend([from.into_raw_fd(), to.into_raw_fd()]);
        sent
    });
    sent.map(drop).map_err(|error| errno(&error))
}

/// How many KiB go through a pair of local sockets in a second, and how many datagrams over the loopback and back.
pub(crate) fn throughput(span: Duration) -> std::io::Result<(u64, u64)> {
    let (mut from, mut to) = UnixStream::pair()?;
    let reader = std::thread::spawn(move || {
        let (mut sum, mut block) = (0_u64, vec![0; 64 << 10]);
        while let Ok(read @ 1..) = to.read(&mut block) {
            sum += read as u64;
        }
        sum
    });
    let began = Instant::now();
    while began.elapsed() < span {
        from.write_all(&PIECE)?;
    }
    drop(from);
    let sum = reader.join().unwrap_or(0) as u128;
    let kib = sum * 1000 / 1024 / began.elapsed().as_millis().max(1);
    let (here, there) = (
        UdpSocket::bind("127.0.0.1:0")?,
        UdpSocket::bind("127.0.0.1:0")?,
    );
    here.connect(there.local_addr()?)?;
    there.connect(here.local_addr()?)?;
    let (mut times, mut block) = (0_u128, vec![0; PIECE.len()]);
    let began = Instant::now();
    while began.elapsed() < span {
        here.send(&PIECE[..1000])?;
        there.recv(&mut block)?;
        there.send(&PIECE[..1000])?;
        here.recv(&mut block)?;
        times += 2;
    }
    let datagrams = times * 1000 / began.elapsed().as_millis().max(1);
    Ok((kib as u64, datagrams as u64))
}
