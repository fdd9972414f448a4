// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the caller's terminal can show: width, characters, colours.

use std::env;
use std::io::{self, IsTerminal};

pub(crate) use bursar_text::{Charset, Tone};
use rustix::termios::tcgetwinsize;

/// Narrower terminals get what suits this one, columns.
const NARROWEST: usize = 40;

/// How to show things.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Columns; `None` where lines may have any length (a pipe, a file).
    pub(crate) width: Option<usize>,
    pub(crate) charset: Charset,
    pub(crate) paint: Paint,
}

/// Whether there are colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paint {
    Colours,
    Plain,
}

impl Style {
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
