// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How good a thing is.

/// How good a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// Somebody should know.
    Warning,
    /// Somebody should act.
    Bad,
}
