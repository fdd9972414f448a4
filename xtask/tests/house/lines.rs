// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of code of each crate, without blank lines and comments: printed, for whoever compares.

use std::collections::BTreeMap;

use crate::tree::{Source, sources};

/// Lines of code, without blank lines and comments.
fn code(lines: &[&str]) -> usize {
    let mut is_comment = false;
    lines
        .iter()
        .map(|it| it.trim())
        .filter(|line| {
            if is_comment {
                is_comment = !line.ends_with("*/");
                return false;
            }
            is_comment = line.starts_with("/*") && !line.contains("*/");
            let is_whole_comment = line.starts_with("/*") && (is_comment || line.ends_with("*/"));
            !(line.is_empty() || line.starts_with("//") || is_whole_comment)
        })
        .count()
}

/// The crate's folder.
fn folder(source: &Source) -> String {
    let parts = source.path.split('/');
    let count = if source.path.starts_with("crates/") {
        2
    } else {
        1
    };
    parts.take(count).collect::<Vec<_>>().join("/")
}

#[test]
fn lines_of_code_are_counted() {
    let mut counts: BTreeMap<String, [usize; 3]> = BTreeMap::new();
    for source in sources() {
        let all: Vec<&str> = source.text.lines().collect();
        let outside = if source.is_cargo_test() {
            Vec::new()
        } else {
            source.lines_outside_tests()
        };
        let [rust, c, tests] = counts.entry(folder(&source)).or_default();
        *if source.is_rust() { rust } else { c } += code(&outside);
        *tests += code(&all) - code(&outside);
    }
    println!("{:24}{:>8}{:>8}{:>8}", "crate", "Rust", "C", "tests");
    let mut sums = [0; 3];
    for (folder, each) in &counts {
        println!("{folder:24}{:>8}{:>8}{:>8}", each[0], each[1], each[2]);
        for (sum, it) in sums.iter_mut().zip(each) {
            *sum += it;
        }
    }
    println!("{:24}{:>8}{:>8}{:>8}", "sum", sums[0], sums[1], sums[2]);
    assert!(counts.len() > 20);
    assert_eq!(
        code(&[
            "a",
            "",
            " // b",
            "/* c",
            "d",
            "e */",
            "/* f */",
            "g /* h */"
        ]),
        2
    );
}
