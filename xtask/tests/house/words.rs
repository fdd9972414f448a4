// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that were names once and are the field's no more: as names of files, types, functions and threads.

use crate::tree::{Source, sources};

/// Names that are not used, and what stands in their place.
const FORMER: [(&str, &str); 66] = [
    ("steward", "Daemon, Accounts, Responder"),
    ("governor", "backend"),
    ("sentry", "ring_reader"),
    ("tidings", "RingEvent"),
    ("surveyor", "pss_scanner"),
    ("newcomer", "initial_scan"),
    ("auditor", "ledger_check"),
    ("lane", "scan_worker, rule_worker"),
    ("notebook", "scan_results"),
    ("leash", "stop_pipe"),
    ("heirs", "inherited"),
    ("chore", "task"),
    ("onlooker", "resource_scanner"),
    ("census", "pagemap_scan"),
    ("chores", "background"),
    ("desk", "queue"),
    ("office", "queue"),
    ("backlog", "pending"),
    ("company", "recipients"),
    ("roster", "limit_table"),
    ("prospect", "projection"),
    ("scope", "coverage"),
    ("lately", "recent"),
    ("last_known", "name_cache"),
    ("courtesy", "graceful"),
    ("executioner", "killer"),
    ("last_defence", "oom_score"),
    ("entering", "join"),
    ("ration", "rate_limit"),
    ("remembered", "cache"),
    ("door", "listener"),
    ("turns", "scheduler"),
    ("graves", "closer"),
    ("heads", "connection_count"),
    ("crowd", "admission"),
    ("crew", "pool"),
    ("mate", "worker"),
    ("pacer", "priority"),
    ("ticker", "preempt, timer"),
    ("beats", "interval"),
    ("bell", "waker"),
    ("clerk", "reporter"),
    ("scribe", "reporter"),
    ("hands", "unblock"),
    ("vigil", "monitor"),
    ("barred", "blocklist"),
    ("party", "owner"),
    ("courier", "abandonable_worker"),
    ("envoy", "timed_query"),
    ("overseer", "supervisor"),
    ("docket", "progress"),
    ("twin", "shared_mm"),
    ("seat", "cpu_slot"),
    ("books", "accounts"),
    ("predecessor", "previous"),
    ("last_words", "undelivered"),
    ("heir", "pi_mutex"),
    ("tester", "selftest"),
    ("superior", "subuid"),
    ("usher", "rlimit_gate"),
    ("keeper", "thread, or what it keeps"),
    ("originals", "saved"),
    ("household", "users"),
    ("spender", "alloc_client"),
    ("lingering", "unkillable"),
    ("fading", "draining"),
];

/// Former names of types and files that are ordinary as verbs: functions may be called so.
const FORMER_NOUNS: [(&str, &str); 7] = [
    ("told", "notified"),
    ("silent", "rows only"),
    ("room", "headroom"),
    ("places", "paths"),
    ("plain", "pod"),
    ("lead", "pool"),
    ("post", "heartbeat"),
];

/// The same, of BPF's files and types alone: elsewhere they are the field's.
const FORMER_IN_BPF: [(&str, &str); 7] = [
    ("bills", "beancounters"),
    ("blocks", "tmpfs gate"),
    ("watch", "copy-on-write tracking"),
    ("answer", "userns"),
    ("far", "probe_read"),
    ("ask", "event"),
    ("tell", "event"),
];

/// `CamelCase` as snake_case.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    let mut before = ' ';
    for it in name.chars() {
        if it.is_uppercase() && (before.is_lowercase() || before.is_numeric()) {
            snake.push('_');
        }
        snake.extend(it.to_lowercase());
        before = it;
    }
    snake
}

fn word_at(text: &str) -> &str {
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_');
    &text[..end.unwrap_or(text.len())]
}

/// What stands behind each of these in the text.
fn behind<'a>(text: &'a str, keys: &[&str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for key in keys {
        for (at, _) in text.match_indices(key) {
            let before = text[..at].chars().next_back();
            if before.is_none_or(|it| !it.is_alphanumeric() && it != '_') {
                names.push(word_at(&text[at + key.len()..]));
            }
        }
    }
    names
}

/// Names of the file and of its folders, of types, and of threads.
fn nouns(source: &Source) -> Vec<String> {
    let mut names: Vec<String> = source
        .path
        .split('/')
        .map(|it| it.split('.').next().unwrap().replace('-', "_"))
        .collect();
    let keys: &[&str] = match source.is_rust() {
        true => &[
            "struct ",
            "enum ",
            "trait ",
            "type ",
            "union ",
            "mod ",
            "thread::spawn(\"",
            "spawn_small(\"",
            "TimedQuery::new(\"",
            "timed_query(\"",
        ],
        false => &["struct ", "enum ", "union "],
    };
    let code: String = source
        .text
        .lines()
        .filter(|line| {
            !["//", "*", "/*"]
                .iter()
                .any(|it| line.trim_start().starts_with(it))
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    names.extend(behind(&code, keys).into_iter().map(snake));
    names
}

fn functions(source: &Source) -> Vec<String> {
    match source.is_rust() {
        true => behind(&source.text, &["fn "])
            .into_iter()
            .map(str::to_owned)
            .collect(),
        false => {
            let definitions = source
                .text
                .lines()
                .filter(|it| it.starts_with(|it: char| it.is_alphabetic()) && it.contains('('));
            let before = definitions.map(|it| it.split('(').next().unwrap());
            let names = before.map(|it| it.rsplit([' ', '*']).next().unwrap());
            names.map(str::to_owned).collect()
        }
    }
}

#[test]
fn names_are_the_fields() {
    let mut wrongs = Vec::new();
    // The list itself.
    for source in sources()
        .iter()
        .filter(|it| !it.path.contains("/tests/house/"))
    {
        let (nouns, functions) = (nouns(source), functions(source));
        let mut check = |names: &[String], words: &[(&str, &str)]| {
            for name in names {
                if let Some((_, instead)) = words.iter().find(|(word, _)| word == name) {
                    wrongs.push(format!("{}: {name} → {instead}", source.path));
                }
            }
        };
        check(&nouns, &FORMER);
        check(&functions, &FORMER);
        check(&nouns, &FORMER_NOUNS);
        if source.path.contains("/bpf/") {
            check(&nouns, &FORMER_IN_BPF);
        }
    }
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}

#[test]
fn a_former_name_is_found() {
    let source = Source {
        path: "crates/x/src/pacer.rs".to_owned(),
        text: "/// mod desk\npub struct PostBox;\nfn last_words() {}\nthread::spawn(\"crew\", x)\n"
            .to_owned(),
    };
    assert_eq!(
        nouns(&source)[3..],
        ["pacer".to_owned(), "post_box".to_owned(), "crew".to_owned()]
    );
    assert_eq!(functions(&source), ["last_words"]);
}
