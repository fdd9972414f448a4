// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files and functions that can be read at once, and BPF programs where their attach points are looked for.

use crate::tree::{Source, sources};

const MOST_LINES: usize = 500;
const MOST_LINES_OF_FUNCTION: usize = 80;

/// Files that are longer, outside tests, and why.
const LONG_FILES: [(&str, &str); 3] = [
    (
        "crates/kernel/src/bpf/beancounters/beancounters.bpf.c",
        "the programs of one object, row by row",
    ),
    (
        "crates/kernel/src/bpf/gate/gate.bpf.c",
        "the programs of one object, and what each decides",
    ),
    (
        "crates/kernel/src/bpf/include/abi.h",
        "the contract with the user half, in one place",
    ),
];

/// Functions that are longer, and why.
const LONG_FUNCTIONS: [(&str, &str, &str); 29] = [
    (
        "bench/src/run.rs",
        "run",
        "one line a table: the order of the benchmarks",
    ),
    (
        "bench/src/show/sections.rs",
        "sections",
        "one line a section of the page",
    ),
    (
        "crates/cli/src/command/faults/watch.rs",
        "run",
        "one loop: look, show, wait, and each way to end",
    ),
    (
        "crates/config/src/consistency.rs",
        "wrongs_of",
        "one block a rule",
    ),
    (
        "crates/config/src/consistency.rs",
        "wrongs_of_all",
        "one block a rule",
    ),
    (
        "crates/config/src/limits.rs",
        "entry",
        "one arm a key of a limit",
    ),
    (
        "crates/daemon/src/fact.rs",
        "from_kernel_event",
        "one arm a kind of event",
    ),
    (
        "crates/daemon/src/requests/beancounters.rs",
        "show",
        "one field a line of the reply",
    ),
    (
        "crates/daemon/src/service.rs",
        "event_loop",
        "one registration a source of events",
    ),
    (
        "crates/faults/src/held.rs",
        "start",
        "steps of a start, each undone by the next one's failure",
    ),
    (
        "crates/faults/src/watcher.rs",
        "start",
        "steps of a start, each undone by the next one's failure",
    ),
    (
        "crates/kernel/src/bpf/ledger/calls.bpf.h",
        "open_for",
        "one critical section: the slot is claimed, filled and published",
    ),
    (
        "crates/kernel/src/load.rs",
        "load_into",
        "steps of a start: each object needs the maps of the one before",
    ),
    (
        "crates/ledger-model/src/adversary.rs",
        "act",
        "one arm a move",
    ),
    (
        "crates/ledger-model/src/ledger.rs",
        "decide",
        "mirrors decide() of victim.bpf.h line by line",
    ),
    (
        "crates/policy/src/watermarks/stock.rs",
        "decide",
        "one decision: each branch with its reason",
    ),
    (
        "e2e/src/bin/faulter.rs",
        "main",
        "one arm a word of its command line",
    ),
    (
        "e2e/src/bin/flooder.rs",
        "main",
        "one arm a word of its command line",
    ),
    (
        "e2e/src/bin/grower.rs",
        "perform",
        "one arm a word of its command line",
    ),
    (
        "e2e/src/bin/hog.rs",
        "perform",
        "one arm a word of its command line",
    ),
    (
        "e2e/src/bin/hog/tricks.rs",
        "perform_trick",
        "one arm a trick",
    ),
    (
        "e2e/src/stories/beancounters.rs",
        "floods",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/beancounters.rs",
        "fork_bomb",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/entered.rs",
        "bills",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/innocent.rs",
        "merged",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/package.rs",
        "contents",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/package.rs",
        "life",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/rlimit_gate.rs",
        "signals",
        "a story, told from its beginning to its end",
    ),
    (
        "e2e/src/stories/survival.rs",
        "replaced",
        "a story, told from its beginning to its end",
    ),
];

/// A function's name and its number of lines.
type Function = (String, usize);

