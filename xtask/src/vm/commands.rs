// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The short commands: `vm fetch`, `vm shell`.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use super::guest::{Guest, Options};
use crate::archive::Fetch;
use crate::kernel::{Cache, fetch};
use crate::suite::Suite;

pub(super) fn fetch_all(cache: &Cache, suites: &[Suite], how: &Fetch) -> Result<ExitCode> {
    for &suite in suites {
        println!("{}", fetch(cache, suite, how)?);
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
