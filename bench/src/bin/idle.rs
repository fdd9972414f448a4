// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar-bench-idle FIRST_UID ACCOUNTS COUNT`: so many processes that do nothing, of so many users
//! in turn. Says `ready` when all are there; ends, with all of them, at the end of its input.

use std::io::{Read, Write};
use std::process::exit;

fn fail(what: &str) -> ! {
    eprintln!(
        "bursar-bench-idle: {what}: {}",
        std::io::Error::last_os_error()
    );
    exit(1)
}

fn be_one(uid: u32, told: i32) -> ! {
    // SAFETY: plain system calls on numbers; a pointer to a live byte; ends this process only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let failed = libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(uid, uid, uid) != 0
            || libc::setresuid(uid, uid, uid) != 0
            // A change of uid forgets it.
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0;
        if failed || libc::write(told, b".".as_ptr().cast(), 1) != 1 {
            libc::_exit(1);
        }
        loop {
            libc::pause();
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize| -> u32 {
        arguments
            .get(index)
            .and_then(|it| it.parse().ok())
            .unwrap_or_else(|| fail("arguments"))
    };
    let (first, accounts, count) = (number(1), number(2).max(1), number(3));
    let mut ends = [0; 2];
    // SAFETY: an array of two live descriptors.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        fail("make a pipe");
    }
    let mut children = Vec::new();
    for index in 0..count {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => be_one(first + index % accounts, ends[1]),
            child if child > 0 => children.push(child),
            _ => fail("fork"),
        }
    }
    let mut heard = 0_usize;
    let mut bytes = [0_u8; 4096];
    while heard < children.len() {
        // SAFETY: a live buffer of that length.
        let more = unsafe { libc::read(ends[0], bytes.as_mut_ptr().cast(), bytes.len()) };
        if more <= 0 {
            fail("hear from the processes");
        }
        heard += more as usize;
    }
    println!("ready");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    for &child in &children {
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    // SAFETY: waits for our own children; no status is asked for.
    while unsafe { libc::wait(std::ptr::null_mut()) } > 0 {}
}
