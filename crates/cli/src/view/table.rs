// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cells in columns.

use unicode_width::UnicodeWidthStr;

use crate::style::{Style, Tone};
use crate::view::paragraph::longest_start;

/// A table in the making.
#[derive(Debug)]
pub(crate) struct Table {
    aligns: Vec<Align>,
    rows: Vec<Vec<Cell>>,
}

/// On which side of its column a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// One cell; its text has passed [`Style::shown`].
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    tone: Option<Tone>,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            tone: None,
        }
    }

    pub(crate) fn toned(text: impl Into<String>, tone: Option<Tone>) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

impl Table {
    /// Columns with these heads.
    pub(crate) fn new(heads: &[(&str, Align)]) -> Self {
        let first = heads.iter().map(|(head, _)| Cell::new(*head)).collect();
        Self {
            aligns: heads.iter().map(|(_, align)| *align).collect(),
            rows: vec![first],
        }
    }

    /// Another row, one cell a column.
    pub(crate) fn push(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths = vec![0; self.aligns.len()];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        widths
    }

    /// Columns of a terminal it needs, with `gap` blanks between its own.
    pub(crate) fn width(&self, gap: usize) -> usize {
        let gaps = gap.saturating_mul(self.aligns.len().saturating_sub(1));
        self.widths()
            .iter()
            .fold(gaps, |sum, width| sum.saturating_add(*width))
    }

    /// The lines.
    pub(crate) fn lines(&self, gap: usize, style: &Style) -> String {
        self.indented_lines(0, gap, style)
    }

    /// The lines, each after `indent` blanks.
    pub(crate) fn indented_lines(&self, indent: usize, gap: usize, style: &Style) -> String {
        let widths = self.widths();
        let blanks = " ".repeat(indent);
        let mut text = String::new();
        for row in &self.rows {
            let columns = row.iter().zip(&self.aligns).zip(&widths);
            let cells = columns.map(|((cell, align), width)| cell.placed(*align, *width, style));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(gap));
            text.push_str(format!("{blanks}{line}").trim_end());
            text.push('\n');
        }
        text
    }
}

impl Cell {
    fn placed(&self, align: Align, width: usize, style: &Style) -> String {
        let blanks = " ".repeat(width.saturating_sub(self.text.width()));
        let text = style.toned(self.tone, &self.text);
        match align {
            Align::Left => text + &blanks,
            Align::Right => blanks + &text,
        }
    }
}

/// `text` in at most `columns` columns; says so where it was cut.
pub(crate) fn cut(text: &str, columns: usize, style: &Style) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    format!(
        "{}{}",
        longest_start(text, columns.saturating_sub(1)),
        style.charset.ellipsis()
    )
}
