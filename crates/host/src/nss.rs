// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C library's questions about users and groups (nsswitch.conf(5)), and whether they were answered.
//!
//! Safe libraries answer `None` both for "nobody has that name" and for "the directory server is
//! down". glibc tells them apart: 0 without a result when all sources were asked and none knew it,
//! else the error of a source (nss/getXXbyYY_r.c). A source that nsswitch.conf names and that is not
//! installed counts as asked.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use bursar_model::{Gid, Uid};
use rustix::io::Errno;

/// What came of asking for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup<T> {
    /// This one.
    Found(T),
    /// All sources of names were asked, and none knows it.
    Absent,
    /// A source could not be asked (it is down, out of memory or descriptors): nobody knows.
    Unavailable(Errno),
}

/// A user. Names are as the source of names spells them; what is no UTF-8 in them is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The number.
    pub uid: Uid,
    /// The primary group.
    pub gid: Gid,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The number.
    pub gid: Gid,
    /// The names of those listed in it; whose primary group it is need not be.
    pub members: Vec<String>,
}

impl<T> Lookup<T> {
    /// The one found, if any.
    pub fn found(self) -> Option<T> {
        match self {
            Self::Found(value) => Some(value),
            Self::Absent | Self::Unavailable(_) => None,
        }
    }

    /// The same with another thing found.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Found(value) => Lookup::Found(change(value)),
            Self::Absent => Lookup::Absent,
            Self::Unavailable(errno) => Lookup::Unavailable(errno),
        }
    }
}

/// An answer needs no more, bytes: a group with a million members.
const MAX_BUFFER: usize = 64 << 20;

/// Asks with a buffer that grows as the answer wants it. `ask` is given the buffer and returns what the
/// C function returned and, if there was one, the answer.
fn asked<T>(mut ask: impl FnMut(&mut [c_char]) -> (c_int, Option<T>)) -> Lookup<T> {
    let mut buffer: Vec<c_char> = vec![0; 1024];
    loop {
        match ask(&mut buffer) {
            (_, Some(answer)) => return Lookup::Found(answer),
            (0, None) => return Lookup::Absent,
            (libc::EINTR, None) => {}
            (libc::ERANGE, None) if buffer.len() < MAX_BUFFER => {
                buffer = vec![0; buffer.len().saturating_mul(2)];
            }
            (code, None) => return Lookup::Unavailable(Errno::from_raw_os_error(code)),
        }
    }
}

/// The users that /etc/passwd itself has; none where it cannot be read.
pub fn names_in_passwd() -> BTreeSet<String> {
    let text = fs::read("/etc/passwd").unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let names = lines.filter_map(|line| line.split(|byte| *byte == b':').next());
    names
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

/// The user with this name.
pub(crate) fn user_by_name(name: &str) -> Lookup<User> {
    // No source of names knows one with a NUL in it.
    let Ok(name) = CString::new(name) else {
        return Lookup::Absent;
    };
    asked(|buffer| {
        let mut record = empty_passwd();
        let mut found = ptr::null_mut();
        // SAFETY: `name` ends with a NUL; record, buffer with its length and found are ours alone and
        // outlive the call.
        let code = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                &mut record,
                buffer.as_mut_ptr(),
                buffer.len(),
                &mut found,
            )
        };
        (code, (!found.is_null()).then(|| user_of(&record)))
    })
}

/// The user with this number.
pub(crate) fn user_by_uid(uid: Uid) -> Lookup<User> {
    asked(|buffer| {
        let mut record = empty_passwd();
        let mut found = ptr::null_mut();
        // SAFETY: record, buffer with its length and found are ours alone and outlive the call.
        let code = unsafe {
            libc::getpwuid_r(
                uid.get(),
                &mut record,
                buffer.as_mut_ptr(),
                buffer.len(),
                &mut found,
            )
        };
        (code, (!found.is_null()).then(|| user_of(&record)))
    })
}

/// The group with this name.
pub(crate) fn group_by_name(name: &str) -> Lookup<Group> {
    let Ok(name) = CString::new(name) else {
        return Lookup::Absent;
    };
    asked(|buffer| {
        let mut record = empty_group();
        let mut found = ptr::null_mut();
        // SAFETY: `name` ends with a NUL; record, buffer with its length and found are ours alone and
        // outlive the call.
        let code = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                &mut record,
                buffer.as_mut_ptr(),
                buffer.len(),
                &mut found,
            )
        };
        (code, (!found.is_null()).then(|| group_of(&record)))
    })
}

/// The group with this number.
pub(crate) fn group_by_gid(gid: Gid) -> Lookup<Group> {
    asked(|buffer| {
        let mut record = empty_group();
        let mut found = ptr::null_mut();
        // SAFETY: record, buffer with its length and found are ours alone and outlive the call.
        let code = unsafe {
            libc::getgrgid_r(
                gid.get(),
                &mut record,
                buffer.as_mut_ptr(),
                buffer.len(),
                &mut found,
            )
        };
        (code, (!found.is_null()).then(|| group_of(&record)))
    })
}

