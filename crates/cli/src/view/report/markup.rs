// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text inside of markup, HTML's and SVG's.

/// `text` where markup stands.
pub(super) fn escaped(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut safe, character| {
            match character {
                '&' => safe.push_str("&amp;"),
                '<' => safe.push_str("&lt;"),
                '>' => safe.push_str("&gt;"),
                '"' => safe.push_str("&quot;"),
                '\'' => safe.push_str("&#39;"),
                other => safe.push(other),
            }
            safe
        })
}
