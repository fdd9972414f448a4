// SPDX-License-Identifier: Apache-2.0 OR MIT
//! held of limit as a bar, the notice level marked.

use bursar_model::{Bytes, Row};

use crate::{Charset, Tone};

/// A bar of `cells` columns; blank where there is no limit.
#[must_use]
pub fn bar(row: &Row, cells: usize, charset: Charset) -> String {
    drawn(row, cells, charset, &[(row.notice, charset.mark())])
}

/// The same with the barrier marked too, unless it falls on the notice level's mark.
#[must_use]
pub fn ladder(row: &Row, cells: usize, charset: Charset) -> String {
    let marks = [
        (row.notice, charset.mark()),
        (row.barrier, charset.second_mark()),
    ];
    drawn(row, cells, charset, &marks)
}

fn drawn(row: &Row, cells: usize, charset: Charset, marks: &[(Option<Bytes>, char)]) -> String {
    let Some(limit) = row.limit else {
        return String::new();
    };
    let filled = eighths(row.held, limit, cells);
    let is_at = |bound: Option<Bytes>, index| {
        bound.is_some_and(|bound| cell_of(bound, limit, cells) == index)
    };
    let cell = |index: usize| {
        let mark = marks.iter().find(|(bound, _)| is_at(*bound, index));
        mark.map_or_else(
            || charset.block(filled.saturating_sub(index.saturating_mul(8)).min(8)),
            |(_, mark)| *mark,
        )
    };
    (0..cells).map(cell).collect()
}

/// How near the bounds it is: over the notice level a warning, over the barrier bad.
#[must_use]
pub fn tone(row: &Row) -> Option<Tone> {
    let is_over = |bound: Option<Bytes>| bound.is_some_and(|bound| row.held > bound);
    if is_over(row.limit) || is_over(row.barrier) {
        Some(Tone::Bad)
    } else if is_over(row.notice) {
        Some(Tone::Warning)
    } else {
        row.limit.map(|_| Tone::Good)
    }
}

/// held of limit, `80%`; more than 999 is `>999%`.
#[must_use]
pub fn percent(row: &Row) -> String {
    let Some(limit) = row.limit else {
        return String::new();
    };
    match row.held.scaled(100, limit.get()).get() {
        // Nothing of nothing, not infinitely much of it.
        _ if row.held == Bytes::ZERO => "0%".into(),
        percent @ ..1000 => format!("{percent}%"),
        _ => ">999%".into(),
    }
}

fn eighths(part: Bytes, whole: Bytes, cells: usize) -> usize {
    if part == Bytes::ZERO {
        return 0;
    }
    let most = cells.saturating_mul(8);
    let share = part.scaled(most as u64, whole.get()).get();
    usize::try_from(share).unwrap_or(most).min(most)
}

fn cell_of(bound: Bytes, limit: Bytes, cells: usize) -> usize {
    let index = usize::try_from(bound.scaled(cells as u64, limit.get()).get()).unwrap_or(cells);
    index.min(cells.saturating_sub(1))
}

impl Charset {
    fn block(self, eighths: usize) -> char {
        const BLOCKS: [char; 9] = ['░', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
        match self {
            Self::Unicode => BLOCKS.get(eighths).copied().unwrap_or('█'),
            Self::Ascii if eighths >= 4 => '#',
            Self::Ascii => '.',
        }
    }

    const fn mark(self) -> char {
        match self {
            Self::Unicode => '│',
            Self::Ascii => '|',
        }
    }

    const fn second_mark(self) -> char {
        match self {
            Self::Unicode => '┃',
            Self::Ascii => '!',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(held: u64, notice: Option<u64>, limit: Option<u64>) -> Row {
        Row {
            held: Bytes::new(held),
            notice: notice.map(Bytes::new),
            limit: limit.map(Bytes::new),
            ..Row::default()
        }
    }

    #[test]
    fn bars_are_as_full_as_the_account() {
        let table = [
            (
                row(0, Some(90), Some(100)),
                "░░░░░░░░░│",
                ".........|",
                "0%",
            ),
            (
                row(46, Some(90), Some(100)),
                "████▌░░░░│",
                "#####....|",
                "46%",
            ),
            (
                row(95, Some(80), Some(100)),
                "████████│▌",
                "########|#",
                "95%",
            ),
            (
                row(100, None, Some(100)),
                "██████████",
                "##########",
                "100%",
            ),
            (
                row(5000, None, Some(100)),
                "██████████",
                "##########",
                ">999%",
            ),
            (row(0, Some(0), Some(0)), "░░░░░░░░░│", ".........|", "0%"),
            (
                row(1, Some(0), Some(0)),
                "█████████│",
                "#########|",
                ">999%",
            ),
            (
                row(u64::MAX, None, Some(u64::MAX)),
                "██████████",
                "##########",
                "100%",
            ),
            (row(5, Some(3), None), "", "", ""),
        ];
        for (row, unicode, ascii, share) in table {
            assert_eq!(bar(&row, 10, Charset::Unicode), unicode);
            assert_eq!(bar(&row, 10, Charset::Ascii), ascii);
            assert_eq!(percent(&row), share);
        }
    }
    #[test]
    fn a_ladder_has_the_barrier_too_where_there_is_room() {
        let row = Row {
            barrier: Some(Bytes::new(95)),
            ..row(50, Some(90), Some(100))
        };
        assert_eq!(ladder(&row, 20, Charset::Unicode), "██████████░░░░░░░░│┃");
        assert_eq!(ladder(&row, 20, Charset::Ascii), "##########........|!");
        assert_eq!(ladder(&row, 10, Charset::Ascii), "#####....|");
    }
}
