// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors that somebody passes over a local socket (SCM_RIGHTS, unix(7)). Who receives them without
//! asking for them closes them, and that can take as long as the sender likes: a TCP connection whose other
//! end does not read is closed after its SO_LINGER.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

/// include/uapi/asm-generic/socket.h, Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// From now on nobody can pass any to this socket, or to those accepted from it: sendmsg(2) says EPERM to
/// him. Returns whether this kernel can do that (6.16 and later).
pub fn refuse_passed(socket: impl AsFd) -> bool {
    let off: libc::c_int = 0;
    let size = libc::socklen_t::try_from(size_of_val(&off)).unwrap_or(0);
    // SAFETY: a live descriptor and a live integer of that size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size,
        )
    };
    done == 0
}

/// Looks at what has arrived and leaves it there. Returns how many bytes, and whether descriptors come with
/// them.
///
/// # Errors
/// EAGAIN when there is nothing, and what recvmsg(2) has else.
pub fn peek(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, bool)> {
    // No room for descriptors: what the kernel cannot hand over it says, and lets go of its copies.
    let mut none = RecvAncillaryBuffer::default();
    let slices = &mut [IoSliceMut::new(bytes)];
    let found = recvmsg(
        socket,
        slices,
        &mut none,
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    )?;
    Ok((found.bytes, found.flags.contains(ReturnFlags::CTRUNC)))
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    fn pass(to: &UnixStream, text: &[u8]) -> io::Result<usize> {
        let file = std::fs::File::open("/dev/null")?;
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        assert!(passed.push(SendAncillaryMessage::ScmRights(&fds)));
        Ok(sendmsg(
            to,
            &[IoSlice::new(text)],
            &mut passed,
            SendFlags::empty(),
        )?)
    }

    #[test]
    fn a_peek_tells_of_descriptors_and_takes_nothing() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut bytes = [0; 64];
        assert!(peek(&ours, &mut bytes).is_err());
        theirs.write_all(b"one").unwrap();
        assert_eq!(peek(&ours, &mut bytes).unwrap(), (3, false));
        pass(&theirs, b"two").unwrap();
        for _ in 0..2 {
            assert_eq!(peek(&ours, &mut bytes).unwrap(), (6, true));
        }
        assert_eq!(&bytes[..6], b"onetwo");
    }

    #[test]
    fn where_the_kernel_can_nobody_passes_any() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        if refuse_passed(&ours) {
            let refused = pass(&theirs, b"x").unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        }
    }
}
