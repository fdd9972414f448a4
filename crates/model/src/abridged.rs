// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists too long for a sentence.

use std::fmt::Display;

/// The first `most` of them, and how many more there are: `a, b, c and 2 more`. `None` where there are none.
pub fn abridged<T: Display>(
    all: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    most: usize,
) -> Option<String> {
    let all = all.into_iter();
    let more = all.len().saturating_sub(most);
    let first: Vec<String> = all.take(most).map(|it| it.to_string()).collect();
    let more = match more {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    (!first.is_empty()).then(|| format!("{}{more}", first.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_said_by_their_number() {
        assert_eq!(abridged(1..6, 3).as_deref(), Some("1, 2, 3 and 2 more"));
        assert_eq!(abridged(["a", "b"], 2).as_deref(), Some("a, b"));
        assert_eq!(abridged([0; 0], 3), None);
    }
}
