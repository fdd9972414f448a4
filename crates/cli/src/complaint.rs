// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one way to stderr.

use std::io::{self, Write};

use crate::style::Charset;

/// Tells on stderr what went wrong.
pub(crate) fn complain(message: &str) {
    let charset = Charset::of_locale();
    let lines: Vec<String> = message.lines().map(|line| charset.shown(line)).collect();
    // With stderr gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "bursar: {}", lines.join("\n"));
}