/// Functions of rustfmt's layout: a signature, and the closing brace in the column where it began.
fn functions_of_rust(lines: &[&str]) -> Vec<Function> {
    let mut functions = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, rest)) = code.split_once("fn ") else {
            continue;
        };
        let words = [
            "pub",
            "const",
            "async",
            "unsafe",
            "extern",
            "\"C\"",
            "\"C-unwind\"",
        ];
        let is_signature = before
            .split_whitespace()
            .all(|it| words.contains(&it) || it.starts_with("pub(") || it.ends_with(')'));
        if !is_signature {
            continue;
        }
        let name = rest
            .split(|it: char| !it.is_alphanumeric() && it != '_')
            .next()
            .unwrap();
        let indent = &line[..line.len() - code.len()];
        let end = lines[at..].iter().position(|it| {
            let same = it
                .strip_prefix(indent)
                .is_some_and(|it| !it.starts_with(' '));
            same && (it.ends_with('}') || it.ends_with(';'))
        });
        functions.extend(end.map(|length| (name.to_owned(), length + 1)));
    }
    functions
}

/// Functions of the kernel's style: a brace in the first column, or at the end of a line that begins there.
fn functions_of_c(lines: &[&str]) -> Vec<Function> {
    let mut functions = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, it)| **it == "{") {
        let begin = lines[..at]
            .iter()
            .rposition(|it| it.is_empty() || *it == "}" || it.ends_with("*/"));
        let signature = lines[begin.map_or(0, |it| it + 1)..at].join(" ");
        let before = signature.rsplit_once('(').map_or("", |it| it.0);
        let before = if signature.contains("BPF_PROG(") {
            &signature
        } else {
            before
        };
        let name = before
            .rsplit(|it: char| !it.is_alphanumeric() && it != '_')
            .find(|it| !it.is_empty());
        let length = lines[at..].iter().position(|it| *it == "}").unwrap();
        functions.push((name.unwrap_or("?").to_owned(), length + 2));
    }
    functions
}

fn functions(source: &Source) -> Vec<Function> {
    let lines = source.lines_outside_tests();
    match source.is_rust() {
        true => functions_of_rust(&lines),
        false => functions_of_c(&lines),
    }
}

#[test]
fn files_are_read_at_once() {
    let mut wrongs = Vec::new();
    let sources = sources();
    // The kernel half's own tests are tests, too.
    let is_test = |it: &&Source| it.is_test() || it.path.contains("/bpf/selftest/");
    for source in sources.iter().filter(|it| !is_test(it)) {
        let count = source.lines_outside_tests().len();
        let is_listed = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        if (count > MOST_LINES) != is_listed {
            wrongs.push(format!(
                "{} has {count} lines (listed: {is_listed})",
                source.path
            ));
        }
    }
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}

#[test]
fn functions_are_read_at_once() {
    let mut wrongs = Vec::new();
    let mut count = 0_usize;
    let mut listed = LONG_FUNCTIONS.to_vec();
    for source in sources().iter().filter(|it| !it.path.contains("/tests/")) {
        for (name, length) in functions(source) {
            count += 1;
            if length <= MOST_LINES_OF_FUNCTION {
                continue;
            }
            match listed
                .iter()
                .position(|it| it.0 == source.path && it.1 == name)
            {
                Some(at) => drop(listed.swap_remove(at)),
                None => wrongs.push(format!("{}: {name} has {length} lines", source.path)),
            }
        }
    }
    assert!(count > 3000, "only {count} functions found");
    assert!(wrongs.is_empty(), "{wrongs:#?}");
    assert!(listed.is_empty(), "not long any more: {listed:#?}");
}

#[test]
fn bpf_programs_stand_in_c_files() {
    let mut wrongs = Vec::new();
    for source in sources().iter().filter(|it| it.extension() == "h") {
        for (at, line) in source.text.lines().enumerate() {
            let section = line.trim_start().strip_prefix("SEC(\"");
            // Maps and the licence are no programs.
            let is_program =
                section.is_some_and(|it| !it.starts_with('.') && !it.starts_with("license"));
            if is_program {
                wrongs.push(format!("{}:{}: {line}", source.path, at + 1));
            }
        }
    }
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}

#[test]
fn functions_are_found() {
    let rust = [
        "fn a() {",
        "    b();",
        "}",
        "    pub(crate) const fn c(",
        "        d: u8,",
        "    ) -> u8;",
    ];
    assert_eq!(
        functions_of_rust(&rust),
        [("a".to_owned(), 3), ("c".to_owned(), 3)]
    );
    let c = [
        "static int a(int b)",
        "{",
        "\treturn b;",
        "}",
        "",
        "int c(int d,",
        "      int e)",
        "{",
        "}",
    ];
    assert_eq!(
        functions_of_c(&c),
        [("a".to_owned(), 4), ("c".to_owned(), 3)]
    );
}
