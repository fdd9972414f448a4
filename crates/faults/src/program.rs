// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a preload library reaches a program: only where a dynamic loader of glibc starts it, with
//! the rights of who calls it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// How many `#!` lines are followed, as many as the kernel does (fs/exec.c).
const MAX_SCRIPTS: u32 = 5;
/// The part of a file in which its headers are, bytes.
const HEAD: u64 = 64 << 10;

/// The file that `name` starts, as execvp(3) finds it.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let is_program = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
    };
    env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(is_program)
}

/// Checks that a preload library would be loaded into what `program` starts.
///
/// # Errors
/// When it would not: a static program, one with other rights, of another loader or architecture.
pub fn check_preloadable(program: &Path) -> Result<(), Error> {
    let mut path = program.to_owned();
    for _ in 0..=MAX_SCRIPTS {
        let unsuitable = |reason: &str| Error::Unsuitable {
            program: path.clone(),
            reason: reason.to_owned(),
        };
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(|error| unsuitable(&format!("{error}; is the name right?")))?;
        let metadata = file
            .metadata()
            .map_err(Error::io(format!("look at {path:?}")))?;
        if !metadata.is_file() {
            return Err(unsuitable("it is no program"));
        }
        if metadata.mode() & 0o6000 != 0 {
            return Err(unsuitable(
                "it runs with its owner's rights (setuid), and such programs load no library of ours; \
                 let it lock itself with prefault.h",
            ));
        }
        let mut head = Vec::new();
        file.take(HEAD)
            .read_to_end(&mut head)
            .map_err(Error::io(format!("read {path:?}")))?;
        match kind(&head) {
            Kind::Script(interpreter) => path = interpreter,
            Kind::Dynamic(loader) if loader.windows(7).any(|part| part == b"ld-musl") => {
                return Err(unsuitable(
                    "it is linked with musl, and libprefault.so with glibc; let it lock itself with \
                     prefault.h and libprefault.a",
                ));
            }
            Kind::Dynamic(_) => return Ok(()),
            Kind::Static => {
                return Err(unsuitable(
                    "it is statically linked, so nothing can be loaded before its main(); let it lock \
                     itself with prefault.h and libprefault.a",
                ));
            }
            Kind::Foreign => {
                return Err(unsuitable("it is made for another kind of processor"));
            }
            Kind::Unknown => {
                return Err(unsuitable(
                    "it is neither an ELF program nor a script with #!",
                ));
            }
        }
    }
    Err(Error::Unsuitable {
        program: program.to_owned(),
        reason: "its #! lines lead in a circle".to_owned(),
    })
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
        let at = usize::try_from(offset.saturating_add(index.saturating_mul(size)))
            .unwrap_or(usize::MAX);
        let Some(header) = head.get(at..).filter(|header| header.len() >= 56) else {
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
    fn our_own_program_is_dynamic() {
        check_preloadable(Path::new("/proc/self/exe")).unwrap();
    }

    #[test]
    fn what_cannot_be_preloaded_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"#!/nonexistent\n").unwrap();
        assert!(
            check_preloadable(&path)
                .unwrap_err()
                .to_string()
                .contains("/nonexistent")
        );
        std::fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert!(
            check_preloadable(&path)
                .unwrap_err()
                .to_string()
                .contains("circle")
        );
        assert!(
            check_preloadable(folder.path())
                .unwrap_err()
                .to_string()
                .contains("no program")
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, tail: Vec<u8>) {
            let _ = kind(&bytes);
            let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
            elf.extend(tail);
            let _ = kind(&elf);
        }
    }
}
