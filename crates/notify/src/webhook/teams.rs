// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A text for Microsoft Teams: an Adaptive Card, as a workflow that waits for a webhook takes it. Each line is a run of
//! rich text, in which Teams looks for no markup, no links and no mentions.

use serde_json::{Value, json};

pub(super) fn body(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let headline = block(lines.next().unwrap_or_default(), true);
    let body: Vec<Value> = std::iter::once(headline)
        .chain(lines.map(|line| block(line, false)))
        .collect();
    let card = json!({
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": { "width": "Full" },
        "body": body,
    });
    let attachment = json!({
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": null,
        "content": card,
    });
    json!({ "type": "message", "attachments": [attachment] })
        .to_string()
        .into_bytes()
}

fn block(line: &str, is_headline: bool) -> Value {
    let weight = if is_headline { "Bolder" } else { "Default" };
    // `{{DATE(…)}}` is put in place wherever a card has text.
    let text = line.replace("{{", "{ {").replace("}}", "} }");
    let run = json!({ "type": "TextRun", "text": text, "weight": weight });
    json!({ "type": "RichTextBlock", "spacing": "Small", "inlines": [run] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_each_line_as_plain_text_and_nothing_of_it_is_markup() {
        let hostile = "mallory: **x** [ok](https://evil) <at>all</at> {{DATE(2026)}} \"}]}";
        let body = body(&format!(
            "2 programs were killed on lab\n{hostile}\nand 3 more"
        ));
        let read: Value = serde_json::from_slice(&body).unwrap();
        let card = &read["attachments"][0];
        assert_eq!(
            (&read["type"], &card["contentType"]),
            (
                &json!("message"),
                &json!("application/vnd.microsoft.card.adaptive")
            )
        );
        assert_eq!(card["content"]["type"], "AdaptiveCard");
        let blocks = card["content"]["body"].as_array().unwrap();
        // Text blocks would read Markdown, and mentions need entities.
        assert!(blocks.iter().all(|it| it["type"] == "RichTextBlock"));
        assert!(card["content"]["msteams"].get("entities").is_none());
        let run = |at: usize| &blocks[at]["inlines"][0];
        assert_eq!((blocks.len(), &run(0)["weight"]), (3, &json!("Bolder")));
        assert_eq!(
            run(1)["text"],
            hostile.replace("{{", "{ {").replace("}}", "} }")
        );
    }

    #[test]
    fn a_card_is_within_what_teams_takes() {
        let line = "2026-11-26 10:00:00  user: a program (process 4194304), which held 1.0 GiB, was killed";
        let text = vec![line; 3_500 / line.len()].join("\n");
        assert!(body(&text).len() < 28 << 10);
    }
}
