// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which characters a terminal has, and the door that all text from elsewhere passes on its way there.

use std::env;

use bursar_model::printable;
use unicode_width::UnicodeWidthChar;

/// Longer text from elsewhere is cut, characters.
const LONGEST_TEXT: usize = 4096;

/// Which characters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charset {
    /// All.
    Unicode,
    /// Letters, digits and signs only.
    Ascii,
}

impl Charset {
    /// What LC_ALL, LC_CTYPE and LANG say, in this order (locale(7)).
    pub fn of_locale() -> Self {
        let named = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| {
            let value = env::var(name).ok()?;
            if value.is_empty() {
                None
            } else {
                Some(value.to_ascii_lowercase())
            }
        });
        match named {
            Some(locale) if locale.contains("utf-8") || locale.contains("utf8") => Self::Unicode,
            _ => Self::Ascii,
        }
    }

    /// `text` from elsewhere as one harmless line.
    ///
    /// The daemon sends text that is printable already, with `\n` spelled out; so backslashes pass
    /// (doubling them again would show another name than `bursar events --json`), and only what a
    /// daemon should never have sent is spelled out here.
    #[must_use]
    pub fn shown(self, text: &str) -> String {
        let pieces = text
            .split('\\')
            .map(|piece| printable(piece.as_bytes(), LONGEST_TEXT));
        let harmless = pieces.collect::<Vec<_>>().join("\\");
        match self {
            Self::Unicode => harmless,
            Self::Ascii => harmless
                .chars()
                .fold(String::new(), |mut ascii, character| {
                    match character {
                        '…' => ascii.push_str("..."),
                        _ if character.is_ascii() => ascii.push(character),
                        _ => ascii.extend(character.escape_unicode()),
                    }
                    ascii
                }),
        }
    }

    /// The same for a screen on which each character has its place: what has no width of its own (a
    /// combining mark, a variation selector) or is written from right to left, which turns its neighbours,
    /// is spelled out too, because terminals do not agree about it.
    #[must_use]
    pub fn placed(self, text: &str) -> String {
        let spelled = |character: char| match character.width() {
            Some(1..) if !is_leftward(character) => character.to_string(),
            _ => character.escape_unicode().to_string(),
        };
        self.shown(text).chars().map(spelled).collect()
    }

    /// Where something was left out.
    pub const fn ellipsis(self) -> &'static str {
        match self {
            Self::Unicode => "…",
            Self::Ascii => "~",
        }
    }
}

/// Of the scripts that are written from right to left.
const fn is_leftward(character: char) -> bool {
    matches!(character,
        '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_that_is_printable_already_passes_unchanged() {
        for text in ["python3", r"a\nb", r"\\x1b", r"a\u{202e}b", "café"] {
            assert_eq!(Charset::Unicode.shown(text), text);
        }
    }

    #[test]
    fn text_that_is_not_is_spelled_out() {
        assert_eq!(Charset::Unicode.shown("a\nb\x1b[2J"), r"a\nb\x1b[2J");
        assert_eq!(Charset::Ascii.shown("café"), r"caf\u{e9}");
    }

    #[test]
    fn on_a_screen_nothing_is_without_a_place() {
        assert_eq!(
            Charset::Unicode.placed("Z\u{301}a\u{fe0f}"),
            r"Z\u{301}a\u{fe0f}"
        );
        assert_eq!(Charset::Unicode.placed("aא1"), r"a\u{5d0}1");
        assert_eq!(Charset::Unicode.placed("山田"), "山田");
    }

    proptest! {
        #[test]
        fn nothing_harmful_passes_the_door(text: String) {
            prop_assert!(Charset::Unicode.shown(&text).chars().all(|c| !c.is_control()));
            prop_assert!(Charset::Ascii.shown(&text).chars().all(|c| c.is_ascii_graphic() || c == ' '));
        }

        #[test]
        fn passing_the_door_twice_changes_nothing(text: String) {
            let once = Charset::Unicode.shown(&text);
            prop_assert_eq!(Charset::Unicode.shown(&once), once);
        }
    }
}
