// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `limits.toml` read: what it means, what is refused and with which words, what `bursar check` says.

mod written;

use std::path::Path;

use bursar_config::{ConfigError, Limits, Severity, check};
use bursar_model::Bytes;
use proptest::prelude::*;
use written::{parse, spec, who};

fn errors(text: &str) -> Vec<String> {
    match Limits::parse(text, Path::new("/l.toml")).unwrap_err() {
        ConfigError::Invalid(findings) => findings.iter().map(ToString::to_string).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_form_of_an_entry_is_read_with_its_line() {
    let limits = parse(
        r#"# the lab
[limits]
alice = { memory = "512M" } # short
"@students" = { memory = { limit = "2G", notice = "80%", barrier = "95%" } }
"=render" = { memory = 34359738368 }
default = { memory = "25%" }
1000.memory = "1G"
carol.memory.limit = "none"
carol.memory.notice = "4G"

[limits.bob]
memory = "1G"

[limits.dave.memory]
limit = "3G"
"#,
    );
    let table = [
        ("alice", spec("512M", None, None), 3),
        ("@students", spec("2G", Some("80%"), Some("95%")), 4),
        ("=render", spec("32G", None, None), 5),
        ("default", spec("25%", None, None), 6),
        ("1000", spec("1G", None, None), 7),
        ("carol", spec("none", Some("4G"), None), 8),
        ("bob", spec("1G", None, None), 11),
        ("dave", spec("3G", None, None), 14),
    ];
    assert_eq!(limits.len(), table.len());
    for (name, memory, line) in table {
        let limit = limits.get(&who(name)).unwrap();
        assert_eq!((limit.memory, limit.line), (Some(memory), line), "{name}");
    }
}

#[test]
fn a_file_that_limits_nobody_is_fine() {
    for text in [
        "",
        "\n# nothing yet\n",
        "[limits]\n",
        "limits = {}\n",
        "\u{feff}[limits]\n",
    ] {
        assert!(parse(text).is_empty(), "{text:?}");
    }
}

#[test]
fn no_file_is_none_and_not_an_error() {
    assert!(
        Limits::load(Path::new("/nonexistent/limits.toml"))
            .unwrap()
            .is_none()
    );
}

#[test]
fn what_is_wrong_is_refused_with_its_place_and_a_remedy() {
    let table = [
        (
            "alice = { memory = \"512Q\" }",
            "/l.toml:2: limits.alice.memory: \"512Q\" is not a valid size; write bytes with K, M, G or T (512M), a percentage (25%) or none",
        ),
        (
            "alice = { memory = -1 }",
            "/l.toml:2: limits.alice.memory: \"-1\" is negative; write 0 or more",
        ),
        (
            "alice = { memory = \"17E\" }",
            "/l.toml:2: limits.alice.memory: \"17E\" is too large; the largest size is 16E minus one byte, the largest share 10000%",
        ),
        (
            "alice = { memory = 1.5 }",
            "/l.toml:2: limits.alice.memory: is a float, not a size; write bytes with K, M, G or T (512M), a percentage (25%) or none",
        ),
        (
            "alice = { memory = \"\" }",
            "/l.toml:2: limits.alice.memory: is empty; write bytes with K, M, G or T (512M), a percentage (25%) or none",
        ),
        (
            "alice = \"512M\"",
            "/l.toml:2: limits.alice: is a string, not a table; write alice = { memory = \"512M\" }",
        ),
        (
            "alice = {}",
            "/l.toml:2: limits.alice: limits nothing; write alice = { memory = \"512M\" } or remove it",
        ),
        (
            "\n[limits.alice]\nmemori = \"512M\"",
            "/l.toml:4: limits.alice.memori: is not a resource; did you mean memory?",
        ),
        (
            "[limits.alice.memory]\nlimit = \"1G\"\n\nnotise = \"90%\"",
            "/l.toml:5: limits.alice.memory.notise: is not a bound; did you mean notice?",
        ),
        (
            "alice = { memory = { notice = \"90%\" } }",
            "/l.toml:2: limits.alice.memory: has no limit; write limit = \"512M\", or limit = \"none\" for a notice or barrier alone",
        ),
        (
            "alice = { memory = { limit = \"1G\", notice = true } }",
            "/l.toml:2: limits.alice.memory.notice: is a boolean, not a size; write bytes with K, M, G or T (512M), a percentage (25%) or none",
        ),
        (
            "alice = { memory = { limit = \"25%\", notice = \"96%\", barrier = \"95%\" } }",
            "/l.toml:2: limits.alice.memory: the notice (96%) lies above the barrier (95%); lower it or raise the barrier",
        ),
        (
            "alice = { memory = { limit = \"none\", notice = \"96%\" } }",
            "/l.toml:2: limits.alice.memory: the notice is a percentage of the limit, but the limit is none; give it as a size",
        ),
        (
            "\"a/b\" = { memory = \"1G\" }",
            "/l.toml:2: limits.a/b: \"a/b\" names nobody; write a user name, a uid, @group, =name or default",
        ),
        (
            "\"a\\u001b[2J\" = { memory = \"1G\" }",
            "/l.toml:2: limits.a\\x1b[2J: \"a\\u{1b}[2J\" names nobody; write a user name, a uid, @group, =name or default",
        ),
        (
            "4294967295 = { memory = \"1G\" }",
            "/l.toml:2: limits.4294967295: 4294967295 is not a valid uid; uids are 0 to 4294967294",
        ),
        (
            "\"\" = { memory = \"1G\" }",
            "/l.toml:2: limits.: nobody is named; write a user name, a uid, @group, =name or default",
        ),
        (
            "1000 = { memory = \"1G\" }\n\n01000 = { memory = \"2G\" }",
            "/l.toml:4: limits.01000: 1000 stands in line 2 already; remove one of the two",
        ),
        (
            "1000 = { memory = \"1G\" }\nbob = { memory = \"1G\" }\n\"1000\" = { memory = \"2G\" }",
            "/l.toml:4: 1000: stands in line 2 already; remove one of the two",
        ),
        (
            "alice = { memory = \"1G\" }\n[limits.alice]\nmemory = \"2G\"",
            "/l.toml:3: alice: stands in line 2 already; remove one of the two",
        ),
        (
            "[[limits.alice]]\nmemory = \"2G\"",
            "/l.toml:2: limits.alice: is an array of tables, not a table; write alice = { memory = \"512M\" }",
        ),
        (
            "alice = { numproc = \"3:2\" }",
            "/l.toml:2: limits.alice.numproc: the barrier (3) lies above the limit (2); lower it or raise the limit",
        ),
        (
            "alice = { numfile = \"1K\" }",
            "/l.toml:2: limits.alice.numfile: \"1K\" has a unit, but these are counted in pieces; write a bare number",
        ),
        (
            "alice = { numfile = true }",
            "/l.toml:2: limits.alice.numfile: is a boolean, not a pair of bounds; write numfile = \"200:220\"",
        ),
        (
            "alice = { frobs = 5 }",
            "/l.toml:2: limits.alice.frobs: is not a resource; write memory, or a beancounter (docs/explanation/beancounters.md)",
        ),
        (
            "[limit]\nalice = 1",
            "/l.toml:2: limit: is unknown; put the line [limits] above it ([temporary] for entries with an end); only force = true stands before both",
        ),
    ];
    for (text, error) in table {
        assert_eq!(errors(&format!("[limits]\n{text}\n")), [error], "{text}");
    }
    assert_eq!(
        errors("alice = { memory = \"1G\" }"),
        [
            "/l.toml:1: alice: is unknown; put the line [limits] above it ([temporary] for entries with an end); only force = true stands before both"
        ]
    );
    assert_eq!(
        errors("limits = 5"),
        ["/l.toml:1: limits: is an integer, not a table; write [limits]"]
    );
}

#[test]
fn a_file_cut_in_the_middle_of_a_line_is_refused() {
    let whole = "[limits]\nalice = { memory = \"512M\" }\nbob = { memory = \"1G\" }\n";
    let second_line = whole.find("bob").unwrap();
    for end in second_line + 1..whole.len() - 1 {
        assert!(
            Limits::parse(&whole[..end], Path::new("/l.toml")).is_err(),
            "{:?}",
            &whole[..end]
        );
    }
}

#[test]
fn all_that_is_wrong_is_found_at_once() {
    let text = "[limits]\na = 1\nb = { memory = { limit = \"x\", notice = \"y\" }, cpu = 3 }\n";
    assert_eq!(errors(text).len(), 4);
}

#[test]
fn check_tells_what_makes_no_sense_on_this_machine() {
    let limits = parse(
        r#"[limits]
zoe = { memory = "0" }
yan = { memory = "9G" }
default = { memory = "51%" }
root = { memory = "1G" }
0 = { memory = "1G" }
tim = { memory = "1M" }
eve = { memory = { limit = "10%", notice = "4G" } }
bob = { memory = "1G" }
"@lab" = { memory = "0%" }
"=lab" = { memory = "none" }
ann = { memory = { limit = "8G", barrier = "95" } }
"#,
    );
    let findings = check(&limits, Bytes::from_mib(8 << 10));
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "/l.toml:2: limits.zoe: the limit is 0: every process of zoe is killed at once; write \"none\" for no limit",
            "/l.toml:3: limits.yan: the limit (9 GiB) lies above the machine's memory (8 GiB); it holds only where there is swap",
            "/l.toml:4: limits.default: the limit (4.08 GiB) is more than half of the machine's memory (8 GiB): two users at their limits do not fit; give each user half or less",
            "/l.toml:5: limits.root: a limit on root can kill system services; limit users instead",
            "/l.toml:6: limits.0: a limit on root can kill system services; limit users instead",
            "/l.toml:7: limits.tim: the limit (1 MiB) is less than a login needs (about 16 MiB); raise it if logins are meant to work",
            "/l.toml:8: limits.eve: the notice (4 GiB) lies above the limit (819 MiB), with 8 GiB of memory; lower it or raise the limit",
            "/l.toml:10: limits.@lab: the limit is 0: every process of each member of lab is killed at once; write \"none\" for no limit",
            "/l.toml:12: limits.ann: the barrier (95 B) is less than any program needs; a number without a unit is bytes: write \"95%\" for a part of the limit",
        ]
    );
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error);
    assert_eq!(
        errors.map(|finding| finding.line).collect::<Vec<_>>(),
        [Some(8)]
    );
}

