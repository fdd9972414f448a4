// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs `bursar-bench-idle` (src/bin/idle.rs).

use std::process::Command;

use anyhow::{Result, ensure};
use bursar_e2e::Hog;
use bursar_host::Proc;

use crate::load::Stage;

/// What one process that does nothing takes, kernel's structures included; measured on 6.18.
const BYTES_EACH: u64 = 160 << 10;

/// So many processes that do nothing; gone when dropped.
pub(crate) fn start(stage: &Stage, accounts: u32, count: u32) -> Result<Option<Hog>> {
    if count == 0 {
        return Ok(None);
    }
    let available = Proc::host()?.meminfo()?.available.get();
    let needed = u64::from(count) * BYTES_EACH;
    ensure!(
        needed * 2 < available,
        "{count} processes take some {} MiB and only {} MiB are free",
        needed >> 20,
        available >> 20
    );
    let mut command = Command::new(stage.binaries.path("bursar-bench-idle"));
    command.args([stage.further_uid(0), accounts, count].map(|it| it.to_string()));
    let mut idle = Hog::spawn(&mut command)?;
    idle.hear("ready")?;
    Ok(Some(idle))
}
