// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pattern of control groups as it is written: names with `*` and `?` in them.

use bursar_model::CgroupHierarchy;

/// A pattern: a hierarchy, names from its top on, and whether it means what is below the last one only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) hierarchy: CgroupHierarchy,
    pub(super) names: Vec<Vec<u8>>,
    pub(super) is_below: bool,
}

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        let (hierarchy, path) = CgroupHierarchy::of_pattern(text);
        let names = path.split('/').filter(|it| !it.is_empty());
        let mut names: Vec<Vec<u8>> = names.map(|it| it.as_bytes().to_vec()).collect();
        let is_below = names.last().is_some_and(|it| it == b"*");
        if is_below {
            names.pop();
        }
        Self {
            hierarchy,
            names,
            is_below,
        }
    }

    pub(super) fn matches(&self, names: &[&[u8]]) -> bool {
        let mut both = self.names.iter().zip(names);
        self.names.len() == names.len() && both.all(|(pattern, name)| is_like(pattern, name))
    }
}

/// `*` is any number of characters, `?` is one.
pub(super) fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at, of));
                at += 1;
            }
            Some(it) if *it == b'?' || Some(it) == name.get(of) => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((star, taken)) = retry else {
                    return false;
                };
                retry = Some((star, taken + 1));
                at = star + 1;
                of = taken + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|it| *it == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_are_within_a_name() {
        for (pattern, name, expected) in [
            ("job_*", "job_17", true),
            ("job_*", "job", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xaxxbx", true),
            ("*a*b", "ab-c", false),
            ("", "a", false),
        ] {
            assert_eq!(
                is_like(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
