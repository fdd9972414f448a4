// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a preload library reaches a program: only where a dynamic loader of glibc starts it, with
//! the rights of who calls it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::elf::{self, Kind};

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
/// The part of a file in which a `#!` line and the header of an ELF file are, bytes.
const HEAD: u64 = 4 << 10;

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
    if head.starts_with(b"#!") {
        return interpreter_of(&head).map(Some).ok_or(Obstacle::Unknown);
    }
    match elf::kind(&file, &head) {
        Kind::Dynamic(loader) if loader.windows(7).any(|part| part == b"ld-musl") => {
            Err(Obstacle::Musl)
        }
        Kind::Dynamic(_) => {
            use rustix::process::{getgid, getuid};
            let caller = (getuid().as_raw(), getgid().as_raw());
            if let Some(obstacle) = rights.gained_by(caller) {
                return Err(obstacle);
            }
            let names = elf::dynamic_strings(&file, &head);
            let sanitizer = names.and_then(|names| elf::sanitizer_of(&names));
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

/// Who runs a script, by its first line; `None` where that names nobody.
fn interpreter_of(script: &[u8]) -> Option<PathBuf> {
    let line = script.strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty());
    let path = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    // env(1) starts what it is told to; itself it is dynamic nearly everywhere.
    if path.file_name() == Some(OsStr::new("env"))
        && let Some(name) = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))
        && let Some(found) = find(OsStr::from_bytes(name))
    {
        return Some(found);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scripts_name_who_runs_them() {
        let named = |head: &[u8]| interpreter_of(head);
        assert_eq!(named(b"#!/bin/sh\necho"), Some("/bin/sh".into()));
        assert_eq!(
            named(b"#! /usr/bin/perl -w\n"),
            Some("/usr/bin/perl".into())
        );
        let path = named(b"#!/usr/bin/env -S X=1 sh\n").unwrap();
        assert_eq!(path.file_name(), Some(OsStr::new("sh")));
        assert_eq!(named(b"#!\n"), None);
        assert_eq!(named(b"hello"), None);
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
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut script = b"#!".to_vec();
            script.extend(bytes);
            let _ = interpreter_of(&script);
        }
    }
}
