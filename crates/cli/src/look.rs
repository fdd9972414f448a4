// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the caller's terminal can show: width, characters, colours. And the door that all text from
//! elsewhere passes on its way there.

use std::env;
use std::io::{self, IsTerminal};

use bursar_model::printable;
use rustix::termios::tcgetwinsize;

/// Longer text from elsewhere is cut, characters.
const LONGEST_TEXT: usize = 4096;
/// Narrower terminals get what suits this one, columns.
const NARROWEST: usize = 40;

/// How to show things.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    /// Columns; `None` where lines may have any length (a pipe, a file).
    pub(crate) width: Option<usize>,
    pub(crate) charset: Charset,
    pub(crate) paint: Paint,
}

/// Which characters there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charset {
    Unicode,
    Ascii,
}

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Colours,
    Plain,
}

/// How good a thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Warning,
    Bad,
}

impl Look {
    /// The one that suits this process's stdout and environment.
    pub(crate) fn here() -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self {
            width: width(is_terminal).map(|columns| columns.max(NARROWEST)),
            charset: Charset::of_locale(),
            paint: if is_terminal && wants_colours() {
                Paint::Colours
            } else {
                Paint::Plain
            },
        }
    }

    /// `text` in the colour of `tone`.
    pub(crate) fn painted(&self, tone: Tone, text: &str) -> String {
        let colour = match (self.paint, tone) {
            (Paint::Plain, _) => return text.to_owned(),
            (Paint::Colours, Tone::Good) => 32,
            (Paint::Colours, Tone::Warning) => 33,
            (Paint::Colours, Tone::Bad) => 31,
        };
        format!("\x1b[{colour}m{text}\x1b[0m")
    }

    /// `text` in the colour of `tone`, if it has one.
    pub(crate) fn toned(&self, tone: Option<Tone>, text: &str) -> String {
        tone.map_or_else(|| text.to_owned(), |tone| self.painted(tone, text))
    }

    /// See [`Charset::shown`].
    pub(crate) fn shown(&self, text: &str) -> String {
        self.charset.shown(text)
    }
}

impl Charset {
    /// What LC_ALL, LC_CTYPE and LANG say, in this order (locale(7)).
    pub(crate) fn of_locale() -> Self {
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
    pub(crate) fn shown(self, text: &str) -> String {
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

    /// Where something was left out.
    pub(crate) const fn ellipsis(self) -> &'static str {
        match self {
            Self::Unicode => "…",
            Self::Ascii => "~",
        }
    }
}

/// COLUMNS where somebody set it, also for a pipe; else what the terminal says.
fn width(is_terminal: bool) -> Option<usize> {
    let asked = env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    if asked.is_some_and(|columns| columns > 0) {
        return asked;
    }
    if !is_terminal {
        return None;
    }
    let told = tcgetwinsize(io::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col));
    told.filter(|&columns| columns > 0).or(Some(80))
}

/// <https://no-color.org>, and terminals that know none.
fn wants_colours() -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|value| value.is_empty() || value == "dumb");
    !refused && !is_dumb
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
