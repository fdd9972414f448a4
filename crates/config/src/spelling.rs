// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which known word somebody meant.

/// The one of `known` that `written` is a slip of; `None` when none is close enough to be worth
/// proposing: one slip for each three characters.
pub fn nearest<'a>(written: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (written.chars().count() / 3).max(1);
    let close = known.filter_map(|word| {
        let slips = distance(written, word);
        (slips <= allowed).then_some((slips, word))
    });
    close.min_by_key(|&(slips, _)| slips).map(|(_, word)| word)
}

/// How many letters were added, left out, changed or swapped with their neighbour (optimal string
/// alignment). Long texts are not compared: no key is long.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().map(|c| c.to_ascii_lowercase()).collect();
    let right: Vec<char> = right.chars().map(|c| c.to_ascii_lowercase()).collect();
    if left.len().max(right.len()) > 64 {
        return usize::MAX;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, &from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, &to) in right.iter().enumerate() {
            let changed = last[column] + usize::from(from != to);
            let mut best = changed.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && from == right[column - 1] && left[row - 1] == to {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["trigger", "on_exit", "ledger.max_processes", "log.level"];
        let table = [
            ("triger", Some("trigger")),
            ("tirgger", Some("trigger")),
            ("Trigger", Some("trigger")),
            ("on-exit", Some("on_exit")),
            ("ledger.max_process", Some("ledger.max_processes")),
            ("log.lvl", Some("log.level")),
            ("colour", None),
            ("", None),
        ];
        for (written, meant) in table {
            assert_eq!(nearest(written, known.into_iter()), meant, "{written}");
        }
    }
}
