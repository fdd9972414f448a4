// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's pool of huge pages, for guests.

use std::fs;

use anyhow::{Context, Result, ensure};

const SIZE: &str = "/proc/sys/vm/nr_hugepages";

/// A pool of a story's own. When it is dropped the pool is what it was.
#[derive(Debug)]
pub(crate) struct HugePagePool {
    before: String,
}

impl HugePagePool {
    /// Of so many pages of the default size.
    pub(crate) fn of(pages: u32) -> Result<Self> {
        let before = fs::read_to_string(SIZE).context("read the pool's size")?;
        let pool = Self { before };
        fs::write(SIZE, pages.to_string()).context("make a pool of huge pages")?;
        let made = fs::read_to_string(SIZE).context("read the pool's size")?;
        ensure!(
            made.trim() == pages.to_string(),
            "the pool has {} pages of {pages}",
            made.trim()
        );
        Ok(pool)
    }
}

impl Drop for HugePagePool {
    fn drop(&mut self) {
        let _ = fs::write(SIZE, &self.before);
    }
}
