// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The accounts, a line each, in columns of which a narrow screen has fewer.

use bursar_model::{Bytes, Row};
use bursar_text::Tone;
use bursar_text::bar::{ladder, percent, tone};
use bursar_text::paragraph::longest_start;
use bursar_text::words::{narrow_count, narrow_size};
use ratatui::style::{Modifier, Style};
use unicode_width::UnicodeWidthStr;

use super::{Pen, Rest, heading};
use crate::top::wait;
use crate::{Account, Top};

/// Columns between two columns.
const GAP: usize = 2;
/// Of names and bars.
const NARROWEST_NAME: usize = 8;
const WIDEST_NAME: usize = 32;
const NARROWEST_BAR: usize = 8;
const WIDEST_BAR: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Held,
    Percent,
    Growth,
    Left,
    Kills,
    Refused,
    Notices,
    Processes,
    Max,
}

/// Those every screen has room for come first, then by what they are worth.
const WORTH: [Column; 9] = [
    Column::Held,
    Column::Percent,
    Column::Growth,
    Column::Left,
    Column::Kills,
    Column::Refused,
    Column::Notices,
    Column::Processes,
    Column::Max,
];
/// The bar comes after so many of them.
const BEFORE_BAR: usize = 4;

/// Which columns, and how wide.
struct Plan {
    name: usize,
    bar: usize,
    columns: Vec<(Column, usize)>,
}

impl Column {
    const fn head(self) -> &'static str {
        match self {
            Self::Held => "HELD / LIMIT",
            Self::Percent => "",
            Self::Growth => "GROWTH",
            Self::Left => "FULL IN",
            Self::Kills => "KILLS",
            Self::Refused => "FAILCNT",
            Self::Notices => "NOTICES",
            Self::Processes => "PROCS",
            Self::Max => "MAX",
        }
    }

    fn cell(self, account: &Account) -> String {
        let row = account.memory();
        match self {
            Self::Held => {
                let limit = row.limit.map_or_else(|| "none".to_owned(), narrow_size);
                format!("{} / {limit:<5}", narrow_size(row.held))
            }
            Self::Percent => percent(&row),
            Self::Growth => account.pace.rate().map_or_else(String::new, growth),
            Self::Left => account
                .pace
                .time_to(row.limit)
                .map_or_else(String::new, wait),
            Self::Kills => counted(account.status.kills, account.new_kills()),
            Self::Refused => counted(row.failcnt, account.new_refusals()),
            Self::Notices => counted(account.status.notices, account.new_notices()),
            Self::Processes => narrow_count(account.status.processes.into()),
            Self::Max => narrow_size(row.maxheld),
        }
    }

    fn tone(self, account: &Account, row: &Row) -> Option<Tone> {
        match self {
            Self::Percent => tone(row),
            Self::Kills if account.new_kills() > 0 => Some(Tone::Bad),
            Self::Refused if account.new_refusals() > 0 => Some(Tone::Warning),
            Self::Notices if account.new_notices() > 0 => Some(Tone::Warning),
            Self::Left => account
                .pace
                .time_to(row.limit)
                .filter(|it| it.as_secs() < 60)
                .map(|_| Tone::Warning),
            _ => None,
        }
    }
}

/// `+12.3M/s`, `-4K/s`, `0`.
pub(super) fn growth(rate: i64) -> String {
    let size = narrow_size(Bytes::new(rate.unsigned_abs()));
    match rate {
        0 => "0".to_owned(),
        1.. => format!("+{size}/s"),
        ..0 => format!("-{size}/s"),
    }
}

/// All there were, and those since the start: `12 +3`.
fn counted(all: u64, new: u64) -> String {
    let all = narrow_count(all);
    match new {
        0 => all,
        new => format!("{all} +{}", narrow_count(new)),
    }
}

