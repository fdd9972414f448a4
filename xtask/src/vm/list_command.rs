// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm list`: what is cached.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;

use super::ability::missing;
use super::cache::{Cache, Kernel};
use super::suite::Suite;

pub(super) fn list(cache: &Cache, json: bool) -> Result<ExitCode> {
    let mut kernels = Vec::new();
    let mut damaged = false;
    for suite in Suite::ALL {
        match cache.kernel(suite) {
            Ok(Some(kernel)) => kernels.push(kernel),
            Ok(None) if json => {}
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

fn paragraph(kernel: &Kernel) -> String {
    let mut text = line(kernel) + "\n";
    text.push_str(&format!(
        "          vmlinuz {}\n",
        kernel.vmlinuz().display()
    ));
    text.push_str(&format!(
        "          modules {}\n",
        kernel.modules().display()
    ));
    if kernel.btf().is_file() {
        text.push_str(&format!("          btf     {}\n", kernel.btf().display()));
    }
    text
}

/// A kernel on one line.
pub(super) fn line(kernel: &Kernel) -> String {
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
    let abilities = kernel.abilities().unwrap_or_default();
    let lacks = missing(&abilities, false);
    if !lacks.is_empty() {
        line.push_str(&format!("; built without {}", lacks.join(", ")));
    }
    line
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
