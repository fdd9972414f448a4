// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting for something to become true, never for time to pass.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How long anything may take before a story fails: guests are emulated and slow.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// Waits until `look` finds something.
///
/// # Errors
/// When it has not within [`TIMEOUT`].
pub fn until<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    within(TIMEOUT, what, look)
}

/// Waits until `look` finds something, at most so long.
///
/// # Errors
/// When it has not, or looking fails.
pub fn within<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {limit:?} in vain for: {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
