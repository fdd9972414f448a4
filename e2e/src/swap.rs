// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Swap in memory (zram), for guests.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

/// Swap on a device in memory, on until this is dropped.
#[derive(Debug)]
pub struct Swap;

const SWAP: &CStr = c"/dev/zram0";

/// Before 6.12 the compression is another module's, and not each kernel has that of the default.
fn set_size(bytes: u64) -> Result<()> {
    const DISK: &str = "/sys/block/zram0";
    let size = format!("{DISK}/disksize");
    let set = || fs::write(&size, bytes.to_string());
    let others = ["lzo", "lz4", "zstd", "deflate"].iter();
    let is_set = set().is_ok()
        || others
            .map(|name| fs::write(format!("{DISK}/comp_algorithm"), name))
            .any(|chosen| chosen.is_ok() && set().is_ok());
    match is_set {
        true => Ok(()),
        false => set().with_context(|| format!("write {size}: is the module zram loaded?")),
    }
}

impl Swap {
    /// Turns it on. For guests only: a whole machine swaps then.
    ///
    /// # Errors
    /// Where the module zram is not loaded, or its device in use.
    pub fn on(bytes: u64) -> Result<Self> {
        set_size(bytes)?;
        // include/linux/swap.h union swap_header: version 1 and the last page; the magic ends the page.
        let mut header = [0_u8; 4096];
        header[1024..1028].copy_from_slice(&1_u32.to_ne_bytes());
        let last = u32::try_from(bytes / 4096 - 1).context("a small swap")?;
        header[1028..1032].copy_from_slice(&last.to_ne_bytes());
        header[4086..].copy_from_slice(b"SWAPSPACE2");
        let device = fs::File::options().write(true).open("/dev/zram0");
        device
            .and_then(|it| it.write_all_at(&header, 0).and_then(|()| it.sync_all()))
            .context("write a swap header to /dev/zram0")?;
        // SAFETY: a NUL-terminated path.
        if unsafe { libc::swapon(SWAP.as_ptr(), 0) } != 0 {
            return Err(std::io::Error::last_os_error()).context("turn swap on");
        }
        Ok(Self)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // SAFETY: a NUL-terminated path.
        unsafe { libc::swapoff(SWAP.as_ptr()) };
        let _ = fs::write("/sys/block/zram0/reset", "1");
    }
}
