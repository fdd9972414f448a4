// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a preload library reaches a program: only where a dynamic loader of glibc starts it, with
//! the rights of who calls it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a preload library would not be loaded into a program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It cannot be looked at.
    #[error("{0}; is the name right?")]
    Unreadable(String),
    /// No file, or one that the kernel would not start.
    #[error("it is not a program")]
    NoProgram,
    /// Of another user or group (AT_SECURE, ld.so(8)).
    #[error("it runs with its owner's rights (setuid), and such programs load no library of ours")]
    OthersRights,
    /// AT_SECURE as well.
    #[error("it has capabilities of its own, so the loader ignores LD_PRELOAD")]
    Capabilities,
    /// Another C library.
    #[error("it is linked with musl, and our library with glibc")]
    Musl,
    /// No loader.
    #[error("it is statically linked, so nothing can be loaded before its main()")]
    Static,
    /// Another architecture.
    #[error("it is made for another kind of processor")]
    Foreign,
    /// The kernel may know it, we do not.
    #[error("it is neither an ELF program nor a script with #!")]
    Unknown,
    /// A sanitizer's runtime, which has its own malloc and wants to be the first library (gcc's, clang's).
    #[error(
        "it is built with a sanitizer ({0}), which needs a malloc of its own and all of the address space"
    )]
    Sanitizer(&'static str),
    /// Of scripts.
    #[error("its #! lines lead in a circle")]
    Circle,
}

/// How many `#!` lines are followed, as many as the kernel does (fs/exec.c).
pub const MAX_SCRIPTS: u32 = 5;
/// The part of a file in which its headers are, bytes.
const HEAD: u64 = 64 << 10;

/// The file that `name` starts, as execvp(3) finds it. Where nothing of this name in PATH can be executed, what is there
/// all the same: execvp(3) answers EACCES then, not ENOENT.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    find_in(&path, name)
}

fn find_in(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    let mut unexecutable = None;
    for candidate in env::split_paths(path).map(|folder| folder.join(name)) {
        match candidate.metadata() {
            Ok(file) if file.is_file() && file.mode() & 0o111 != 0 => return Some(candidate),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(_) => continue,
        }
        unexecutable = unexecutable.or(Some(candidate));
    }
    unexecutable
}

/// Checks that a preload library would be loaded into what `program` starts.
///
/// # Errors
/// When it would not: the program that stands in the way (`program`, or who runs it as a script), and why.
pub fn check_preloadable(program: &Path) -> Result<(), (PathBuf, Obstacle)> {
    let mut path = program.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        match look(&path) {
            Ok(None) => return Ok(()),
            Ok(Some(interpreter)) => path = interpreter,
            Err(obstacle) => return Err((path, obstacle)),
        }
    }
    Err((program.to_owned(), Obstacle::Circle))
}

/// Who runs a file, where it is a script that can be read.
pub fn interpreter(program: &Path) -> Option<PathBuf> {
    look(program).ok().flatten()
}

/// Looks at one file: who runs it, if it is a script.
fn look(path: &Path) -> Result<Option<PathBuf>, Obstacle> {
    let unreadable = |error: io::Error| Obstacle::Unreadable(error.to_string());
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Obstacle::NoProgram);
    }
    let has_capabilities =
        rustix::fs::fgetxattr(&file, c"security.capability", &mut [0u8; 64][..]).is_ok();
    let rights = Rights {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        has_capabilities,
    };
    let mut head = Vec::new();
    (&file)
        .take(HEAD)
        .read_to_end(&mut head)
        .map_err(unreadable)?;
    match kind(&head) {
        Kind::Script(interpreter) => Ok(Some(interpreter)),
        Kind::Dynamic(loader) if loader.windows(7).any(|part| part == b"ld-musl") => {
            Err(Obstacle::Musl)
        }
        Kind::Dynamic(_) => {
            use rustix::process::{getgid, getuid};
            let caller = (getuid().as_raw(), getgid().as_raw());
            if let Some(obstacle) = rights.gained_by(caller) {
                return Err(obstacle);
            }
            let sanitizer = dynamic_strings(&file, &head).and_then(|names| sanitizer_of(&names));
            sanitizer.map_or(Ok(None), |name| Err(Obstacle::Sanitizer(name)))
        }
        Kind::Static => Err(Obstacle::Static),
        Kind::Foreign => Err(Obstacle::Foreign),
        Kind::Unknown => Err(Obstacle::Unknown),
    }
}

/// What a program's file gives to who runs it.
#[derive(Debug, Clone, Copy)]
struct Rights {
    mode: u32,
    owner: (u32, u32),
    has_capabilities: bool,
}

