// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How things look on a terminal, for the command line and for `bursar top`: which characters there are
//! ([`Charset`]), how good a thing is ([`Tone`]), [`bar`]s, [`words`] for amounts, [`paragraph`]s. Knows
//! neither colours nor a terminal.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod bar;
mod charset;
pub mod entry;
pub mod event;
pub mod exposition;
pub mod paragraph;
mod tone;
pub mod words;

pub use charset::Charset;
pub use tone::Tone;
