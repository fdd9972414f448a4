// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where `vm.memfd_noexec` is 2 (6.3 and later) files in memory cannot be executed. From 6.6 on the kernel makes those
//! of who says nothing so; 6.3 to 6.5 refuse them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::stage::{Stage, recording_script};
use crate::wait::until;
use crate::world::{Binaries, World};

const SYSCTL: &str = "/proc/sys/vm/memfd_noexec";

/// A number space of processes has a setting of its own.
pub(super) fn programs_are_told(binaries: &Binaries) -> Result<()> {
    let mut stage = Stage::new(binaries, "noexec")?;
    stage.has_noexec_memfds = true;
    let tell = stage.script("tell", &recording_script(&stage.at("got"), "told"))?;
    stage.configure(&format!(
        "[[rule]]\nname = \"tell\"\nkinds = [\"limit_changed\"]\nvia = \"exec\"\ncommand = [{tell:?}]\n"
    ))?;
    stage.start_and_follow()?;
    stage.world.daemon.limit("60737", "64M")?;
    until("a program to be told", || {
        Ok(stage.got("told")?.pop().map(|_| ()))
    })
    .with_context(|| stage.log().unwrap_or_default())
}

struct Setting(Option<String>);

impl Setting {
    fn strict() -> Result<Self> {
        if !Path::new(SYSCTL).exists() {
            return Ok(Self(None));
        }
        let before = fs::read_to_string(SYSCTL)?;
        fs::write(SYSCTL, "2")?;
        Ok(Self(Some(before)))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = fs::write(SYSCTL, before);
        }
    }
}

/// bursard itself: files in memory are counted and refused as they are otherwise.
pub(super) fn limits_hold(binaries: &Binaries) -> Result<()> {
    let files = |name: &str| -> Result<_> {
        let mut world = World::new(binaries, name, "")?;
        world.daemon.start()?;
        world.daemon.limit("60738", "64M")?;
        let mut hog = world.hog("uid=60738 hold=100M pause")?;
        hog.expect_killed()?;
        let half = world.daemon.status()?.kernel_half;
        ensure!(half.attached, "{half:?}");
        Ok((half.counts_files, half.gate.mode, half.gate.files))
    };
    let usual = files("usual-memfd")?;
    let _setting = Setting::strict()?;
    let strict = files("noexec-memfd")?;
    ensure!(strict == usual, "{strict:?} is not {usual:?}");
    Ok(())
}
