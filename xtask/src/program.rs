// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs guests are made with: found, installed by apt when missing, run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

/// Installs what of these packages is missing, saying so (xtask/provide).
pub(crate) fn provide(what: &str) -> Result<()> {
    let provide = Path::new(env!("CARGO_MANIFEST_DIR")).join("provide");
    let status = Command::new(&provide).arg(what).status();
    let status = status.with_context(|| format!("run {provide:?}"))?;
    ensure!(status.success(), "programs are missing; see above");
    Ok(())
}

/// One of our scripts.
pub(crate) fn script(name: &str) -> Command {
    let mut sh = Command::new("sh");
    sh.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name));
    sh
}

/// Where a program is; administrators' programs are looked for even if PATH leaves them out.
pub(crate) fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{name} is not installed"))
}

/// Runs a command to its end; its failure is an error with its last words.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}: {}", output.status, last_lines(&output.stderr));
    }
    Ok(output)
}

/// The same, for what it prints.
pub(crate) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(command)?.stdout).into_owned())
}

/// The last few lines a program said, on one line.
pub(crate) fn last_lines(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines: Vec<&str> = lines.collect();
    lines[lines.len().saturating_sub(8)..].join("; ")
}
