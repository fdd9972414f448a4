// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bursard with S1's notifier: the trace pipe.

use anyhow::{Context, Result};
use bursar_e2e::World;

use super::{Stage, User};

/// A bursard of our own.
pub(crate) struct Trace(#[expect(dead_code, reason = "ends when dropped")] World);

impl Trace {
    /// With a limit for [`User::Other`].
    pub(crate) fn start(stage: &Stage, limit_bytes: u64) -> Result<Self> {
        let mut world = World::new(&stage.binaries, "bench-trace", "")?;
        world.daemon.with_arguments(&["--trigger", "trace"]);
        world
            .daemon
            .start()
            .context("start bursard --trigger trace")?;
        let uid = stage.uid(User::Other).to_string();
        world.daemon.limit(&uid, &limit_bytes.to_string())?;
        Ok(Self(world))
    }
}
