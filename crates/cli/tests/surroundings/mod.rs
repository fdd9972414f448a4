// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar` where nothing depends on who runs the test.

use std::time::Duration;

use assert_cmd::Command;

/// `bursar` in surroundings that are the same everywhere.
pub(crate) fn bursar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bursar"));
    command
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .env_remove("BURSAR_SOCKET");
    command
        .env_remove("COLUMNS")
        .timeout(Duration::from_secs(60));
    command
}
