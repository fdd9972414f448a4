// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Before main(): what `bursar run --lock` asked for in the environment.
//!
//! BURSAR_PREFAULT is `heap=BYTES,stack=BYTES,flags=NUMBER,children=0|1`. Unless children are to be
//! locked as well it and our place in LD_PRELOAD are taken out of the environment again: a control loop
//! that starts a shell does not want the shell locked.

use std::ffi::{CStr, c_char, c_int};

use crate::act::{self, Options, Refusal, Step};
use crate::say::Line;

const REQUEST: &CStr = c"BURSAR_PREFAULT";
const PRELOAD: &CStr = c"LD_PRELOAD";
const VERIFIER: &CStr = c"BURSAR_VERIFY_PID";
/// What nice(1), timeout(1) and their like end with when they cannot do their part.
const CANNOT: c_int = 125;

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    let Some(request) = variable(REQUEST) else {
        return;
    };
    let Some((options, locks_children)) = parse(request) else {
        Line::new()
            .text(b"BURSAR_PREFAULT is not as this version of bursar writes it")
            .say();
        // SAFETY: ends the process.
        unsafe { libc::_exit(CANNOT) };
    };
    if !locks_children {
        // SAFETY: before main() there is one thread.
        unsafe { libc::unsetenv(REQUEST.as_ptr()) };
        leave_preload();
    }
    if let Err(refusal) = act::lock(&options) {
        tell(refusal);
        // Nothing is left locked: the lock is the process's.
        // SAFETY: ends the process.
        unsafe { libc::_exit(CANNOT) };
    }
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: before main(), and in the functions of prefault.h as far as nobody changes the
    // environment meanwhile, which getenv(3) demands of everybody.
    unsafe {
        let value: *const c_char = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

fn decimal(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0usize, |value, &digit| {
        let digit = (digit as char).to_digit(10)?;
        value.checked_mul(10)?.checked_add(digit as usize)
    })
}

fn parse(request: &[u8]) -> Option<(Options, bool)> {
    let mut options = Options {
        flags: 0,
        heap_bytes: 0,
        stack_bytes: 0,
    };
    let mut locks_children = false;
    for part in request.split(|&byte| byte == b',') {
        let at = part.iter().position(|&byte| byte == b'=')?;
        let value = decimal(part.get(at + 1..)?)?;
        match part.get(..at)? {
            b"heap" => options.heap_bytes = value,
            b"stack" => options.stack_bytes = value,
            b"flags" => options.flags = u32::try_from(value).ok()?,
            b"children" => locks_children = value != 0,
            _ => return None,
        }
    }
    Some((options, locks_children))
}

/// Takes libprefault.so out of LD_PRELOAD, and LD_PRELOAD away with its last entry.
fn leave_preload() {
    let Some(list) = variable(PRELOAD) else {
        return;
    };
    let mut rest = [0u8; 4096];
    let mut used = 0;
    for entry in list
        .split(|byte| matches!(byte, b':' | b' '))
        .filter(|entry| !entry.is_empty())
    {
        if entry.ends_with(b"/libprefault.so") {
            continue;
        }
        let gap = usize::from(used > 0);
        let end = used + gap + entry.len();
        // One byte is left for the NUL. A longer list is left as it is.
        if end >= rest.len() {
            return;
        }
        if let Some(place) = rest.get_mut(used..used + gap) {
            place.fill(b':');
        }
        if let Some(place) = rest.get_mut(used + gap..end) {
            place.copy_from_slice(entry);
        }
        used = end;
    }
    // SAFETY: before main() there is one thread; `rest` ends with a NUL and is copied.
    unsafe {
        if used == 0 {
            libc::unsetenv(PRELOAD.as_ptr());
        } else {
            libc::setenv(PRELOAD.as_ptr(), rest.as_ptr().cast(), 1);
        }
    }
}

fn tell(refusal: Refusal) {
    let line = Line::new();
    let line = match refusal.step {
        Step::Stack => line
            .text(b"the stack may not grow as deep as asked: ")
            .mib(refusal.needed)
            .text(b" of ")
            .mib(refusal.available)
            .text(b"; raise ulimit -s or ask for a smaller --stack"),
        Step::Memory => line
            .text(b"the machine's memory is too small: ")
            .mib(refusal.needed)
            .text(b" would become resident, ")
            .mib(refusal.available)
            .text(b" can be had; ask for a smaller --heap, or use --on-fault"),
        Step::Group => line
            .text(b"the memory limit of the control group is too small: ")
            .mib(refusal.needed)
            .text(b" would become resident, ")
            .mib(refusal.available)
            .text(b" can be had; ask for a smaller --heap, use --on-fault, or raise the group's limit"),
        Step::Account => line
            .text(b"the account has no room below its barrier: ")
            .mib(refusal.needed)
            .text(b" would become resident; see bursar quota, and ask for a smaller --heap, or use --on-fault"),
        Step::Heap => line
            .text(b"malloc does not give ")
            .mib(refusal.needed)
            .text(b"; ask for a smaller --heap"),
        Step::Lock if refusal.errno == libc::EPERM => line.text(
            b"this user may not lock memory at all (RLIMIT_MEMLOCK is 0); raise ulimit -l or give \
              CAP_IPC_LOCK",
        ),
        Step::Lock => line
            .text(b"the program maps ")
            .mib(refusal.needed)
            .text(b" and RLIMIT_MEMLOCK allows ")
            .mib(refusal.available)
            .text(b"; raise ulimit -l or give CAP_IPC_LOCK"),
    };
    line.text(b". Nothing is locked, the program was not started")
        .say();
}

/// See prefault_started() in prefault.h.
pub(crate) fn tell_verifier() -> Result<(), c_int> {
    let named = variable(VERIFIER)
        .and_then(decimal)
        .and_then(|pid| i32::try_from(pid).ok());
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    // Only the parent: a number alone may by now be anybody's.
    match named {
        Some(pid) if pid > 1 && pid == parent => {
            // SAFETY: a signal to our parent, which waits for it.
            match unsafe { libc::kill(pid, libc::SIGUSR1) } {
                0 => Ok(()),
                _ => Err(libc::ESRCH),
            }
        }
        _ => Err(libc::ESRCH),
    }
}