impl Plan {
    fn new(accounts: &[&Account], pen: Pen, width: usize) -> Self {
        let widest = |column: Column| {
            let cells = accounts.iter().map(|it| column.cell(it).width());
            // A rate and a time come and go: their columns must not.
            let least = match column {
                Column::Growth => 8,
                Column::Left | Column::Kills => 7,
                Column::Percent => 4,
                Column::Held => 13,
                _ => 0,
            };
            let head = column.head().width();
            cells.max().unwrap_or(0).max(head).max(least)
        };
        let longest = accounts
            .iter()
            .map(|it| pen.placed(it.name()).width())
            .max();
        let longest = longest.unwrap_or(0).clamp(NARROWEST_NAME, WIDEST_NAME);
        let mut plan = Self {
            name: NARROWEST_NAME,
            bar: 0,
            columns: Vec::new(),
        };
        let mut left = width.saturating_sub(NARROWEST_NAME);
        for (number, column) in WORTH.into_iter().enumerate() {
            if number == BEFORE_BAR && left >= NARROWEST_BAR + GAP {
                plan.bar = NARROWEST_BAR;
                left -= NARROWEST_BAR + GAP;
            }
            let needed = widest(column) + GAP;
            if needed > left {
                break;
            }
            left -= needed;
            plan.columns.push((column, widest(column)));
        }
        let more = left.min(longest - NARROWEST_NAME);
        plan.name += more;
        left -= more;
        if plan.bar > 0 {
            plan.bar += left.min(WIDEST_BAR - NARROWEST_BAR);
        }
        plan
    }
}

/// Draws the table; how many accounts there is room for.
pub(super) fn draw(top: &Top, pen: Pen, rest: &mut Rest<'_>) -> usize {
    let shown = top.shown();
    let plan = Plan::new(&shown, pen, rest.width());
    let mut head = format!("{:<name$}", "ACCOUNT", name = plan.name);
    for (column, width) in &plan.columns {
        head.push_str(&format!("{:GAP$}{:>width$}", "", column.head()));
        if *column == Column::Held && plan.bar > 0 {
            head.push_str(&" ".repeat(GAP + plan.bar));
        }
    }
    rest.head(&head, heading());
    if shown.is_empty() && top.machine().is_some() {
        let text = if top.filter().is_empty() {
            "no user that you may see has a limit"
        } else {
            "nobody is called so"
        };
        rest.say(text, Style::new());
    }
    let fitting = usize::from(rest.left.height);
    let position = top.position(&shown);
    // The chosen one is always seen; as much as can be of those before it.
    let first = (position + 1).saturating_sub(fitting);
    for (index, account) in shown.iter().enumerate().skip(first).take(fitting) {
        let mut base = Style::new();
        if top.lost().is_some() {
            base = base.add_modifier(Modifier::DIM);
        }
        if index == position {
            base = base.add_modifier(Modifier::REVERSED);
        }
        line(account, &plan, pen, base, rest);
    }
    fitting
}

fn line(account: &Account, plan: &Plan, pen: Pen, base: Style, rest: &mut Rest<'_>) {
    let row = account.memory();
    let (y, width) = (rest.left.y, rest.width());
    rest.head("", base);
    let mut x = 0;
    let mut put = |text: &str, align_right: Option<usize>, style: Style| {
        let start = align_right.map_or(x, |columns| x + columns.saturating_sub(text.width()));
        if let Ok(column) = u16::try_from(start)
            && start < width
        {
            let at = rest.left.x.saturating_add(column);
            rest.buffer
                .set_stringn(at, y, text, width - start, base.patch(style));
        }
        x += align_right.unwrap_or_else(|| text.width()) + GAP;
    };
    let name = fitted(&pen.placed(account.name()), plan.name, pen);
    put(&name, None, Style::new());
    for (column, columns) in &plan.columns {
        let style = pen.style(column.tone(account, &row));
        put(&column.cell(account), Some(*columns), style);
        if *column == Column::Held && plan.bar > 0 {
            let bar = ladder(&row, plan.bar, pen.charset);
            put(
                &format!("{bar:<width$}", width = plan.bar),
                None,
                pen.style(tone(&row)),
            );
        }
    }
}

/// `text` in exactly so many columns; says so where it was cut.
fn fitted(text: &str, columns: usize, pen: Pen) -> String {
    let mut fitted = text.to_owned();
    if text.width() > columns {
        fitted = longest_start(text, columns.saturating_sub(1)).to_owned();
        fitted.push_str(pen.charset.ellipsis());
    }
    let blanks = columns.saturating_sub(fitted.width());
    fitted + &" ".repeat(blanks)
}