impl Rights {
    /// What makes the kernel say AT_SECURE (security/commoncap.c, cap_bprm_creds_from_file), after which
    /// ld.so loads nothing of the caller's: another user or group, or capabilities, which root has anyway.
    fn gained_by(self, (uid, gid): (u32, u32)) -> Option<Obstacle> {
        const SETUID: u32 = 0o4000;
        // Without the group's x it is no set-gid program (fs/exec.c, bprm_fill_uid).
        const SETGID: u32 = 0o2010;
        let is_user_changed = self.mode & SETUID == SETUID && self.owner.0 != uid;
        let is_group_changed = self.mode & SETGID == SETGID && self.owner.1 != gid;
        if is_user_changed || is_group_changed {
            Some(Obstacle::OthersRights)
        } else {
            (self.has_capabilities && uid != 0).then_some(Obstacle::Capabilities)
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Script(PathBuf),
    Dynamic(Vec<u8>),
    Static,
    Foreign,
    Unknown,
}

fn kind(head: &[u8]) -> Kind {
    if let Some(rest) = head.strip_prefix(b"#!") {
        let line = rest.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let Some(interpreter) = words.next() else {
            return Kind::Unknown;
        };
        let path = PathBuf::from(OsString::from_vec(interpreter.to_vec()));
        // env(1) starts what it is told to; itself it is dynamic nearly everywhere.
        if path.file_name() == Some(OsStr::new("env"))
            && let Some(name) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
            && let Some(found) = find(OsStr::from_bytes(name))
        {
            return Kind::Script(found);
        }
        return Kind::Script(path);
    }
    if !head.starts_with(b"\x7fELF") {
        return Kind::Unknown;
    }
    // elf(5): class 64-bit, little-endian, e_machine of our own.
    const MACHINE: u64 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    if head.get(4) != Some(&2) || head.get(5) != Some(&1) || number(head, 18, 2) != Some(MACHINE) {
        return Kind::Foreign;
    }
    let (Some(offset), Some(size), Some(count)) = (
        number(head, 32, 8),
        number(head, 54, 2),
        number(head, 56, 2),
    ) else {
        return Kind::Unknown;
    };
    for index in 0..count {
        let Some(header) = part(head, offset, index, size, PROGRAM_HEADER) else {
            return Kind::Unknown;
        };
        const PT_INTERP: u64 = 3;
        if number(header, 0, 4) == Some(PT_INTERP) {
            let at =
                usize::try_from(number(header, 8, 8).unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            let length = usize::try_from(number(header, 32, 8).unwrap_or(0)).unwrap_or(0);
            let name = head.get(at..at.saturating_add(length)).unwrap_or_default();
            return Kind::Dynamic(name.to_vec());
        }
    }
    Kind::Static
}

/// Sizes of ELF's structures of 64 bits: a program header, an entry of the dynamic section.
const PROGRAM_HEADER: usize = 56;
const DYNAMIC_ENTRY: usize = 16;

/// One of the structures that lie one behind the other from `offset` on.
fn part(bytes: &[u8], offset: u64, index: u64, size: u64, least: usize) -> Option<&[u8]> {
    let at = usize::try_from(offset.saturating_add(index.saturating_mul(size))).ok()?;
    bytes.get(at..).filter(|part| part.len() >= least)
}

/// The strings of a program's dynamic section (elf(5), DT_STRTAB): the libraries it needs, the functions it
/// takes from others and those it offers.
fn dynamic_strings(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    const PT_LOAD: u64 = 1;
    const PT_DYNAMIC: u64 = 2;
    const DT_STRTAB: u64 = 5;
    const DT_STRSZ: u64 = 10;
    let headers = || {
        let (offset, size) = (number(head, 32, 8)?, number(head, 54, 2)?);
        let count = number(head, 56, 2)?;
        Some((0..count).filter_map(move |index| part(head, offset, index, size, PROGRAM_HEADER)))
    };
    let is = |header: &[u8], kind| number(header, 0, 4) == Some(kind);
    let dynamic = headers()?.find(|header| is(header, PT_DYNAMIC))?;
    let section = read_at(file, number(dynamic, 8, 8)?, number(dynamic, 32, 8)?)?;
    let value = |tag| {
        let entry = section
            .chunks_exact(DYNAMIC_ENTRY)
            .find(|entry| number(entry, 0, 8) == Some(tag))?;
        number(entry, 8, 8)
    };
    let (address, size) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    // An address in memory: where in the file, says the segment that it lies in.
    let at = headers()?
        .filter(|header| is(header, PT_LOAD))
        .find_map(|header| {
            let (offset, start) = (number(header, 8, 8)?, number(header, 16, 8)?);
            let inside = address.checked_sub(start)?;
            (inside < number(header, 32, 8)?).then(|| offset.checked_add(inside))?
        })?;
    read_at(file, at, size)
}

/// Part of a file, as far as that is of a bearable size.
fn read_at(file: &File, at: u64, size: u64) -> Option<Vec<u8>> {
    const MOST: u64 = 64 << 20;
    let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= MOST)?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The sanitizer whose runtime is among these names: a library of gcc's, or in the program (clang).
fn sanitizer_of(names: &[u8]) -> Option<&'static str> {
    const SANITIZERS: [(&str, &[u8], &[u8]); 5] = [
        ("AddressSanitizer", b"libasan.so", b"__asan_init"),
        ("LeakSanitizer", b"liblsan.so", b"__lsan_init"),
        ("ThreadSanitizer", b"libtsan.so", b"__tsan_init"),
        ("MemorySanitizer", b"libmsan.so", b"__msan_init"),
        ("HWAddressSanitizer", b"libhwasan.so", b"__hwasan_init"),
    ];
    let mut known = names.split(|&byte| byte == 0);
    known.find_map(|name| {
        let found = SANITIZERS
            .iter()
            .find(|(_, library, start)| name.starts_with(library) || name == *start);
        found.map(|(sanitizer, ..)| *sanitizer)
    })
}

/// A little-endian number of `length` bytes.
pub(crate) fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(
        part.iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte)),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scripts_name_who_runs_them() {
        assert_eq!(kind(b"#!/bin/sh\necho"), Kind::Script("/bin/sh".into()));
        assert_eq!(
            kind(b"#! /usr/bin/perl -w\n"),
            Kind::Script("/usr/bin/perl".into())
        );
        let Kind::Script(path) = kind(b"#!/usr/bin/env -S X=1 sh\n") else {
            panic!()
        };
        assert_eq!(path.file_name(), Some(OsStr::new("sh")));
        assert_eq!(kind(b"#!\n"), Kind::Unknown);
        assert_eq!(kind(b"hello"), Kind::Unknown);
    }

