// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The documents of the repository: sentences that can be read at once, the words of docs and GLOSSARY.md,
//! links that lead somewhere, pages that end.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A sentence has at most so many words, outside tables and code.
const LONGEST_SENTENCE: usize = 35;

/// What is not written: the column "instead of" of the house's table, and names that code and pages once had
/// for what has a name of its own.
const NOT_WRITTEN: [&str; 31] = [
    "whom",
    "by way of",
    "is told of",
    "such as are",
    "of whom nobody knows",
    "nobody knows whose",
    "sees to it",
    "rehearse",
    "rehearses",
    "rehearsal",
    "for itself: counted twice",
    "steward",
    "sentry",
    "tidings",
    "surveyor",
    "newcomer",
    "auditor",
    "onlooker",
    "census",
    "chores",
    "courtesy",
    "executioner",
    "crew",
    "clerk",
    "scribe",
    "envoy",
    "overseer",
    "docket",
    "heir",
    "household",
    "spender",
];

/// Pages that must stay short enough to be read from the first word to the last.
const MOST_WORDS: [(&str, usize); 2] = [("README.md", 1000), ("ARCHITECTURE.md", 2500)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_below(&path, pages);
        } else if path.extension().is_some_and(|it| it == "md") {
            pages.push(path);
        }
    }
}

/// Their paths in the repository, and what is in them. CHANGELOG.md is a list of what was, as it was said then.
fn pages() -> BTreeMap<String, String> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "GLOSSARY.md",
        "SECURITY.md",
        "dist/README.md",
    ]
    .iter()
    .map(|it| root().join(it))
    .collect();
    pages_below(&root().join("docs"), &mut paths);
    paths
        .iter()
        .map(|path| {
            let name = path.strip_prefix(root()).unwrap();
            (
                name.display().to_string(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect()
}

fn events(page: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter()
}

fn line(page: &str, offset: usize) -> usize {
    page.bytes().take(offset).filter(|it| *it == b'\n').count() + 1
}

/// A piece of text that stands by itself: a paragraph, an item of a list, a cell of a table, a heading.
struct Block {
    line: usize,
    text: String,
    is_cell: bool,
}

/// Without blocks of code. A piece of code among words is one word.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut block = Block {
        line: 1,
        text: String::new(),
        is_cell: false,
    };
    let mut is_in_code = false;
    for (event, at) in events(page) {
        let (is_border, is_cell) = match &event {
            Event::Start(Tag::CodeBlock(_)) => {
                is_in_code = true;
                (true, false)
            }
            Event::End(TagEnd::CodeBlock) => {
                is_in_code = false;
                (true, false)
            }
            Event::Start(Tag::TableCell) => (true, true),
            Event::Start(Tag::Paragraph | Tag::Item | Tag::Heading { .. } | Tag::BlockQuote(_))
            | Event::End(
                TagEnd::Paragraph
                | TagEnd::Item
                | TagEnd::Heading(_)
                | TagEnd::BlockQuote(_)
                | TagEnd::TableCell,
            ) => (true, false),
            _ => (false, false),
        };
        if is_border {
            let next = Block {
                line: line(page, at.start),
                text: String::new(),
                is_cell,
            };
            blocks.push(std::mem::replace(&mut block, next));
        }
        match event {
            Event::Text(text) if !is_in_code => block.text.push_str(&text),
            Event::Code(_) => block.text.push_str("code"),
            Event::SoftBreak | Event::HardBreak => block.text.push(' '),
            _ => {}
        }
    }
    blocks.push(block);
    blocks.retain(|it| !it.text.trim().is_empty());
    blocks
}

fn words(text: &str) -> usize {
    text.split_whitespace()
        .filter(|it| it.chars().any(char::is_alphanumeric))
        .count()
}

/// Ended by a full stop, a question mark or an exclamation mark before white space.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut begin = 0;
    let mut is_over = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '.' | '!' | '?' => is_over = true,
            ')' | '"' | '”' => {}
            _ if letter.is_whitespace() && is_over => {
                sentences.push(&text[begin..at]);
                begin = at;
                is_over = false;
            }
            _ => is_over = false,
        }
    }
    sentences.push(&text[begin..]);
    sentences
}

