// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/reference/commands.md says what the program says.
//!
//! A block after `<!-- help: COMMAND -->` is the output of `bursar COMMAND -h`, one after
//! `<!-- example: NAME -->` the snapshot NAME of a view. After a change of either:
//! `BURSAR_UPDATE_MANUAL=1 cargo test -p bursar-cli --test manual`.

mod surroundings;

use std::fs;
use std::path::{Path, PathBuf};

use surroundings::bursar;

fn manual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md")
}

fn stdout(arguments: &[&str]) -> String {
    String::from_utf8(bursar().args(arguments).output().unwrap().stdout).unwrap()
}

fn help(command: &str) -> String {
    let words = command.split(' ').chain(["-h"]);
    stdout(&words.collect::<Vec<_>>())
}

/// What follows the head of a snapshot file.
fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/view/snapshots");
    let snapshot = fs::read_to_string(folder.join(format!("bursar__view__{name}.snap"))).unwrap();
    snapshot.splitn(3, "---\n").nth(2).unwrap().to_owned()
}

/// The manual as it should be.
fn right(manual: &str) -> String {
    let mut lines = manual.lines();
    let mut text = String::new();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(mark) = line
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let block = match mark.split_once(": ") {
            Some(("help", command)) => help(command),
            Some(("example", name)) => example(name),
            _ => panic!("{line}"),
        };
        assert_eq!(lines.next(), Some("```"), "{line}");
        lines.by_ref().find(|line| *line == "```").unwrap();
        text.push_str(&format!("```\n{}\n```\n", block.trim_end()));
    }
    text
}

#[test]
fn the_manual_shows_what_the_program_prints() {
    let written = fs::read_to_string(manual()).unwrap();
    let right = right(&written);
    if std::env::var_os("BURSAR_UPDATE_MANUAL").is_some() {
        fs::write(manual(), &right).unwrap();
        return;
    }
    assert!(
        written == right,
        "docs/reference/commands.md is not up to date: BURSAR_UPDATE_MANUAL=1 cargo test -p bursar-cli --test manual"
    );
}

fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => pages_below(&path, pages),
            false if path.extension().is_some_and(|it| it == "md") => pages.push(path),
            false => {}
        }
    }
}

/// The commands in blocks of code: what follows `bursar` at the beginning of a line, after a prompt or not.
fn written_commands(page: &str) -> Vec<&str> {
    let mut commands = Vec::new();
    let mut is_in_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_in_code = !is_in_code;
        }
        let line = match line.split_once("$ ") {
            Some((user, rest)) if user.chars().all(char::is_alphanumeric) => rest,
            _ => line.strip_prefix("# ").unwrap_or(line),
        };
        if let Some(command) = line
            .trim_start()
            .strip_prefix("bursar ")
            .filter(|_| is_in_code)
        {
            commands.push(command);
        }
    }
    commands
}

/// Tutorials and guides are copied into shells: each command and each of its options exists.
#[test]
fn commands_in_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    pages_below(&root.join("docs"), &mut pages);
    let mut count = 0;
    for path in pages {
        let page = fs::read_to_string(&path).unwrap();
        for written in written_commands(&page) {
            let ours = written.split(" -- ").next().unwrap();
            let ours = ours.split(['#', '|', '>']).next().unwrap();
            let words: Vec<&str> = ours.split_whitespace().collect();
            // A picture of a screen begins with the program's name as well.
            if words.get(1).is_some_and(|it| it.contains(':')) && words[0] == "top" {
                continue;
            }
            let command = match words.as_slice() {
                [first @ ("limit" | "watermarks" | "faults"), second, ..] => {
                    format!("{first} {second}")
                }
                [first, ..] => (*first).to_owned(),
                [] => panic!("{}: {written}", path.display()),
            };
            let help = help(&command);
            assert!(
                help.contains("Usage: bursar"),
                "{}: {written}",
                path.display()
            );
            for option in words.iter().filter(|it| it.starts_with("--")) {
                let option = option.split('=').next().unwrap();
                assert!(
                    help.split_whitespace()
                        .any(|it| it.trim_end_matches(',') == option),
                    "{}: {option} of {written}",
                    path.display()
                );
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands");
}

#[test]
fn the_manual_has_every_command() {
    let written = fs::read_to_string(manual()).unwrap();
    let help = stdout(&["-h"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names: Vec<&str> = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert!(written.contains(&format!("\n## bursar {name}")), "{name}");
    }
}
