// SPDX-License-Identifier: Apache-2.0 OR MIT
//! setsockopt(2) by io_uring: nothing of a system call under way says what it does.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{errno, or_errno};

const IORING_OFF_SQES: i64 = 0x1000_0000;
const IORING_OP_URING_CMD: u8 = 46;
const IORING_ENTER_GETEVENTS: u32 = 1;
const SOCKET_URING_OP_SETSOCKOPT: u32 = 3;
/// Room for one request takes less.
const RING_BYTES: usize = 4096;
/// Offsets in `struct io_uring_params`: what is where in the ring.
const SUBMISSION_TAIL: usize = 44;
const COMPLETION_HEAD: usize = 80;
const COMPLETION_MASK: usize = 88;
const COMPLETIONS: usize = 100;

/// Of one request at a time; there until the end.
pub(crate) struct Ring {
    fd: i32,
    places: [u8; 120],
    ring: *mut u8,
    request: *mut u8,
}

impl Ring {
    pub(crate) fn new() -> Result<Self, i32> {
        let mut places = [0_u8; 120];
        let shared = |fd: i32, at: i64| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a fresh mapping of the ring's.
            let it = unsafe {
                let anywhere = std::ptr::null_mut();
                libc::mmap(anywhere, RING_BYTES, protection, libc::MAP_SHARED, fd, at)
            };
            match it {
                libc::MAP_FAILED => Err(errno()),
                it => Ok(it.cast::<u8>()),
            }
        };
        // SAFETY: a live struct of that size.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, places.as_mut_ptr()) };
        let fd = or_errno(fd as i32)?;
        let ring = shared(fd, 0)?;
        let request = shared(fd, IORING_OFF_SQES)?;
        Ok(Self {
            fd,
            places,
            ring,
            request,
        })
    }

    fn place(&self, name: usize) -> usize {
        let bytes = self.places[name..name + 4].try_into().unwrap_or_default();
        u32::from_ne_bytes(bytes) as usize
    }

    fn number(&self, name: usize) -> &AtomicU32 {
        // SAFETY: an aligned number in the ring, which the kernel shares with us.
        unsafe { &*self.ring.add(self.place(name)).cast() }
    }

    /// What the kernel answers to a setsockopt(2) with an int of 0; not at all before Linux 6.7.
    pub(crate) fn set_option(&self, socket: i32, level: i32, option: i32) -> Result<(), i32> {
        let value = 0_i32;
        let mut request = [0_u8; 64];
        let mut put = |at: usize, bytes: &[u8]| {
            request[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &[IORING_OP_URING_CMD]);
        put(4, &socket.to_ne_bytes());
        put(8, &SOCKET_URING_OP_SETSOCKOPT.to_ne_bytes());
        put(16, &level.to_ne_bytes());
        put(20, &option.to_ne_bytes());
        put(44, &4_u32.to_ne_bytes());
        put(48, &((&raw const value) as u64).to_ne_bytes());
        // SAFETY: the ring's one request, and its first completion; one is under way at a time.
        let answer = unsafe {
            std::ptr::copy_nonoverlapping(request.as_ptr(), self.request, request.len());
            self.number(SUBMISSION_TAIL).fetch_add(1, Ordering::SeqCst);
            let nothing = std::ptr::null::<u8>();
            or_errno(libc::syscall(
                libc::SYS_io_uring_enter,
                self.fd,
                1,
                1,
                IORING_ENTER_GETEVENTS,
                nothing,
                0,
            ) as i32)?;
            let head = self.number(COMPLETION_HEAD).fetch_add(1, Ordering::SeqCst);
            let index = head & self.number(COMPLETION_MASK).load(Ordering::SeqCst);
            let at = self.place(COMPLETIONS) + index as usize * 16 + 8;
            self.ring.add(at).cast::<i32>().read_volatile()
        };
        if answer < 0 { Err(-answer) } else { Ok(()) }
    }
}

fn set_plainly(socket: i32, level: i32, option: i32) -> Result<(), i32> {
    let value = 0_i32;
    // SAFETY: a live int and its size.
    let set = unsafe { libc::setsockopt(socket, level, option, (&raw const value).cast(), 4) };
    or_errno(set).map(drop)
}

/// A table of packet filters that is none: refused for what it is, unless it is refused before.
pub(crate) fn set_table(ring: &Ring, socket: i32) -> Result<(), i32> {
    const IPT_SO_SET_REPLACE: i32 = 64;
    let by_ring = ring.set_option(socket, libc::IPPROTO_IP, IPT_SO_SET_REPLACE);
    let answer = match by_ring {
        Err(libc::EOPNOTSUPP) => set_plainly(socket, libc::IPPROTO_IP, IPT_SO_SET_REPLACE),
        other => other,
    };
    match answer {
        Err(libc::EPERM) => Err(libc::EPERM),
        _ => Ok(()),
    }
}
