// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs guests are made with: found, installed by apt when missing, run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// A program and the Debian package that has it.
pub(super) struct Program {
    name: &'static str,
    package: &'static str,
}

const fn program(name: &'static str, package: &'static str) -> Program {
    Program { name, package }
}

/// What fetching a kernel needs.
pub(super) const FOR_FETCHING: &[Program] = &[program("depmod", "kmod")];

/// What booting one needs.
pub(super) const FOR_BOOTING: &[Program] = &[
    program("qemu-system-x86_64", "qemu-system-x86"),
    program("busybox", "busybox-static"),
    program("cpio", "cpio"),
    program("xz", "xz-utils"),
    program("zstd", "zstd"),
];

/// Installs what is missing, saying so.
pub(super) fn ensure(programs: &[Program]) -> Result<()> {
    let mut missing = Vec::new();
    for program in programs {
        let usable = match find(program.name) {
            // The other busybox package is linked dynamically and is no use in an empty guest.
            Some(path) if program.name == "busybox" => is_static(&path)?,
            found => found.is_some(),
        };
        if !usable {
            missing.push(program.package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "missing programs; as root: apt-get install {}",
            missing.join(" ")
        );
    }
    let apt_get = |arguments: &[&str]| -> Result<Output> {
        Command::new("apt-get")
            .args(["-q", "-y", "--no-install-recommends"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .context("run apt-get")
    };
    // The machine's lists may never have been fetched, or be too old to be of use.
    let mut updated = false;
    for package in missing {
        eprintln!("vm: installing {package} (apt)");
        let mut output = apt_get(&["install", package])?;
        if !output.status.success() && !updated {
            apt_get(&["update"])?;
            updated = true;
            output = apt_get(&["install", package])?;
        }
        if !output.status.success() {
            bail!("install {package}: {}", last_words(&output.stderr));
        }
    }
    Ok(())
}

/// Where a program is; administrators' programs are looked for even if PATH leaves them out.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// Whether a program needs no libraries.
fn is_static(path: &Path) -> Result<bool> {
    let output = Command::new("ldd").arg(path).output().context("run ldd")?;
    Ok(!output.status.success()
        || String::from_utf8_lossy(&output.stdout).contains("statically linked"))
}

/// Runs a command to its end; its failure is an error with its last words.
pub(super) fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, last_words(&output.stderr));
    }
    Ok(output)
}

/// The last few lines a program said, on one line.
pub(super) fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(4)..].join("; ")
}