    #[test]
    fn a_file_that_cannot_be_executed_is_found_after_those_that_can() {
        let folder = tempfile::tempdir().unwrap();
        let [plain, program, folder_of_that_name] =
            ["a", "b", "c"].map(|it| folder.path().join(it));
        for folder in [&plain, &program] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("tool"), "#!/bin/sh\n").unwrap();
        }
        std::fs::create_dir_all(folder_of_that_name.join("tool")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program.join("tool"), mode).unwrap();
        let found = |folders: &[&Path]| {
            let path = env::join_paths(folders).unwrap();
            find_in(&path, OsStr::new("tool"))
        };
        let missing = folder.path().join("missing");
        let table: [(&[&Path], Option<&Path>); 4] = [
            (&[&plain, &program], Some(&program)),
            (&[&missing, &plain, &folder_of_that_name], Some(&plain)),
            (&[&folder_of_that_name], Some(&folder_of_that_name)),
            (&[&missing], None),
        ];
        for (folders, expected) in table {
            let expected = expected.map(|it| it.join("tool"));
            assert_eq!(found(folders), expected, "{folders:?}");
        }
    }

    #[test]
    fn our_own_program_is_dynamic() {
        check_preloadable(Path::new("/proc/self/exe")).unwrap();
    }

    #[test]
    fn sanitizers_are_told_by_their_library_or_their_start() {
        let own = File::open("/proc/self/exe").unwrap();
        let mut head = Vec::new();
        (&own).take(HEAD).read_to_end(&mut head).unwrap();
        let names = dynamic_strings(&own, &head).unwrap();
        let has_libc = names
            .split(|&byte| byte == 0)
            .any(|name| name == b"libc.so.6");
        assert!(has_libc);
        assert_eq!(sanitizer_of(&names), None);
        let table = [
            (
                &b"\0libasan.so.8\0libc.so.6\0"[..],
                Some("AddressSanitizer"),
            ),
            (b"\0libc.so.6\0__tsan_init\0", Some("ThreadSanitizer")),
            (b"\0liblsan.so.0\0", Some("LeakSanitizer")),
            (b"\0libubsan.so.1\0__ubsan_handle_add_overflow\0", None),
            (b"", None),
        ];
        for (names, expected) in table {
            assert_eq!(sanitizer_of(names), expected);
        }
    }

    #[test]
    fn what_cannot_be_preloaded_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"#!/nonexistent\n").unwrap();
        let (program, obstacle) = check_preloadable(&path).unwrap_err();
        assert_eq!(program, Path::new("/nonexistent"));
        assert!(matches!(obstacle, Obstacle::Unreadable(_)));
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert_eq!(check_preloadable(&path), Err((path, Obstacle::Circle)));
        assert_eq!(
            check_preloadable(folder.path()),
            Err((folder.path().to_owned(), Obstacle::NoProgram))
        );
    }

    #[test]
    fn rights_are_gained_by_whom_they_change() {
        let (root, alice) = ((0, 0), (60001, 60001));
        let others = Some(Obstacle::OthersRights);
        let table = [
            (0o755, root, false, alice, None),
            (0o4755, root, false, alice, others),
            (0o4755, root, false, root, None),
            (0o4755, alice, false, root, Some(Obstacle::OthersRights)),
            (0o2755, root, false, alice, Some(Obstacle::OthersRights)),
            (0o2745, root, false, alice, None),
            (0o755, root, true, alice, Some(Obstacle::Capabilities)),
            (0o755, root, true, root, None),
        ];
        for (mode, owner, has_capabilities, caller, expected) in table {
            let rights = Rights {
                mode,
                owner,
                has_capabilities,
            };
            assert_eq!(rights.gained_by(caller), expected, "{rights:?} {caller:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = kind(&bytes);
            let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
            elf.extend(tail);
            let _ = kind(&elf);
            let _ = dynamic_strings(&File::open("/dev/null").unwrap(), &elf);
        }
    }
}
