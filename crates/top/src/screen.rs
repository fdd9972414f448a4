// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the state to a screen. Pure: what is drawn depends on the state, the characters there are and
//! the room.
//!
//! No text from elsewhere reaches a cell but by [`Charset::placed`].

mod columns;
mod detail;
mod help;
mod usage;

use bursar_text::paragraph::paragraph;
use bursar_text::words::{count, narrow_size};
use bursar_text::{Charset, Tone};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use unicode_width::UnicodeWidthStr;

use crate::Top;

/// How to draw.
#[derive(Debug, Clone, Copy)]
pub struct Pen {
    /// Which characters.
    pub charset: Charset,
    /// Whether there are colours; without, tones are bold.
    pub has_colours: bool,
}

/// So many lines of notes at most, and of events.
const MOST_NOTES: usize = 3;
const MOST_EVENTS: u16 = 8;

impl Pen {
    fn style(self, tone: Option<Tone>) -> Style {
        let colour = match tone {
            None => return Style::new(),
            Some(Tone::Good) => Color::Green,
            Some(Tone::Warning) => Color::Yellow,
            Some(Tone::Bad) => Color::Red,
        };
        match (self.has_colours, tone) {
            (true, _) => Style::new().fg(colour),
            (false, Some(Tone::Good) | None) => Style::new(),
            (false, Some(Tone::Warning | Tone::Bad)) => Style::new().add_modifier(Modifier::BOLD),
        }
    }

    fn placed(self, text: &str) -> String {
        self.charset.placed(text)
    }
}

/// Lines of a screen that are not taken yet.
struct Rest<'a> {
    buffer: &'a mut Buffer,
    left: Rect,
}

impl Rest<'_> {
    /// Writes the next line.
    fn say(&mut self, text: &str, style: Style) {
        if self.left.height == 0 {
            return;
        }
        let width = usize::from(self.left.width);
        self.buffer
            .set_stringn(self.left.x, self.left.y, text, width, style);
        self.left.y = self.left.y.saturating_add(1);
        self.left.height = self.left.height.saturating_sub(1);
    }

    /// Writes a heading over the whole width.
    fn head(&mut self, text: &str, style: Style) {
        let width = usize::from(self.left.width);
        self.say(&format!("{text:<width$}"), style);
    }

    /// Takes so many lines from the end of what is left.
    fn bottom(&mut self, lines: u16) -> Rect {
        let lines = lines.min(self.left.height);
        self.left.height = self.left.height.saturating_sub(lines);
        Rect {
            y: self.left.y.saturating_add(self.left.height),
            height: lines,
            ..self.left
        }
    }

    fn within(&mut self, area: Rect) -> Rest<'_> {
        Rest {
            buffer: self.buffer,
            left: area,
        }
    }

    fn width(&self) -> usize {
        usize::from(self.left.width)
    }
}

/// Draws it all.
pub fn draw(top: &mut Top, pen: Pen, frame: &mut Frame<'_>) {
    let mut rest = Rest {
        left: frame.area(),
        buffer: frame.buffer_mut(),
    };
    if rest.left.height == 0 || rest.left.width == 0 {
        return;
    }
    let footer = rest.bottom(1);
    footing(top, pen, &mut rest.within(footer));
    if top.is_helping() {
        help::draw(pen, &mut rest);
        return;
    }
    title(top, pen, &mut rest);
    machine(top, pen, &mut rest);
    let below = below(top, rest.left.height);
    let below = rest.bottom(below);
    top.page = columns::draw(top, pen, &mut rest);
    let mut lower = rest.within(below);
    if top.is_detailed() {
        detail::draw(top, pen, &mut lower);
    } else if below.height > 0 {
        events(top, pen, None, &mut lower);
    }
}

/// Lines for what stands below the table, of so many.
fn below(top: &Top, height: u16) -> u16 {
    if top.is_detailed() {
        // The chosen account, its neighbours and the heads are seen where there is room.
        return height.saturating_sub((height / 3).max(3));
    }
    if !top.shows_events() || height < 8 {
        return 0;
    }
    (height / 3).min(MOST_EVENTS)
}

