// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells the kernel half how many pages have been given back with MADV_FREE, on the whole machine. No event tells of
//! them: they stay resident until somebody needs them.

use std::path::Path;

use anyhow::{Context, Result};
use bursar_host::vm::{KeptFile, VmStatReader};
use bursar_kernel::GivenBackNote;
use bursar_model::Pages;

/// What was last told.
#[derive(Debug)]
pub(super) struct GivenBack {
    file: KeptFile,
    reader: VmStatReader,
    note: GivenBackNote,
    told: u64,
}

impl GivenBack {
    pub(super) fn open(note: GivenBackNote) -> Result<Self> {
        let file = KeptFile::open(Path::new("/proc/vmstat")).context("open /proc/vmstat")?;
        Ok(Self {
            file,
            reader: VmStatReader::default(),
            note,
            told: 0,
        })
    }

    /// Reads the counter, and tells where it has grown.
    pub(super) fn look(&mut self) -> Result<()> {
        let pages = self
            .reader
            .look(&mut self.file)
            .context("read it")?
            .given_back;
        if pages != self.told {
            self.note.write(Pages::new(pages))?;
            self.told = pages;
        }
        Ok(())
    }
}
