// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sentences broken into lines that fit.

use unicode_width::UnicodeWidthStr;

/// `text` in lines of at most `width` columns; the first begins with `first`, the others with as many
/// blanks. A word longer than a line is broken (a path, a hostile name), because a terminal would do
/// it anyway and less well.
#[must_use]
pub fn paragraph(first: &str, text: &str, width: Option<usize>) -> String {
    let indent = first.width();
    let room = width.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(1));
    let mut lines = vec![String::new()];
    for word in words(text) {
        for piece in pieces(&word, room) {
            match lines.last_mut() {
                Some(line) if line.is_empty() => line.push_str(piece),
                Some(line)
                    if line.width().saturating_add(1).saturating_add(piece.width()) <= room =>
                {
                    line.push(' ');
                    line.push_str(piece);
                }
                _ => lines.push(piece.to_owned()),
            }
        }
    }
    let blanks = " ".repeat(indent);
    let begin = |number: usize| if number == 0 { first } else { &blanks };
    let lines = lines
        .iter()
        .enumerate()
        .map(|(number, line)| format!("{}{line}", begin(number)).trim_end().to_owned() + "\n");
    lines.collect()
}

/// The words of `text`; an amount and its unit are one.
fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 11] = [
        "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ns", "µs", "us", "ms",
    ];
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let unit = word.trim_end_matches([',', ';', '.', ')']);
        let is_number = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
        };
        match words.last_mut() {
            Some(last) if UNITS.contains(&unit) && is_number(last) => *last += &format!(" {word}"),
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// `word` in pieces of at most `room` columns, each at least one character.
fn pieces(word: &str, room: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while rest.width() > room {
        let fitting = longest_start(rest, room);
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let (piece, remains) = rest.split_at(fitting.len().max(first));
        pieces.push(piece);
        rest = remains;
    }
    pieces.push(rest);
    pieces
}

/// As much of the beginning of `text` as fits in `columns`.
#[must_use]
pub fn longest_start(text: &str, columns: usize) -> &str {
    let ends = text
        .char_indices()
        .map(|(start, character)| start.saturating_add(character.len_utf8()));
    let fitting = ends
        .filter_map(|end| text.get(..end))
        .take_while(|start| start.width() <= columns);
    fitting.last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sentences_are_broken_between_words_and_indented() {
        let text = paragraph("note: ", "the user nobody-knows has a limit", Some(24));
        assert_eq!(
            text,
            "note: the user\n      nobody-knows has a\n      limit\n"
        );
    }

    #[test]
    fn an_amount_keeps_its_unit() {
        assert_eq!(
            paragraph("", "held is exact to 512 KiB.", Some(20)),
            "held is exact to\n512 KiB.\n"
        );
    }

    #[test]
    fn without_a_width_a_paragraph_is_one_line() {
        assert_eq!(paragraph("", "a  b\nc", None), "a b c\n");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked(text in "\\PC{0,80}", width in 12usize..40) {
            for line in paragraph("- ", &text, Some(width)).lines() {
                prop_assert!(line.width() <= width, "{line:?}");
            }
        }
    }
}
