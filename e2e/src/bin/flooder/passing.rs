// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Having bursard close what takes long to close: TCP connections that still have something to send to
//! somebody who does not read, and a SO_LINGER of ten minutes to do it in.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};

/// More than one user may have connections.
const TIMES: usize = 20;

/// Passes one over each connection, and says to how many it could be passed. Everything stays open for as
/// long as what is returned.
pub(crate) fn pass(socket: &str) -> io::Result<(usize, impl Sized)> {
    let deaf = TcpListener::bind("127.0.0.1:0")?;
    let mut connections = Vec::new();
    let mut passed = 0;
    for index in 0..TIMES {
        let full = fill(&deaf)?;
        let mut stream = UnixStream::connect(socket)?;
        if index % 2 == 0 {
            // Behind questions, so that we have let go of it before it is its turn; and alone.
            let _ = stream.write_all(&b"{\"version\":99,\"ask\":\"quota\"}\n".repeat(500));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [full.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let sent = sendmsg(
            &stream,
            &[IoSlice::new(b" ")],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        passed += usize::from(sent.is_ok());
        // Who lets go of it last has to wait: bursard may have closed it before us.
        thread::spawn(move || drop(full));
        if index % 3 > 0 {
            connections.push(stream);
        }
    }
    Ok((passed, (deaf, connections)))
}

fn fill(deaf: &TcpListener) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(deaf.local_addr()?)?;
    stream.set_nonblocking(true)?;
    let piece = [0; 64 << 10];
    loop {
        match stream.write(&piece) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    sockopt::set_socket_linger(&stream, Some(Duration::from_secs(600)))?;
    Ok(stream)
}
