// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The short commands: `vm fetch`, `vm list`, `vm btf`, `vm shell`.

use std::fs;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::json;

use super::guest::{Guest, Options};
use crate::archive::Fetch;
use crate::kernel::{Cache, Kernel, fetch, missing};
use crate::suite::Suite;

pub(super) fn fetch_all(cache: &Cache, suites: &[Suite], how: &Fetch) -> Result<ExitCode> {
    for &suite in suites {
        print!("{}", line(&fetch(cache, suite, how)?));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn list(cache: &Cache, json: bool) -> Result<ExitCode> {
    let mut kernels = Vec::new();
    let mut damaged = false;
    for &suite in Suite::value_variants() {
        match cache.kernel(suite) {
            Ok(Some(kernel)) => kernels.push(kernel),
            Ok(None) if json || !Suite::ALL.contains(&suite) => {}
            Ok(None) => println!("{suite:9} not cached; cargo xtask vm fetch --suite {suite}"),
            Err(error) => {
                damaged = true;
                eprintln!(
                    "vm: {suite} is damaged: {error:#}; repair with: cargo xtask vm fetch --suite {suite}"
                );
            }
        }
    }
    let text = if json {
        let list: Vec<_> = kernels.iter().map(object).collect();
        serde_json::to_string_pretty(&list).context("write JSON")? + "\n"
    } else {
        let paragraph = |kernel: &Kernel| {
            let mut text = line(kernel);
            let btf = Some(kernel.btf()).filter(|btf| btf.is_file());
            for (what, path) in [
                ("vmlinuz", Some(kernel.vmlinuz())),
                ("modules", Some(kernel.modules())),
                ("btf", btf),
            ] {
                if let Some(path) = path {
                    text.push_str(&format!("          {what:7} {}\n", path.display()));
                }
            }
            text
        };
        kernels.iter().map(paragraph).collect()
    };
    // A reader who has seen enough, such as head, is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if damaged {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// A kernel on one line.
fn line(kernel: &Kernel) -> String {
    let manifest = kernel.manifest();
    let mut line = format!(
        "{:9} {} from {} ({}), {} MiB",
        manifest.suite,
        manifest.release,
        manifest.archive_suite,
        manifest.version,
        kernel.size_bytes() >> 20
    );
    if !manifest.verified {
        line.push_str(", NOT VERIFIED");
    }
    let lacks = missing(&kernel.abilities().unwrap_or_default(), false);
    if !lacks.is_empty() {
        line.push_str(&format!("; built without {}", lacks.join(", ")));
    }
    line + "\n"
}

fn object(kernel: &Kernel) -> serde_json::Value {
    let manifest = kernel.manifest();
    json!({
        "suite": manifest.suite,
        "archive_suite": manifest.archive_suite,
        "release": manifest.release,
        "version": manifest.version,
        "verified": manifest.verified,
        "size_bytes": kernel.size_bytes(),
        "vmlinuz": kernel.vmlinuz(),
        "config": kernel.config(),
        "modules": kernel.modules(),
        "btf": Some(kernel.btf()).filter(|btf| btf.is_file()),
        "abilities": kernel.abilities().unwrap_or_default(),
    })
}

/// How BTF begins: magic 0xeb9f, little-endian, version 1.
const BTF_HEAD: [u8; 3] = [0x9f, 0xeb, 1];

/// The BTF of each kernel, read inside it, for `bpftool btf dump file …`.
pub(super) fn btf(cache: &Cache, suites: &[Suite]) -> Result<ExitCode> {
    for &suite in suites {
        let kernel = fetch(cache, suite, &Fetch::default())?;
        let path = kernel.btf();
        if !path.is_file() {
            // Beside the place first: what is not BTF must not stay there.
            let arriving = path.with_extension("arriving");
            let mut guest = Guest::new(&kernel, &["true"]);
            guest.out = vec![("/sys/kernel/btf/vmlinux".into(), arriving.clone())];
            guest.allow_kernel_warnings = true;
            let (report, output) = guest.output()?;
            let err = String::from_utf8_lossy(&output.err);
            ensure!(
                report.status() == 0,
                "read BTF: {}; {err}",
                report.story().join("; ")
            );
            let bytes = fs::read(&arriving).with_context(|| format!("read {arriving:?}"))?;
            ensure!(bytes.starts_with(&BTF_HEAD), "{arriving:?} is not BTF");
            fs::rename(&arriving, &path).with_context(|| format!("move {arriving:?}"))?;
        }
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// A guest to look around in.
pub(super) fn shell(cache: &Cache, suite: Suite, options: Options) -> Result<ExitCode> {
    let stdin = std::io::stdin();
    ensure!(
        stdin.is_terminal(),
        "a shell needs a terminal; to run one command use: vm run"
    );
    let kernel = fetch(cache, suite, &Fetch::default())?;
    let size = rustix::termios::tcgetwinsize(&stdin)
        .ok()
        .filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    eprintln!(
        "vm: booting {}; exit ends the guest, Ctrl-A x kills it",
        kernel.release()
    );
    let guest = Guest {
        options,
        ..Guest::new(&kernel, &[])
    };
    let status = guest.shell(rows, columns)?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
