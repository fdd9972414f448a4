// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `vm shell`: a guest to look around in.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::cache::Cache;
use super::fetch::{Fetch, fetch};
use super::run_command::GuestArgs;
use super::suite::Suite;

#[derive(Args)]
pub(super) struct ShellArgs {
    /// bookworm, trixie or newest
    #[arg(long)]
    suite: Suite,
    #[command(flatten)]
    guest: GuestArgs,
}

pub(super) fn shell(cache: &Cache, args: &ShellArgs) -> Result<ExitCode> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        bail!("a shell needs a terminal; to run one command use: vm run");
    }
    let kernel = fetch(cache, args.suite, &Fetch::default())?;
    let size = rustix::termios::tcgetwinsize(&stdin)
        .ok()
        .filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
    eprintln!(
        "vm: booting {}; exit ends the guest, Ctrl-A x kills it",
        kernel.release()
    );
    let status = args.guest.guest(&kernel).shell(rows, columns)?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
