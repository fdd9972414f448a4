// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `stuck_fuse FILE UID`: a file server (FUSE) of that user's, mounted over FILE, which never answers who reads it. As
//! root, who mounts for users (fusermount3 does it for them otherwise). Says `mounted`; ends, and lets everybody go
//! who waits for it, when its stdin does.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::exit;

/// include/uapi/linux/fuse.h
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
/// The largest request, and more.
const ROOM: usize = 1 << 17;
/// Of the one file there is.
const SIZE: u64 = 1 << 16;
const MODE: u32 = libc::S_IFREG | 0o644;

fn fail(what: &str) -> ! {
    eprintln!("stuck_fuse: {what}: {}", std::io::Error::last_os_error());
    exit(1)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, uid] = &arguments[..] else {
        eprintln!("usage: stuck_fuse FILE UID");
        exit(2)
    };
    // SAFETY: a plain system call on numbers: a story that is cut short leaves nobody behind.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let Ok(device) = device else {
        fail("open /dev/fuse")
    };
    let options = format!(
        "fd={},rootmode={MODE:o},user_id={uid},group_id={uid},allow_other",
        device.as_raw_fd()
    );
    let (Ok(target), Ok(options)) = (CString::new(path.as_str()), CString::new(options)) else {
        fail("mount")
    };
    // SAFETY: NUL-terminated strings that live across the call.
    let mounted = unsafe {
        libc::mount(
            c"stuck_fuse".as_ptr(),
            target.as_ptr(),
            c"fuse".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            options.as_ptr().cast(),
        )
    };
    if mounted != 0 {
        fail("mount");
    }
    let uid = uid.parse().unwrap_or(0);
    std::thread::spawn(move || serve(&device, uid));
    println!("mounted");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    // SAFETY: a NUL-terminated string.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    // The device is closed with us, and that ends the connection.
    exit(0)
}

fn serve(mut device: &File, uid: u32) {
    let mut request = vec![0; ROOM];
    loop {
        let Ok(length) = device.read(&mut request) else {
            return;
        };
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or([0; 4]));
        if length < 40 {
            return;
        }
        let body = match word(4) {
            READ | FORGET | INTERRUPT => continue,
            // Version 7.31, one page at a time.
            INIT => words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            GETATTR => {
                let mut body = [1000_u64, 0, 1, SIZE, SIZE / 512, 0, 0, 0]
                    .map(u64::to_ne_bytes)
                    .concat();
                body.extend(words(&[0, 0, 0, MODE, 1, uid, uid, 0, 4096, 0]));
                body
            }
            // FOPEN_KEEP_CACHE: another one who opens it does not wait for its pages.
            OPEN => words(&[0, 0, 2, 0]),
            _ => Vec::new(),
        };
        let error = if body.is_empty() { -libc::ENOSYS } else { 0 };
        let mut answer = words(&[16 + body.len() as u32, error.cast_unsigned()]);
        answer.extend(&request[8..16]);
        answer.extend(body);
        // Who asked may be gone.
        let _ = device.write(&answer);
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|it| it.to_ne_bytes()).collect()
}
