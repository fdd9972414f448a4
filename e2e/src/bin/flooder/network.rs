// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Routes in a network namespace of our own: kernel memory of which no task, file or socket tells.

use crate::{Kept, ask, errno, or_errno};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
/// Needs no device.
const RTN_UNREACHABLE: u8 = 7;
const RTA_DST: u16 = 1;
const MESSAGE: usize = 36;

/// A socket of netlink and one for ioctl(2), made before anything is full.
#[derive(Clone, Copy)]
pub(crate) struct Sockets {
    netlink: i32,
    internet: i32,
}

impl Sockets {
    fn new() -> Self {
        let socket = |family, kind, protocol| {
            // SAFETY: plain numbers.
            unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }
        };
        Self {
            netlink: socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
            internet: socket(libc::AF_INET, libc::SOCK_DGRAM, 0),
        }
    }
}

/// One step, so many times.
pub(crate) fn fill(kept: &mut Kept, step: &str, what: &str, times: u64) {
    let sockets = *kept.network.get_or_insert_with(Sockets::new);
    let socket = match what {
        "address" => sockets.internet,
        _ => sockets.netlink,
    };
    ask(step, times, || match what {
        "route" => {
            let made = exchange(socket, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, kept.routes);
            kept.routes += u32::from(made.is_ok());
            made
        }
        "unroute" => {
            kept.routes = kept.routes.saturating_sub(1);
            exchange(socket, RTM_DELROUTE, 0, kept.routes)
        }
        _ => {
            let made = add_by_ioctl(socket, kept.routes);
            kept.routes += u32::from(made.is_ok());
            made
        }
    });
}

/// Whatever such a message would make, what is asked before it is delivered is the same. That there is no such family is an
/// answer.
pub(crate) fn send_generic(kept: &mut Kept, step: &str, times: u64) -> Result<(), i32> {
    const FAMILY: u16 = 0x7ffe;
    const SIZE: usize = 1024;
    // SAFETY: plain numbers.
    let socket = or_errno(unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC)
    })?;
    kept.files.push(socket);
    let mut message = [0_u8; SIZE];
    message[..4].copy_from_slice(&(SIZE as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&FAMILY.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    ask(step, times, || {
        let mut answer = [0_u8; 2 * SIZE];
        // SAFETY: live arrays and their sizes.
        unsafe {
            or_errno(libc::send(socket, message.as_ptr().cast(), SIZE, 0) as i32)?;
            or_errno(libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0) as i32)
        }
        .map(drop)
    });
    Ok(())
}

/// 10.0.0.1 and those after it.
fn destination(index: u32) -> [u8; 4] {
    (0x0a00_0001 + index).to_be_bytes()
}

/// One message and what the kernel answers.
fn exchange(socket: i32, kind: u16, flags: u16, index: u32) -> Result<(), i32> {
    let mut message = [0_u8; MESSAGE];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        message[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&(MESSAGE as u32).to_ne_bytes());
    put(&kind.to_ne_bytes());
    put(&(NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
    put(&[0; 8]);
    // struct rtmsg: all of the address counts.
    put(&[
        libc::AF_INET as u8,
        32,
        0,
        0,
        RT_TABLE_MAIN,
        RTPROT_STATIC,
        0,
        RTN_UNREACHABLE,
    ]);
    put(&[0; 4]);
    put(&8_u16.to_ne_bytes());
    put(&RTA_DST.to_ne_bytes());
    put(&destination(index));
    let mut answer = [0_u8; 256];
    // SAFETY: live arrays and their sizes.
    let length = unsafe {
        let sent = libc::send(socket, message.as_ptr().cast(), MESSAGE, 0);
        or_errno(sent as i32)?;
        libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0)
    };
    let is_answer = length >= 20 && answer[4..6] == NLMSG_ERROR.to_ne_bytes();
    let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    match (is_answer, error) {
        (true, 0) => Ok(()),
        (true, error) => Err(-error),
        (false, _) => Err(errno()),
    }
}

fn add_by_ioctl(socket: i32, index: u32) -> Result<(), i32> {
    const SIOCADDRT: libc::c_ulong = 0x890b;
    const RTF_UP_HOST_REJECT: u16 = 1 | 4 | 0x200;
    /// struct rtentry: `rt_dst`, `rt_gateway`, `rt_genmask` of 16 bytes each from the eighth on, then flags.
    const SIZE: usize = 120;
    let mut entry = [0_u8; SIZE];
    let family = (libc::AF_INET as u16).to_ne_bytes();
    entry[8..10].copy_from_slice(&family);
    entry[12..16].copy_from_slice(&destination(index));
    entry[40..42].copy_from_slice(&family);
    entry[44..48].copy_from_slice(&[255; 4]);
    entry[56..58].copy_from_slice(&RTF_UP_HOST_REJECT.to_ne_bytes());
    // SAFETY: a live array of the size that the call takes.
    or_errno(unsafe { libc::ioctl(socket, SIOCADDRT, entry.as_mut_ptr()) }).map(drop)
}
