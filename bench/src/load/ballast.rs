// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What [`User::Near`] holds besides, so that his account stays near its limit between two measurements: it is
//! left when the account holds a sixty-fourth less (`place_near` of crates/kernel/src/bpf/ledger/react.bpf.h).

use std::process::Command;

use anyhow::{Context, Result};
use bursar_e2e::Hog;
use bursar_kernel::PageBounds;
use bursar_model::{AccountId, Pages, Uid};

use super::{Loaded, Stage, User, pages};

/// What a program of ours takes at most beside what it allocates: with a huge page that it gets unasked.
const PROGRAM_BYTES: u64 = 3200 << 10;

/// A process that holds it, and ends when this is dropped.
pub(crate) struct Ballast {
    _hog: Hog,
    uid: u32,
    hog_path: std::path::PathBuf,
}

impl Ballast {
    pub(crate) fn hold(stage: &Stage, bytes: u64) -> Result<Self> {
        let uid = stage.uid(User::Near);
        let hog_path = stage.binaries.path("hog");
        let mut command = Command::new(&hog_path);
        command.args([
            &format!("uid={uid}"),
            &format!("hold={}M", bytes >> 20),
            "say=there",
            "pause",
        ]);
        let mut hog = Hog::spawn(&mut command)?;
        hog.hear("there")?;
        Ok(Self {
            _hog: hog,
            uid,
            hog_path,
        })
    }

    /// Limits the account to `room` above what it holds, for `programs` at once, and brings it near that for a
    /// moment: from then on every event is counted exactly.
    pub(crate) fn bring_near(&self, loaded: &Loaded, room: u64, programs: u64) -> Result<()> {
        loaded.get().resum_now()?;
        let accounts = loaded.get().accounts();
        let id = AccountId::of(Uid::new(self.uid));
        let account = accounts.all().find(|it| it.id == id);
        let account = account.context("the account near")?;
        let room = room + programs * PROGRAM_BYTES;
        let bounds = PageBounds {
            limit: Some(Pages::new(account.held.get() + pages(room).get())),
            ..PageBounds::default()
        };
        accounts.set_bounds(account.slot, bounds)?;
        let mut command = Command::new(&self.hog_path);
        command.args([
            &format!("uid={}", self.uid),
            &format!("hold={}K", (room - PROGRAM_BYTES) >> 10),
            "say=near",
            "pause",
        ]);
        Hog::spawn(&mut command)?.hear("near")?;
        Ok(())
    }
}
