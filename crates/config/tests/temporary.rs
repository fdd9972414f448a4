// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries that end: a layer over those that do not.

mod written;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bursar_config::{ConfigError, Limits, Temporary, check, ended};
use bursar_model::{Bytes, Resource, RowBounds, Until};
use jiff::Timestamp;
use written::{parse, spec, who};

const BOTH: &str = r#"[limits]
alice = { memory = "4G", numproc = 200, kill = "graceful" } # hers
bob = { memory = "1G" }

[temporary]
alice = { memory = "16G", until = "2026-12-01T09:00:00+01:00", reason = "thesis" }
carol = { numproc = 50, until = 2026-12-02T00:00:00Z }
"#;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn until(text: &str) -> Until {
    text.parse().unwrap()
}

fn memory(limits: &Limits, name: &str) -> Option<String> {
    Some(limits.get(&who(name))?.memory?.limit.to_string())
}

#[test]
fn an_entry_that_ends_is_a_layer_over_the_one_that_does_not() {
    let before = parse(BOTH).as_of(at("2026-12-01T07:59:59Z"));
    let alice = before.get(&who("alice")).unwrap();
    assert_eq!(memory(&before, "alice").as_deref(), Some("16G"));
    // What it does not say stays.
    assert!(alice.rows.contains_key(&Resource::Numproc) && alice.kill.is_some());
    assert_eq!(alice.line, 6);
    assert_eq!(before.len(), 3);
    assert_eq!(before.nearest_end(), Some(until("2026-12-01T08:00:00Z")));
    let after = before.as_of(at("2026-12-01T08:00:00Z"));
    let alice = after.get(&who("alice")).unwrap();
    assert_eq!((alice.line, alice.reason.as_ref()), (2, None));
    assert_eq!(memory(&after, "alice").as_deref(), Some("4G"));
    assert_eq!(after.nearest_end(), Some(until("2026-12-02T00:00:00Z")));
    let changes = after.changes_since(&before);
    assert_eq!(changes.len(), 1);
    let last = after.as_of(at("2027-01-01T00:00:00Z"));
    assert!(last.get(&who("carol")).is_none() && last.nearest_end().is_none());
    // A clock that is set back is believed.
    let again = last.as_of(at("2026-12-01T07:00:00Z"));
    assert_eq!(memory(&again, "alice").as_deref(), Some("16G"));
    let said: Vec<String> = ended(&after).iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["/l.toml:6: temporary.alice: ended at 2026-12-01T08:00:00Z and has no effect; remove it"]
    );
    assert!(ended(&before).is_empty());
}

#[test]
fn what_will_hold_again_is_checked_as_well() {
    let text = BOTH
        .replace("\"1G\"", "\"512G\"")
        .replace("\"4G\"", "\"1M\"");
    let limits = parse(&text).as_of(at("2026-11-01T00:00:00Z"));
    let found = check(&limits, Bytes::from_mib(64 << 10));
    let keys: Vec<&str> = found.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(keys, ["limits.alice", "limits.bob"]);
}

#[test]
fn an_end_without_its_table_or_without_an_offset_is_refused() {
    let remedy = "write until = \"2026-12-01T09:00:00+01:00\"";
    for (text, said) in [
        (
            "[limits]\na = { memory = \"1G\", until = \"2026-12-01T09:00:00Z\" }\n",
            "/l.toml:2: limits.a: has an end (until); write it under [temporary]: what is under [limits] holds \
             again afterwards"
                .to_owned(),
        ),
        (
            "[temporary]\na = { memory = \"1G\" }\n",
            format!("/l.toml:2: temporary.a: has no end; {remedy}, or move it to [limits]"),
        ),
        (
            "[temporary]\na = { memory = \"1G\", until = \"2026-12-01 09:00\" }\n",
            format!(
                "/l.toml:2: temporary.a.until: \"2026-12-01 09:00\" is not a moment with an offset from UTC; {remedy}"
            ),
        ),
        (
            "[temporary]\na = { memory = \"1G\", until = 2026-12-01 }\n",
            format!("/l.toml:2: temporary.a.until: \"2026-12-01\" is not a moment with an offset from UTC; {remedy}"),
        ),
        (
            "[temporary]\na = { memory = \"1G\", until = 7 }\n",
            format!("/l.toml:2: temporary.a.until: \"(an integer)\" is not a moment with an offset from UTC; {remedy}"),
        ),
        (
            "temporary = 3\n",
            "/l.toml:1: temporary: is an integer, not a table; write [temporary]".to_owned(),
        ),
        (
            "[temporary]\n7 = { memory = \"1G\", until = 2026-12-01T09:00:00Z }\n07 = { memory = \"2G\", until = 2026-12-01T09:00:00Z }\n",
            "/l.toml:3: temporary.07: 7 stands in line 2 already; remove one of the two".to_owned(),
        ),
    ] {
        match Limits::parse(text, Path::new("/l.toml")).unwrap_err() {
            ConfigError::Invalid(findings) => assert_eq!(findings[0].to_string(), said),
            other => panic!("{other}"),
        }
    }
}