#[test]
fn deep_nesting_is_refused_and_does_not_exhaust_the_stack() {
    for depth in [100, 10_000, 1_000_000] {
        for text in [
            "[".repeat(depth),
            format!("a = {}", "{a = ".repeat(depth)),
            ".a".repeat(depth),
        ] {
            assert!(
                Limits::parse(&text, Path::new("/l.toml")).is_err(),
                "{depth}"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = Limits::parse(&text, Path::new("/l.toml"));
    }

    #[test]
    fn no_entry_panics(
        key in "(\"[^\"\\\\]{0,12}\"|[a-z0-9._-]{1,12})",
        value in "(-?[0-9]{1,19}|\"[^\"\\\\]{0,20}\"|\\{ *(memory|limit|notice)? *=? *(\"[0-9]{1,3}[MG%]\"|\\{ limit = [0-9]{1,3} \\})? *\\}|\\[[0-9, ]{0,20}\\])",
    ) {
        let text = format!("[limits]\n{key} = {value}\n{key} = {value}\n");
        let _ = Limits::parse(&text, Path::new("/l.toml"));
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let _ = Limits::load(file.path());
    }
}

#[test]
fn a_shared_account_says_who_may_enter_it() {
    let limits = parse(
        "[limits]\n\"=batch\" = { memory = \"1G\", granted = [\"alice\", \"@staff\", \"1007\"] }\n\
         \"=none\" = { memory = \"1G\", granted = [] }\n\"=group\" = { memory = \"1G\" }\n",
    );
    let granted = |text: &str| limits.get(&who(text)).unwrap().granted.clone();
    let all = vec![who("alice"), who("@staff"), who("1007")];
    assert_eq!(granted("=batch"), Some(all));
    assert_eq!(granted("=none"), Some(Vec::new()));
    assert_eq!(granted("=group"), None);
    let table = [
        (
            "alice = { memory = \"1G\", granted = [\"bob\"] }",
            "/l.toml:2: limits.alice.granted: makes no sense for alice: nobody enters another user's \
             account; grant a shared account (=name) instead",
        ),
        (
            "\"=x\" = { memory = \"1G\", granted = \"bob\" }",
            "/l.toml:2: limits.=x.granted: is a string, not a list of users and @groups; write granted = \
             [\"alice\", \"@staff\"]",
        ),
        (
            "\"=x\" = { memory = \"1G\", granted = [\"default\"] }",
            "/l.toml:2: limits.=x.granted: \"default\" is neither a user nor an @group; write granted = \
             [\"alice\", \"@staff\"]",
        ),
    ];
    for (line, expected) in table {
        assert_eq!(errors(&format!("[limits]\n{line}\n")), [expected]);
    }
}

#[test]
fn grants_stay_when_a_limit_is_changed() {
    let mut limits =
        parse("[limits]\n\"=x\" = { memory = \"1G\", granted = [\"alice\"] } # ours\n");
    limits.set(&who("=x"), spec("2G", None, None)).unwrap();
    assert_eq!(
        limits.to_text(),
        "[limits]\n\"=x\" = { memory = \"2G\", granted = [\"alice\"] } # ours\n"
    );
    assert_eq!(
        limits.get(&who("=x")).unwrap().granted,
        Some(vec![who("alice")])
    );
}

#[test]
fn a_reason_is_read_and_one_that_is_none_is_refused() {
    let limits = parse("[limits]\nalice = { memory = \"8G\", reason = \" thesis \" }\n");
    let reason = limits.get(&who("alice")).unwrap().reason.as_ref().unwrap();
    assert_eq!(reason.as_str(), "thesis");
    let remedy = "write reason = \"thesis\", one line of at most 200 bytes";
    for (value, wrong) in [
        (
            "\"a\\u001b[2J\"",
            "has characters that are not printable, or a backslash",
        ),
        ("\"\"", "is empty"),
        ("7", "is an integer, not text in quotes"),
        (&format!("\"{}\"", "x".repeat(201)), "has 201 bytes"),
    ] {
        assert_eq!(
            errors(&format!(
                "[limits]\nalice = {{ memory = \"8G\", reason = {value} }}\n"
            )),
            [format!("/l.toml:2: limits.alice.reason: {wrong}; {remedy}")]
        );
    }
    // It limits nobody.
    let alone = errors("[limits]\nalice = { reason = \"thesis\" }\n");
    assert!(alone[0].contains("limits nothing"), "{alone:?}");
}

#[test]
fn a_mode_is_one_of_two_words_and_limits_nothing_by_itself() {
    let limits =
        parse("[limits]\nalice = { memory = \"8G\", mode = \"observe\" }\nbob = { numproc = 9 }\n");
    let mode = |name: &str| limits.get(&who(name)).unwrap().mode;
    assert_eq!(
        (mode("alice"), mode("bob")),
        (Some(bursar_model::Mode::Observe), None)
    );
    for (value, said) in [
        (
            "\"observed\"",
            "\"observed\" is none of its words; did you mean \"observe\"? write one of \"enforce\", \"observe\"",
        ),
        (
            "true",
            "is a boolean, not a word in quotes; write one of \"enforce\", \"observe\"",
        ),
    ] {
        assert_eq!(
            errors(&format!(
                "[limits]\nalice = {{ memory = \"8G\", mode = {value} }}\n"
            )),
            [format!("/l.toml:2: limits.alice.mode: {said}")]
        );
    }
    let alone = errors("[limits]\nalice = { mode = \"observe\" }\n");
    assert!(alone[0].contains("limits nothing"), "{alone:?}");
}

#[test]
fn a_file_may_say_that_its_limits_hold_at_once() {
    let limits = parse("force = true\n[limits]\nalice = { memory = \"1G\" }\n");
    assert!(limits.is_forced(&who("alice")));
    assert!(!parse("[limits]\nalice = { memory = \"1G\" }\n").is_forced(&who("alice")));
    assert_eq!(
        errors("force = 1\n"),
        ["/l.toml:1: force: is an integer, not a boolean; write true or false without quotes"]
    );
    assert_eq!(
        errors("[force]\n"),
        ["/l.toml:1: force: is a table; write force = true before [limits]"]
    );
}
