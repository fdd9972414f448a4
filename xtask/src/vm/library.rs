// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which shared libraries programs need, as `ldd` tells it. What a program opens by itself while
//! it runs (plugins, libgcc_s for thread cancellation) ldd cannot know: name such files yourself.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The libraries, and the loader, that these files need, at the paths where they are looked for.
pub(super) fn libraries_of(files: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    // A few hundred at a time: a whole Python fits, the length of a command line is not reached.
    for some in files.chunks(200) {
        // ldd fails where a file is linked statically, which is fine; what it prints decides.
        let output = Command::new("ldd")
            .args(some)
            .env("LC_ALL", "C")
            .output()
            .context("run ldd")?;
        libraries.extend(parse_ldd(&String::from_utf8_lossy(&output.stdout))?);
    }
    Ok(libraries)
}

/// Whether a file is an ELF file.
pub(super) fn is_elf(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    let file = File::open(path).with_context(|| format!("open {path:?}"))?;
    file.take(4)
        .read_to_end(&mut magic)
        .with_context(|| format!("read {path:?}"))?;
    Ok(magic == b"\x7fELF")
}

fn parse_ldd(text: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.starts_with('\t'))
        .map(str::trim)
    {
        let path = match line.split_once(" => ") {
            Some((name, "not found")) => bail!("library {name:?} is not on this machine"),
            Some((_, found)) => found,
            None => line, // the loader, linux-vdso.so.1, or "statically linked"
        };
        let path = path.split(" (0x").next().unwrap_or(path);
        if path.starts_with('/') {
            libraries.push(without_detours(Path::new(path)));
        }
    }
    Ok(libraries)
}

/// The same without `..`, as a RUNPATH of `$ORIGIN/../lib` leaves it.
fn without_detours(path: &Path) -> PathBuf {
    let mut straight = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                straight.pop();
            }
            part => straight.push(part),
        }
    }
    straight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldd_of_several_files_gives_their_libraries_and_the_loader() {
        let text = "\
/usr/bin/a:
\tlinux-vdso.so.1 (0x00007ffd2e5f2000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f2)
/usr/bin/b:
\tstatically linked
/usr/bin/c:
\tnot a dynamic executable
";
        let found = parse_ldd(text).unwrap();
        assert_eq!(
            found,
            [
                Path::new("/lib/x86_64-linux-gnu/libc.so.6"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
    }

    #[test]
    fn a_detour_is_not_taken() {
        let found = parse_ldd("\tlibjli.so => /jvm/bin/../lib/libjli.so (0x00007f1)\n").unwrap();
        assert_eq!(found, [Path::new("/jvm/lib/libjli.so")]);
    }

    #[test]
    fn a_missing_library_is_named() {
        let error = parse_ldd("\tlibelf.so.1 => not found\n")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "library \"libelf.so.1\" is not on this machine");
    }
}
