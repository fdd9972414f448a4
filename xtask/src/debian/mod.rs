// SPDX-License-Identifier: Apache-2.0 OR MIT
//! placeholder
use anyhow::Result;
use std::process::ExitCode;
/// `cargo xtask debian …`
#[derive(clap::Args)]
pub struct Debian {}
impl Debian {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        Ok(ExitCode::SUCCESS)
    }
}
