// SPDX-License-Identifier: Apache-2.0 OR MIT
//! For who reads a TOML file of his own as these are read, with the same messages.

pub use crate::finding::Wrong;
pub use crate::source::{Source, span_of};
pub use crate::spelling::nearest;
pub use crate::value::{absolute_path, amount, integer, kind, kind_of_item, line, word};
