// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar top` without a terminal, a socket or a clock: what keys and answers make of its state
//! ([`Top`]), and how that looks ([`screen::draw`]). Whoever has those three brings [`Input`]s and shows
//! the screen.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

mod account;
mod input;
mod order;
mod pace;
mod record;
pub mod screen;
mod top;

#[cfg(test)]
mod sample;

pub use account::Account;
pub use input::{BillText, EventText, Input, Key, Machine, Sample};
pub use order::Order;
pub use pace::Pace;
pub use record::{AccountRecord, Record};
pub use top::{Next, Top};