/// Shows every user that the sources of names are willing to list to `visit` (large directories often
/// list nobody) until it answers false.
///
/// # Errors
/// When a source fails. Those seen before were seen.
pub(crate) fn each_user(mut visit: impl FnMut(&User) -> bool) -> Result<(), Errno> {
    // The position in the list is the process's, not the thread's, and a thread may have it for as long as a directory
    // takes to list everybody.
    static POSITION: Mutex<()> = Mutex::new(());
    let _position = POSITION.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes nothing; the lock keeps others of ours from moving the position.
    unsafe { libc::setpwent() };
    let done = loop {
        let next = asked(|buffer| {
            let mut record = empty_passwd();
            let mut found = ptr::null_mut();
            // SAFETY: record, buffer with its length and found are ours alone and outlive the call.
            let code = unsafe {
                libc::getpwent_r(&mut record, buffer.as_mut_ptr(), buffer.len(), &mut found)
            };
            (code, (!found.is_null()).then(|| user_of(&record)))
        });
        match next {
            Lookup::Found(user) if visit(&user) => {}
            // ENOENT is how the list ends.
            Lookup::Found(_) | Lookup::Absent | Lookup::Unavailable(Errno::NOENT) => break Ok(()),
            Lookup::Unavailable(errno) => break Err(errno),
        }
    };
    // SAFETY: takes nothing.
    unsafe { libc::endpwent() };
    done
}

fn empty_group() -> libc::group {
    libc::group {
        gr_name: ptr::null_mut(),
        gr_passwd: ptr::null_mut(),
        gr_gid: 0,
        gr_mem: ptr::null_mut(),
    }
}

fn empty_passwd() -> libc::passwd {
    libc::passwd {
        pw_name: ptr::null_mut(),
        pw_passwd: ptr::null_mut(),
        pw_uid: 0,
        pw_gid: 0,
        pw_gecos: ptr::null_mut(),
        pw_dir: ptr::null_mut(),
        pw_shell: ptr::null_mut(),
    }
}

/// For records that the C library has just filled, while their buffer lives.
fn user_of(record: &libc::passwd) -> User {
    User {
        name: text_of(record.pw_name),
        uid: Uid::new(record.pw_uid),
        gid: Gid::new(record.pw_gid),
    }
}

/// For records that the C library has just filled, while their buffer lives.
fn group_of(record: &libc::group) -> Group {
    let mut members = Vec::new();
    let mut next = record.gr_mem;
    while !next.is_null() {
        // SAFETY: `next` points into the list of pointers that the C library put into the buffer; it
        // ends with a null pointer, at which we stop.
        let member = unsafe { *next };
        if member.is_null() {
            break;
        }
        members.push(text_of(member));
        // SAFETY: this was not the list's end, so there is one more.
        next = unsafe { next.add(1) };
    }
    Group {
        name: text_of(record.gr_name),
        gid: Gid::new(record.gr_gid),
        members,
    }
}

/// For texts of records that the C library has just filled, while their buffer lives.
fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the C library put a text that ends with a NUL into the buffer, which the caller still
    // holds.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_too_small_grows_until_the_answer_fits() {
        let answer = asked(|buffer| {
            if buffer.len() < 100_000 {
                (libc::ERANGE, None)
            } else {
                (0, Some(buffer.len()))
            }
        });
        assert_eq!(answer, Lookup::Found(131_072));
    }

    #[test]
    fn an_answer_that_never_fits_does_not_eat_the_memory() {
        let mut largest = 0;
        let answer: Lookup<()> = asked(|buffer| {
            largest = buffer.len();
            (libc::ERANGE, None)
        });
        assert_eq!(
            (answer, largest),
            (Lookup::Unavailable(Errno::RANGE), MAX_BUFFER)
        );
    }

    #[test]
    fn a_line_of_passwd_begins_with_a_name() {
        let names = names_in_passwd();
        assert!(names.contains("root") && !names.contains(""));
        assert!(names.iter().all(|it| !it.contains([':', '\n'])));
    }

    #[test]
    fn nobody_is_told_apart_from_no_answer() {
        assert_eq!(asked::<()>(|_| (0, None)), Lookup::Absent);
        for code in [libc::EIO, libc::ENOENT, libc::ECONNREFUSED, libc::EMFILE] {
            let errno = Errno::from_raw_os_error(code);
            assert_eq!(asked::<()>(|_| (code, None)), Lookup::Unavailable(errno));
        }
        let mut interrupted = false;
        let answer = asked(|_| {
            if std::mem::replace(&mut interrupted, true) {
                (0, Some(1))
            } else {
                (libc::EINTR, None)
            }
        });
        assert_eq!(answer, Lookup::Found(1));
    }
}
