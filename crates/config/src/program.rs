// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that are to be spared, as files: whether users could have another one taken for them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bursar_model::printable;

use crate::ConfigError;
use crate::finding::Wrong;
use crate::trust::trusted_program;

/// At most so many programs can be spared.
pub const MAX_SPARED: usize = 64;

/// What runs whatever its users write, by the name of its file without a version. Shells do too, but whoever loses
/// his shell is logged out.
const INTERPRETERS: [&str; 28] = [
    "awk",
    "busybox",
    "erl",
    "gawk",
    "gdb",
    "gjs",
    "guile",
    "java",
    "julia",
    "lua",
    "luajit",
    "mawk",
    "mono",
    "node",
    "nodejs",
    "octave",
    "octave-cli",
    "original-awk",
    "perl",
    "php",
    "pypy",
    "python",
    "r",
    "rscript",
    "ruby",
    "tclsh",
    "toybox",
    "wish",
];

/// A program that may be spared.
#[derive(Debug)]
pub struct Program {
    /// As it is written in the configuration.
    pub written: PathBuf,
    /// Without links.
    pub path: PathBuf,
    /// The file itself.
    pub file: File,
}

/// Which of these programs may be spared, and why each of the others may not: one line each, with what to do.
pub fn programs(paths: &[PathBuf]) -> (Vec<Program>, Vec<String>) {
    let mut found = Vec::new();
    let mut remarks = Vec::new();
    for path in paths {
        match program(path) {
            Ok(program) => found.push(program),
            Err(wrong) => {
                use std::os::unix::ffi::OsStrExt;
                let shown = printable(path.as_os_str().as_bytes(), 200);
                remarks.push(format!(
                    "exempt.programs: {shown} is not spared: it {}; {}",
                    wrong.message, wrong.remedy
                ));
            }
        }
    }
    (found, remarks)
}

fn program(written: &Path) -> Result<Program, Wrong> {
    let missing = || Wrong::new("does not exist", "correct the path, or leave it out");
    let path = match trusted_program(written) {
        Ok(path) => path.ok_or_else(missing)?,
        Err(ConfigError::Invalid(findings)) => {
            let first = findings.into_iter().next();
            return Err(first.map_or_else(missing, |it| Wrong::new(it.message, it.remedy)));
        }
        Err(error) => {
            return Err(Wrong::new(
                format!("cannot be looked at ({error})"),
                "correct the path",
            ));
        }
    };
    let unreadable = |error: io::Error| {
        let message = format!("cannot be read ({error})");
        Wrong::new(message, "see to its permissions, or leave it out")
    };
    let found = fs::metadata(&path).map_err(unreadable)?;
    if found.is_dir() {
        return Err(Wrong::new("is a directory", "name each program"));
    }
    if !found.is_file() || found.mode() & 0o111 == 0 {
        let remedy = "name the file that is executed";
        return Err(Wrong::new("is not a program", remedy));
    }
    let mut file = File::open(&path).map_err(unreadable)?;
    if let Some(name) = interpreter(&path) {
        let message = format!("is an interpreter ({name}), which runs whatever its users write");
        return Err(Wrong::new(message, "leave it out"));
    }
    let mut start = [0; 2];
    if file.read(&mut start).map_err(unreadable)? == 2 && start == *b"#!" {
        let message = "is a script: what runs is the interpreter in its first line";
        return Err(Wrong::new(message, "leave it out"));
    }
    Ok(Program {
        written: written.to_owned(),
        path,
        file,
    })
}

/// The name of an interpreter, or of the loader of programs, that the file has.
fn interpreter(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let is_loader = name.starts_with("ld") && name.contains(".so");
    let is_version = |it: char| it.is_ascii_digit() || matches!(it, '.' | '-');
    let bare = name.trim_end_matches(is_version).to_ascii_lowercase();
    let is_known = INTERPRETERS.contains(&bare.as_str());
    (is_loader || is_known).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(path: &str) -> String {
        let (found, remarks) = programs(&[PathBuf::from(path)]);
        assert!(found.is_empty(), "{found:?}");
        remarks.into_iter().next().unwrap()
    }

    #[test]
    fn a_shell_may_be_spared_by_the_path_through_a_link() {
        let (found, remarks) = programs(&[PathBuf::from("/bin/bash")]);
        assert!(remarks.is_empty(), "{remarks:?}");
        assert_eq!(found[0].path, Path::new("/usr/bin/bash"));
        assert_eq!(found[0].written, Path::new("/bin/bash"));
    }

    #[test]
    fn what_is_no_program_of_roots_is_said_with_what_to_do() {
        assert!(
            why("/usr/bin/nothing-has-it")
                .ends_with("it does not exist; correct the path, or leave it out")
        );
        assert!(why("/usr/bin").ends_with("it is a directory; name each program"));
        assert!(
            why("/etc/passwd").ends_with("it is not a program; name the file that is executed")
        );
    }

    #[test]
    fn a_directory_to_which_others_may_write_is_refused_with_its_name() {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = folder.path().join("program");
        fs::copy("/usr/bin/true", &path).unwrap();
        let why = why(path.to_str().unwrap());
        assert!(
            why.contains(
                "\"/tmp\" on the way to it may be written by others than root (mode 1777)"
            ),
            "{why}"
        );
    }

    #[test]
    fn interpreters_and_the_loader_are_known_by_their_files() {
        for name in [
            "python3.11",
            "perl",
            "perl5.36.0",
            "lua5.4",
            "R",
            "node",
            "ld-linux-x86-64.so.2",
            "ld.so",
        ] {
            assert!(interpreter(Path::new(name)).is_some(), "{name}");
        }
        for name in [
            "bash",
            "dash",
            "vim.basic",
            "emacs-gtk",
            "tmux",
            "ldd",
            "rsync",
            "sshd-session",
            "rview",
        ] {
            assert!(interpreter(Path::new(name)).is_none(), "{name}");
        }
    }
}
