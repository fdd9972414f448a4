// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Before main(): what `bursar run --lock` asked for in the environment.
//!
//! BURSAR_PREFAULT is `heap=BYTES,stack=BYTES,flags=NUMBER,children=0|1`. Unless children are to be
//! locked as well it and our place in LD_PRELOAD are taken out of the environment again: a control loop
//! that starts a shell does not want the shell locked.

use std::ffi::{CStr, c_char, c_int};
use std::slice;

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
        remove(REQUEST);
        leave_preload();
    }
    if let Err(refusal) = act::lock(&options) {
        tell(refusal);
        // Nothing is left locked: the lock is the process's.
        // SAFETY: ends the process.
        unsafe { libc::_exit(CANNOT) };
    }
}

unsafe extern "C" {
    /// environ(7).
    static mut environ: *mut *mut c_char;
}

/// Where the first entry of this name is in the environment, and its value. Not by getenv(3) and its like: a program's
/// own functions of these names come first, and those of bash know nothing of the environment before its main().
fn entry(name: &CStr) -> Option<(*mut *mut c_char, *mut c_char)> {
    let name = name.to_bytes();
    // SAFETY: before main(), and in the functions of prefault.h as far as nobody changes the
    // environment meanwhile, which getenv(3) demands of everybody.
    let mut place = unsafe { environ };
    while !place.is_null() {
        // SAFETY: the environment ends with a NULL, which was not seen yet.
        let text = unsafe { *place };
        if text.is_null() {
            return None;
        }
        // SAFETY: its entries are strings.
        let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
        if bytes
            .strip_prefix(name)
            .is_some_and(|it| it.starts_with(b"="))
        {
            // SAFETY: it has the name and a `=`.
            let value = unsafe { text.add(name.len() + 1) };
            return Some((place, value));
        }
        // SAFETY: this was not the NULL.
        place = unsafe { place.add(1) };
    }
    None
}

/// Takes all entries of this name out of the environment.
fn remove(name: &CStr) {
    while let Some((mut place, _)) = entry(name) {
        loop {
            // SAFETY: `place` is not that of the NULL at the end; before main() there is one thread.
            let next = unsafe { *place.add(1) };
            // SAFETY: as above.
            unsafe { *place = next };
            if next.is_null() {
                break;
            }
            // SAFETY: as above.
            place = unsafe { place.add(1) };
        }
    }
}

fn variable(name: &CStr) -> Option<&'static [u8]> {
    let (_, value) = entry(name)?;
    // SAFETY: it ends with a NUL, and stays as long as its entry, as in [`entry`].
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_bytes())
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
    (!options.is_contradictory()).then_some((options, locks_children))
}

/// Takes libprefault.so out of LD_PRELOAD, and LD_PRELOAD away with its last entry.
fn leave_preload() {
    let Some((_, value)) = entry(PRELOAD) else {
        return;
    };
    // SAFETY: it ends with a NUL.
    let length = unsafe { CStr::from_ptr(value) }.to_bytes().len();
    // SAFETY: so long it is; before main() there is one thread, and nobody else has it.
    let list = unsafe { slice::from_raw_parts_mut(value.cast::<u8>(), length) };
    match leave(list) {
        0 => remove(PRELOAD),
        length => {
            // SAFETY: at most where its NUL is.
            let end = unsafe { value.add(length) };
            // SAFETY: as above.
            unsafe { end.write(0) };
        }
    }
}

/// Moves what is not ours of a list in LD_PRELOAD to its front; how long that is.
fn leave(list: &mut [u8]) -> usize {
    let (mut used, mut at) = (0, 0);
    while let Some(rest) = list.get(at..).filter(|rest| !rest.is_empty()) {
        let length = rest.iter().position(|byte| matches!(byte, b':' | b' '));
        let entry = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
        let (end, is_kept) = (
            at + entry.len(),
            !entry.is_empty() && !entry.ends_with(b"/libprefault.so"),
        );
        if is_kept {
            // The entries before were followed by a separator, too.
            if let Some(gap) = list.get_mut(used).filter(|_| used > 0) {
                *gap = b':';
                used += 1;
            }
            list.copy_within(at..end, used);
            used += end - at;
        }
        at = end + 1;
    }
    used
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

#[cfg(test)]
mod tests {
    use super::{leave, parse};

    #[test]
    fn a_heap_that_malloc_would_not_keep_is_no_request() {
        assert!(parse(b"heap=1,stack=2,flags=1,children=0").is_some());
        assert!(parse(b"heap=0,stack=2,flags=2,children=0").is_some());
        assert!(parse(b"heap=1,stack=2,flags=2,children=0").is_none());
    }

    #[test]
    fn only_our_own_library_leaves_the_list() {
        for (list, left) in [
            ("/usr/lib/bursar/libprefault.so", ""),
            ("/a/libprefault.so:/b.so", "/b.so"),
            ("/b.so:/a/libprefault.so", "/b.so"),
            ("::/b.so /c.so:/a/libprefault.so: ", "/b.so:/c.so"),
            ("/a/libprefault.so /a/libprefault.so:d.so", "d.so"),
            ("/b.so:/c.so", "/b.so:/c.so"),
            ("", ""),
        ] {
            let mut bytes = list.as_bytes().to_vec();
            let length = leave(&mut bytes);
            assert_eq!(bytes.get(..length).unwrap(), left.as_bytes(), "{list}");
        }
    }
}