fn temporary<'a>(
    end: &str,
    limit: Option<&str>,
    rows: &'a BTreeMap<Resource, RowBounds>,
) -> Temporary<'a> {
    Temporary {
        until: until(end),
        memory: limit.map(|it| spec(it, None, None)),
        rows,
        mode: None,
        reason: None,
    }
}

#[test]
fn a_command_writes_an_entry_that_ends_and_takes_it_away() {
    let text = "[limits]\nalice = { memory = \"4G\" }  # hers\n";
    let mut limits = parse(text).as_of(at("2026-11-30T00:00:00Z"));
    let none = BTreeMap::new();
    let rows = BTreeMap::from([(
        Resource::Numproc,
        RowBounds::parse(Resource::Numproc, "unlimited").unwrap(),
    )]);
    let alice = who("alice");
    let reason = "thesis".parse().unwrap();
    let first = Temporary {
        reason: Some(&reason),
        ..temporary("2026-12-01T08:00:00Z", Some("16G"), &none)
    };
    limits.set_temporary(&alice, &first).unwrap();
    assert_eq!(
        limits.to_text(),
        format!(
            "{text}\n[temporary]\nalice = {{ memory = \"16G\", until = \"2026-12-01T08:00:00Z\", reason = \"thesis\" }}\n"
        )
    );
    assert_eq!(memory(&limits, "alice").as_deref(), Some("16G"));
    // What is named changes, the rest stays; a reason that is not given again goes.
    let later = temporary("2026-12-02T08:00:00Z", None, &rows);
    limits.set_temporary(&alice, &later).unwrap();
    assert!(
        limits.to_text().ends_with(
            "\nalice = { memory = \"16G\", until = \"2026-12-02T08:00:00Z\", numproc = \"unlimited:unlimited\" }\n"
        ),
        "{}",
        limits.to_text()
    );
    // The one below is another entry.
    limits.set(&alice, spec("2G", None, None)).unwrap();
    assert_eq!(memory(&limits, "alice").as_deref(), Some("16G"));
    assert_eq!(
        limits.lasting(&alice).unwrap().memory,
        Some(spec("2G", None, None))
    );
    // Of one that has ended nothing is left for the next.
    limits = limits.as_of(at("2026-12-03T00:00:00Z"));
    let next = temporary("2026-12-04T08:00:00Z", Some("8G"), &none);
    limits.set_temporary(&alice, &next).unwrap();
    assert!(
        limits
            .to_text()
            .ends_with("\nalice = { memory = \"8G\", until = \"2026-12-04T08:00:00Z\" }\n"),
        "{}",
        limits.to_text()
    );
    assert!(limits.clear_temporary(&alice).unwrap());
    assert!(!limits.clear_temporary(&alice).unwrap());
    assert_eq!(memory(&limits, "alice").as_deref(), Some("2G"));
    limits.set_temporary(&alice, &next).unwrap();
    assert!(limits.clear(&alice).unwrap() && limits.is_empty());
    // The first entry of a file may be one that ends.
    let mut limits = Limits::new(Path::new("/l.toml")).as_of(at("2026-11-30T00:00:00Z"));
    limits.set_temporary(&alice, &first).unwrap();
    limits.set(&alice, spec("2G", None, None)).unwrap();
    assert_eq!(
        parse(&limits.to_text()).lasting(&alice).unwrap().memory,
        Some(spec("2G", None, None))
    );
}

#[test]
fn an_exception_may_be_made_from_what_a_drop_in_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let drop_ins = folder.path().join("limits.toml.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::write(
        drop_ins.join("10-a.toml"),
        "[limits]\nalice = { memory = \"4G\" }\n[temporary]\nbob = { memory = \"2G\", until = \"2026-12-01T08:00:00Z\" }\n",
    )
    .unwrap();
    let mut limits = Limits::load(&file)
        .unwrap()
        .unwrap()
        .as_of(at("2026-11-30T00:00:00Z"));
    let none = BTreeMap::new();
    let next = temporary("2026-12-04T08:00:00Z", Some("8G"), &none);
    limits.set_temporary(&who("alice"), &next).unwrap();
    assert_eq!(memory(&limits, "alice").as_deref(), Some("8G"));
    // There it would change nothing.
    let error = limits.set_temporary(&who("bob"), &next).unwrap_err();
    assert!(
        matches!(error, ConfigError::Overridden { line: 4, .. }),
        "{error}"
    );
    let late = limits.as_of(at("2026-12-02T00:00:00Z"));
    late.clone().set_temporary(&who("bob"), &next).unwrap();
    let copy = folder.path().join("copy");
    limits.store(&file).unwrap();
    limits.keep(&copy).unwrap();
    let kept = Limits::kept(&copy, &file).unwrap();
    assert_eq!(
        memory(&kept.as_of(at("2026-11-30T00:00:00Z")), "alice").as_deref(),
        Some("8G")
    );
}
