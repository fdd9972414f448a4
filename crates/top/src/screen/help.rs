// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the keys do and the columns mean.

use bursar_text::Charset;
use bursar_text::paragraph::paragraph;
use ratatui::style::{Modifier, Style};

use super::{Pen, Rest, heading};

const KEYS: [(&str, &str); 9] = [
    (
        "up down PgUp PgDn",
        "choose an account; End the last; Home whoever is first",
    ),
    ("Enter", "its detail: bounds, beancounters, events"),
    (
        "/",
        "only names with these letters; Esc takes the filter back",
    ),
    (
        "f m g n k",
        "order: fullest, memory held, growth, name, kills",
    ),
    ("e", "events on and off"),
    ("?", "this"),
    ("q Esc Ctrl-C", "leave"),
    ("", ""),
    ("", "nothing here changes or kills anything"),
];

pub(super) fn draw(pen: Pen, rest: &mut Rest<'_>) {
    rest.head("bursar top: keys", heading());
    for (key, what) in KEYS {
        let narrow = rest.width() < 60;
        let column = if narrow { 13 } else { 19 };
        let key = if narrow {
            key.replace(" PgUp PgDn", "")
        } else {
            key.to_owned()
        };
        for line in paragraph(&format!("{key:<column$}"), what, Some(rest.width())).lines() {
            rest.say(line, Style::new());
        }
    }
    let marks = match pen.charset {
        Charset::Unicode => "│ the notice level, ┃ the barrier",
        Charset::Ascii => "| the notice level, ! the barrier",
    };
    let columns = format!(
        "The bar is what is held of the limit; in it {marks}. GROWTH is that of the last seconds, FULL IN \
         the time to the limit at that rate. KILLS, FAILCNT (refusals and kills) and NOTICES count since the kernel half was \
         loaded, +N of those since bursar top began."
    );
    for line in paragraph("", &columns, Some(rest.width())).lines() {
        rest.say(line, Style::new().add_modifier(Modifier::empty()));
    }
}