fn unreadable(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in blocks(page) {
        let line = block.line;
        for sentence in sentences(&block.text)
            .into_iter()
            .filter(|_| !block.is_cell)
        {
            let words = words(sentence);
            if words > LONGEST_SENTENCE {
                found.push(format!("{line}: {words} words: {}", sentence.trim()));
            }
        }
        let text = block.text.to_lowercase();
        let letters = text.replace(|it: char| !it.is_alphanumeric(), " ");
        for word in NOT_WRITTEN {
            let alone = format!(" {} ", word.replace(|it: char| !it.is_alphanumeric(), " "));
            if format!(" {letters} ").contains(&alone) {
                found.push(format!("{line}: \"{word}\": {}", block.text));
            }
        }
    }
    found
}

#[test]
fn sentences_are_short_and_words_are_the_fields() {
    let wrong: Vec<String> = pages()
        .iter()
        .flat_map(|(name, page)| {
            unreadable(page)
                .into_iter()
                .map(move |it| format!("{name}:{it}"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn a_long_sentence_and_a_word_of_the_list_are_found_wherever_they_stand() {
    let long = "word ".repeat(36);
    let short = "Word ".repeat(35);
    for page in [
        format!("{long}."),
        format!("# A\n\n- item\n- {long}\n"),
        format!("1. a. {long}\n\n   b"),
        "| a |\n|---|\n| by way of |\n".to_owned(),
        "To *whom*, said `code`.".to_owned(),
    ] {
        assert_eq!(unreadable(&page).len(), 1, "{page}");
    }
    for page in [
        format!("{short}. {short}! ({short}.) {short}"),
        format!("```\n{long}\n```\n"),
        format!("| a |\n|---|\n| {long} |\n"),
        format!("- {short}\n- {short}\n"),
        "The `crew whom`, whomever.".to_owned(),
    ] {
        assert_eq!(unreadable(&page), Vec::<String>::new(), "{page}");
    }
}

#[test]
fn the_first_pages_end() {
    let pages = pages();
    for (name, most) in MOST_WORDS {
        let count: usize = blocks(&pages[name]).iter().map(|it| words(&it.text)).sum();
        assert!(
            count <= most,
            "{name} has {count} words, at most {most} are read"
        );
    }
}

/// They belong to docs/design, beside the figures that they measure.
#[test]
fn users_pages_name_no_tests() {
    for (name, page) in pages() {
        let is_for_users = ["tutorial/", "howto/", "reference/", "explanation/"]
            .iter()
            .any(|it| name.starts_with(&format!("docs/{it}")));
        for (event, at) in events(&page).filter(|_| is_for_users) {
            if let Event::Code(code) = event {
                let at = line(&page, at.start);
                assert!(!code.starts_with("stories "), "{name}:{at}: {code}");
            }
        }
    }
}

/// What `#…` a heading can be reached by, as GitHub and mdBook make it.
fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut heading: Option<String> = None;
    for (event, _) in events(page) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let text = heading.take().unwrap_or_default().to_lowercase();
                let anchor: String = text
                    .chars()
                    .filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'))
                    .map(|it| if it == ' ' { '-' } else { it })
                    .collect();
                let same = anchors.iter().filter(|it| **it == anchor).count();
                anchors.push(match same {
                    0 => anchor,
                    again => format!("{anchor}-{again}"),
                });
            }
            _ => {}
        }
    }
    anchors
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let mut wrong = String::new();
    let mut count = 0;
    for (name, page) in &pages {
        for (event, at) in events(page) {
            let (Event::Start(Tag::Link { dest_url, .. })
            | Event::Start(Tag::Image { dest_url, .. })) = event
            else {
                continue;
            };
            if dest_url.contains("://") || dest_url.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (path, anchor) = dest_url.split_once('#').unwrap_or((&dest_url, ""));
            let target = match path {
                "" => root().join(name),
                path => root().join(name).with_file_name("").join(path),
            };
            let leads = target.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&target)
                        .is_ok_and(|it| anchors(&it).iter().any(|it| it == anchor)));
            if !leads {
                wrong.push_str(&format!("{name}:{}: {dest_url}\n", line(page, at.start)));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(count > 100, "{count} links");
}

/// They are typed in a guest with Debian as they are written: `xtask debian run --suite trixie readme`.
#[test]
fn readmes_commands_are_played() {
    let page = &pages()["README.md"];
    let scenario = fs::read_to_string(root().join("xtask/scenarios/readme.txt")).unwrap();
    let block = page.split("```").nth(3).unwrap();
    let commands = block.lines().map(|it| it.split('#').next().unwrap().trim());
    let ours: Vec<&str> = commands.filter(|it| it.starts_with("bursar ")).collect();
    let missing: Vec<&&str> = ours.iter().filter(|it| !scenario.contains(**it)).collect();
    assert!(
        ours.len() > 6 && missing.is_empty(),
        "{ours:?}: {missing:?} are not played"
    );
}
