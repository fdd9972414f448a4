// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the process and the machine have, read without allocating: malloc must be as the program will
//! find it.

use std::ffi::{CStr, c_int};

pub(crate) fn page_bytes() -> usize {
    // SAFETY: no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// (minor, major) of the process so far.
pub(crate) fn faults() -> (u64, u64) {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    (count(usage.ru_minflt), count(usage.ru_majflt))
}

/// RLIMIT_MEMLOCK, bytes.
pub(crate) fn memlock_limit() -> u64 {
    limit(libc::RLIMIT_MEMLOCK)
}

fn limit(which: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a pointer to a live local.
    unsafe { libc::getrlimit(which, &mut limit) };
    limit.rlim_cur
}

/// Whether RLIMIT_MEMLOCK does not bind: it is unlimited, or we have CAP_IPC_LOCK.
pub(crate) fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u64 = 14;
    memlock_limit() == libc::RLIM_INFINITY
        || number(c"/proc/self/status", b"CapEff:", 16)
            .is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// What the machine can still give, bytes. Some kernels say more than there is.
pub(crate) fn available_bytes() -> Option<u64> {
    let of = |key| Some(number(c"/proc/meminfo", key, 10)? << 10);
    let available = of(b"MemAvailable:")?;
    Some(of(b"MemTotal:").map_or(available, |total| available.min(total)))
}

/// All that is mapped, bytes.
pub(crate) fn mapped_bytes() -> u64 {
    number(c"/proc/self/status", b"VmSize:", 10).unwrap_or(0) << 10
}

/// All that is locked, bytes.
pub(crate) fn locked_bytes() -> u64 {
    number(c"/proc/self/status", b"VmLck:", 10).unwrap_or(0) << 10
}

/// What is mapped and not resident, bytes: mlockall will make it resident. And what of it is private and writable: the
/// process's own memory.
pub(crate) fn unresident_bytes() -> (u64, u64) {
    unresident_in(c"/proc/self/status")
}

fn unresident_in(status: &CStr) -> (u64, u64) {
    let of = |key| number(status, key, 10).unwrap_or(0) << 10;
    let own = of(b"VmData:").saturating_add(of(b"VmStk:"));
    (
        of(b"VmSize:").saturating_sub(of(b"VmRSS:")),
        own.saturating_sub(of(b"RssAnon:")),
    )
}

/// The lowest address that this thread's stack may reach, and the stack's size, bytes.
pub(crate) fn stack_floor() -> Option<(usize, usize)> {
    // SAFETY: plain data that the calls below fill.
    let mut attributes: libc::pthread_attr_t = unsafe { std::mem::zeroed() };
    let mut lowest = std::ptr::null_mut();
    let mut size = 0;
    // SAFETY: pointers to live locals; destroyed when and only when it was filled.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let got = libc::pthread_attr_getstack(&attributes, &mut lowest, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        if got != 0 {
            return None;
        }
    }
    Some((lowest.addr(), size))
}

/// The number behind `key` at the start of a line of a file.
pub(crate) fn number(path: &CStr, key: &[u8], radix: u32) -> Option<u64> {
    let mut found = None;
    each_line(path, |line| {
        if found.is_none()
            && let Some(rest) = line.strip_prefix(key)
        {
            found = number_in(rest, radix);
        }
    });
    found
}

/// The number that a text begins with, behind blanks; `None` where it begins with none.
fn number_in(text: &[u8], radix: u32) -> Option<u64> {
    let digits = text
        .trim_ascii()
        .split(|byte| !byte.is_ascii_hexdigit())
        .next()
        .filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = (digit as char).to_digit(radix)?;
        value
            .checked_mul(u64::from(radix))?
            .checked_add(u64::from(digit))
    })
}

/// Acts on each line of a file, of very long ones on their heads only.
pub(crate) fn each_line(path: &CStr, mut act: impl FnMut(&[u8])) {
    let mut bytes = [0u8; 8 << 10];
    let mut used = 0;
    // SAFETY: a C string; the descriptor is closed below and used in between only.
    let fd: c_int = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    let mut is_tail = false;
    while let Some(rest) = bytes.get_mut(used..) {
        // SAFETY: `rest` is live memory of that length.
        let got = unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) };
        let Ok(more @ 1..) = usize::try_from(got) else {
            break;
        };
        used += more;
        let known = bytes.get(..used).unwrap_or_default();
        let mut begin = 0;
        for (at, _) in known.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            if !is_tail {
                act(known.get(begin..at).unwrap_or_default());
            }
            is_tail = false;
            begin = at + 1;
        }
        if begin == 0 && used == bytes.len() {
            if !is_tail {
                act(&bytes);
            }
            is_tail = true;
            begin = used;
        }
        bytes.copy_within(begin..used, 0);
        used -= begin;
    }
    if used > 0 && !is_tail {
        act(bytes.get(..used).unwrap_or_default());
    }
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    /// Shows `act` a file with this text.
    fn with_file<T>(text: &[u8], act: impl FnOnce(&CStr) -> T) -> T {
        let name = format!("prefault-{}-{}", std::process::id(), text.len());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let done = act(&name);
        std::fs::remove_file(&path).unwrap();
        done
    }

    fn lines_of(text: &[u8]) -> Vec<Vec<u8>> {
        with_file(text, |path| {
            let mut lines = Vec::new();
            each_line(path, |line| lines.push(line.to_vec()));
            lines
        })
    }

    #[test]
    fn pages_of_files_are_nobodys_own_memory() {
        let status = |own: u64, anonymous: u64| {
            format!(
                "VmSize:\t  900 kB\nVmRSS:\t  300 kB\nRssAnon:\t {anonymous} kB\nVmData:\t {own} kB\n\
                 VmStk:\t 132 kB\nVmLib:\t 600 kB\n"
            )
        };
        for (own, anonymous, expected) in [(100, 32, 200), (0, 200, 0)] {
            let found = with_file(status(own, anonymous).as_bytes(), unresident_in);
            assert_eq!(found, (600 << 10, expected << 10));
        }
    }

    #[test]
    fn lines_are_whole_however_long_the_file_is() {
        assert_eq!(lines_of(b"a\n\nb"), [&b"a"[..], b"", b"b"]);
        let text: Vec<u8> = (0..5000)
            .flat_map(|at| format!("line {at}\n").into_bytes())
            .collect();
        let lines = lines_of(&text);
        assert_eq!(lines.len(), 5000);
        assert_eq!(lines[4999], b"line 4999");
        let mut long = vec![b'x'; 20_000];
        long.extend(b"\nnext\n");
        let lines = lines_of(&long);
        assert_eq!((lines.len(), lines[0].len()), (2, 8 << 10));
        assert_eq!(lines[1], b"next");
    }

    #[test]
    fn a_text_without_a_number_has_none() {
        assert_eq!(number_in(b"   12 kB", 10), Some(12));
        assert_eq!(number_in(b"max", 10), None);
        assert_eq!(number_in(b"", 10), None);
        assert_eq!(number_in(b"000001ffffffffff", 16), Some(0x1ff_ffff_ffff));
    }
}
