// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Debian 13 to build for arm64 in: this machine's compilers, arm64's libraries. What belongs to them has one
//! version there, which rustup's standard libraries have not where its servers cannot be reached.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::archive::{Fetch, Wanted, mmdebstrap};
use crate::kernel::Cache;

const PACKAGES: &[&str] = &[
    "cargo/trixie-backports",
    "clang-19",
    "gcc",
    "gcc-aarch64-linux-gnu",
    "libc6-dev:arm64",
    "libelf-dev",
    "libelf-dev:arm64",
    "libstd-rust-dev/trixie-backports",
    "libstd-rust-dev:arm64/trixie-backports",
    "llvm-19",
    "make",
    "pkg-config",
    "rustc/trixie-backports",
    "zlib1g-dev",
    "zlib1g-dev:arm64",
];

/// The shell and the tools of arm64 guests, unpacked: installed they would replace the Debian's own.
const GUEST: &str = "--customize-hook=mkdir \"$1/guest\" && cd \"$1/guest\" && export APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\" && \
     apt-get download -q busybox-static:arm64 dash:arm64 && for package in *.deb; do \
     dpkg-deb -x \"$package\" . && rm \"$package\"; done";

/// Lays it out in the cache, unless it is there, and prints where.
pub fn root() -> Result<ExitCode> {
    let cache = Cache::open()?;
    let place = cache.root().join("arm64/root");
    let _lock = cache.lock()?;
    if !place.exists() {
        let work = cache.work_dir("arm64")?;
        let made = work.path().join("root");
        let wanted = Wanted {
            suites: &["trixie", "trixie-backports"],
            packages: PACKAGES,
            architectures: "amd64,arm64",
            arguments: &["--variant=apt", GUEST, "", &made.display().to_string()],
        };
        mmdebstrap(&wanted, &Fetch::default(), work.path())?;
        fs::rename(&made, &place).with_context(|| format!("move {made:?} to {place:?}"))?;
    }
    println!("{}", place.display());
    Ok(ExitCode::SUCCESS)
}
