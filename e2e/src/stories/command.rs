// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands as an administrator types them: what they say, and how they end.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::world::World;

/// Exit code, and all that was said.
pub(super) fn run(command: &mut Command) -> Result<(i32, String)> {
    let (code, said, complaint) = outcome(command)?;
    Ok((code, said + &complaint))
}

/// What a command of bursar's says that does what it is to do.
pub(super) fn done(world: &World, arguments: &[&str]) -> Result<String> {
    let (code, said) = run(&mut world.bursar(arguments))?;
    ensure!(code == 0, "{arguments:?}: {code} {said}");
    Ok(said)
}

/// Exit code, what was said and what was complained of.
pub(super) fn outcome(command: &mut Command) -> Result<(i32, String, String)> {
    let output = command.output()?;
    let code = output.status.code().context("its exit code")?;
    Ok((
        code,
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    ))
}
