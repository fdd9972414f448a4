// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm btf`: the BTF of a guest's kernel, read inside it, for `bpftool btf dump file …`.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::fetch::{Fetch, fetch};
use super::guest::Guest;
use super::suite::Suite;

/// How BTF begins: magic 0xeb9f, little-endian, version 1.
const BTF_HEAD: [u8; 3] = [0x9f, 0xeb, 1];

pub(super) fn btf(cache: &Cache, suites: &[Suite]) -> Result<ExitCode> {
    for &suite in suites {
        let kernel = fetch(cache, suite, &Fetch::default())?;
        let path = kernel.btf();
        if !path.is_file() {
            // Beside the place first: what is not BTF must not stay there.
            let arriving = path.with_extension("arriving");
            let (report, output) = Guest::builder(&kernel)
                .command(["true"])
                .out("/sys/kernel/btf/vmlinux", &arriving)
                .allow_kernel_warnings(true)
                .output()?;
            if report.status() != 0 {
                let err = String::from_utf8_lossy(&output.err).into_owned();
                bail!("read BTF: {}; {err}", report.story().join("; "));
            }
            let bytes = fs::read(&arriving).with_context(|| format!("read {arriving:?}"))?;
            if !bytes.starts_with(&BTF_HEAD) {
                bail!("{arriving:?} is not BTF");
            }
            fs::rename(&arriving, &path).with_context(|| format!("move {arriving:?}"))?;
        }
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
