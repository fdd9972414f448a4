// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread of ours does without, capabilities(7).

use std::io;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// From now on the calling thread writes oom_score_adj as its owner could: with CAP_SYS_RESOURCE what is written would
/// become the least that its owner can go back to (fs/proc/base.c, __set_oom_adj()).
///
/// # Errors
/// The kernel's.
pub fn leave_oom_score_minimum() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective.remove(CapabilitySet::SYS_RESOURCE);
    Ok(set_capabilities(None, sets)?)
}