/// The first line; what does not fit is left out, not cut.
fn title(top: &Top, pen: Pen, rest: &mut Rest<'_>) {
    let mut parts = vec![top.time().to_owned()];
    parts.push(match (top.filter(), top.is_typing()) {
        ("", false) => top.order().words().to_owned(),
        (filter, _) => format!("/{} ({})", pen.placed(filter), top.shown().len()),
    });
    if let Some(machine) = top.machine() {
        let all = top.accounts().count() as u64;
        let near = top.accounts().filter(|it| is_near(it)).count();
        parts.push(format!(
            "{}, {near} near",
            count(all, "account", "accounts")
        ));
        let ram = narrow_size(machine.ram);
        parts.push(machine.available.map_or_else(
            || format!("RAM {ram}"),
            |it| format!("{} of {ram} available", narrow_size(it)),
        ));
    }
    let mut text = "bursar top".to_owned();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if text.width() + 2 + part.width() <= rest.width() {
            text.push_str("  ");
            text.push_str(part);
        }
    }
    rest.say(&text, Style::new().add_modifier(Modifier::BOLD));
}

/// Over the notice level.
fn is_near(account: &crate::Account) -> bool {
    let row = account.memory();
    row.notice.is_some_and(|notice| row.held > notice)
}

fn machine(top: &Top, pen: Pen, rest: &mut Rest<'_>) {
    let width = Some(rest.width());
    if let Some(why) = top.lost() {
        let what = if top.machine().is_some() {
            format!("; what is shown is of {}", top.time())
        } else {
            String::new()
        };
        let text = format!("NOT UP TO DATE: {}{what}; trying again", pen.placed(why));
        for line in paragraph("", &text, width).lines().take(MOST_NOTES + 1) {
            rest.say(line, pen.style(Some(Tone::Bad)));
        }
        return;
    }
    let Some(machine) = top.machine() else {
        rest.say("asking bursard ...", Style::new());
        return;
    };
    for line in paragraph("", &pen.placed(&machine.state), width).lines() {
        rest.say(line, pen.style(machine.tone));
    }
    // Notes must not push the accounts off a small screen.
    let most = if rest.left.height < 18 { 1 } else { MOST_NOTES };
    let mut lines = Vec::new();
    for note in &machine.notes {
        let text = paragraph("note: ", &pen.placed(note), width);
        lines.extend(text.lines().map(str::to_owned));
    }
    let hidden = lines.len().saturating_sub(most);
    for (number, line) in lines.iter().take(most).enumerate() {
        if hidden > 0 && number + 1 == most {
            let more = format!("  (and {hidden} more lines: bursar status)");
            let start = rest.width().saturating_sub(more.len());
            let start = bursar_text::paragraph::longest_start(line, start);
            rest.say(&format!("{start}{more}"), Style::new());
        } else {
            rest.say(line, Style::new());
        }
    }
}

/// The newest events that fit, oldest first, under a line of their own; of one account or of all.
fn events(top: &Top, pen: Pen, of: Option<&str>, rest: &mut Rest<'_>) {
    rest.head("EVENTS", heading());
    let fitting = usize::from(rest.left.height);
    let mut newest: Vec<_> = top
        .events()
        .iter()
        .rev()
        .filter(|event| of.is_none_or(|name| event.account.as_deref() == Some(name)))
        .take(fitting)
        .collect();
    newest.reverse();
    if newest.is_empty() {
        let none = if top.knows_events() {
            "none in the last hour"
        } else {
            "not known yet"
        };
        rest.say(none, Style::new().add_modifier(Modifier::DIM));
    }
    for event in newest {
        rest.say(&pen.placed(&event.text), pen.style(event.tone));
    }
}

fn heading() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// The keys, as many as fit; the first are those without which one is lost.
fn footing(top: &Top, pen: Pen, rest: &mut Rest<'_>) {
    if top.is_typing() {
        let text = format!("/{}_  Enter keep  Esc drop", pen.placed(top.filter()));
        rest.say(&text, Style::new());
        return;
    }
    if top.is_helping() {
        rest.say("any key: back", Style::new());
        return;
    }
    let enter = if top.is_detailed() {
        "Enter close"
    } else {
        "Enter detail"
    };
    let escape = match (top.is_detailed(), top.filter().is_empty()) {
        (false, false) => "Esc no filter",
        _ => "q quit",
    };
    let keys = [
        escape,
        "? help",
        enter,
        "/ filter",
        "f m g n k order",
        "e events",
        "arrows choose",
    ];
    let mut text = String::new();
    for key in keys {
        if text.len() + key.len() + 2 > rest.width() {
            break;
        }
        if !text.is_empty() {
            text.push_str("  ");
        }
        text.push_str(key);
    }
    rest.say(&text, Style::new().add_modifier(Modifier::DIM));
}

#[cfg(test)]
mod tests;
