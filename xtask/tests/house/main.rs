// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The house: ranks of crates, words, sizes, circles. `cargo test --release -p xtask --test house -- --nocapture`
//! prints what is checked.

mod circles;
mod lines;
mod ranks;
mod sizes;
mod tree;
mod words;
