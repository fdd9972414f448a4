// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A text for Slack and Mattermost: in a block of code, where neither looks for names, links or markup, and nothing in
//! it can end the block or call anybody.

use serde_json::json;

pub(super) fn body(text: &str) -> Vec<u8> {
    let text = format!("```\n{}\n```", harmless(text));
    json!({ "text": text }).to_string().into_bytes()
}

/// Slack reads `<!channel>` and `<url|text>` also in code; `&`, `<` and `>` are written so there and there only. The
/// sign of a mention is one that looks like it.
fn harmless(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '`' => out.push('\''),
            '@' => out.push('\u{ff20}'),
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_called_and_nothing_is_a_link() {
        let body = body("killed <!channel> @all ``` **x** <https://evil|ok> & co");
        let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let text = read["text"].as_str().unwrap();
        assert_eq!(
            text,
            "```\nkilled &lt;!channel&gt; \u{ff20}all ''' **x** &lt;https://evil|ok&gt; &amp; co\n```"
        );
    }
}
