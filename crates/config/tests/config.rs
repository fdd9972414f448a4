// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar.toml`: what is read, what is refused and with which words.

use std::fs;
use std::path::Path;

use bursar_config::{BackendChoice, Config, ConfigError, Count, LogLevel, OnExit, UidRange};
use bursar_model::{Bytes, Uid};
use proptest::prelude::*;

fn errors(text: &str) -> Vec<String> {
    match Config::parse(text, Path::new("/b.toml")).unwrap_err() {
        ConfigError::Invalid(findings) => findings.iter().map(ToString::to_string).collect(),
        other => panic!("{other}"),
    }
}

fn remarks(text: &str) -> Vec<String> {
    Config::parse(text, Path::new("/b.toml")).unwrap().remarks
}

#[test]
fn every_key_is_read() {
    let text = r#"
        trigger = "poll"
        on_exit = "release"
        count = "rss"
        [paths]
        limits = "/a/l.toml"
        runtime = "/a/run"
        state = "/a/state"
        pins = "/a/pins"
        [triggers]
        event = false
        timer = true
        notifier = false
        [ledger]
        max_processes = 64
        max_accounts = 65_536
        max_objects = 16_777_216
        events_bytes = 4096
        [accounts]
        uid_min = 500
        exempt = ["60000 - 60001", 70000, "0"]
        [tell]
        tty = false
        [last_defence]
        enabled = false
        oom_score_adj = 1
        [events]
        keep_bytes = "64K"
        [log]
        level = "debug"
    "#;
    let loaded = Config::parse(text, Path::new("/b.toml")).unwrap();
    assert_eq!(loaded.remarks, Vec::<String>::new());
    let config = loaded.config;
    assert_eq!(
        (config.trigger, config.on_exit, config.count),
        (BackendChoice::Poll, OnExit::Release, Count::Rss)
    );
    assert_eq!(config.paths.limits, Path::new("/a/l.toml"));
    assert_eq!(config.paths.runtime, Path::new("/a/run"));
    assert_eq!(config.paths.state, Path::new("/a/state"));
    assert_eq!(config.paths.pins, Path::new("/a/pins"));
    let triggers = config.triggers;
    assert_eq!(
        (triggers.event, triggers.timer, triggers.notifier),
        (false, true, false)
    );
    let ledger = config.ledger;
    assert_eq!((ledger.max_processes, ledger.max_accounts), (64, 65_536));
    assert_eq!(ledger.max_objects, 16_777_216);
    assert_eq!(ledger.events_bytes, Bytes::new(4096));
    assert_eq!(config.accounts.uid_min, Some(Uid::new(500)));
    let range = |first, last| UidRange::new(Uid::new(first), Uid::new(last)).unwrap();
    assert_eq!(
        config.accounts.exempt,
        [range(60_000, 60_001), range(70_000, 70_000), range(0, 0)]
    );
    assert!(!config.tell.tty);
    assert!(!config.last_defence.enabled);
    assert_eq!(config.last_defence.oom_score_adj, 1);
    assert_eq!(config.events.keep_bytes, Bytes::new(64 << 10));
    assert_eq!(config.log.level, LogLevel::Debug);
}

#[test]
fn dotted_keys_and_inline_tables_are_the_same_as_tables() {
    for text in [
        "log.level = \"warn\"",
        "log = { level = \"warn\" }",
        "[log]\nlevel = \"warn\"",
    ] {
        let loaded = Config::parse(text, Path::new("/b.toml")).unwrap();
        assert_eq!(loaded.config.log.level, LogLevel::Warn, "{text}");
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_place_and_a_remedy() {
    let table = [
        (
            "trigger = \"pol\"",
            r#"/b.toml:1: trigger: "pol" is none of its words; did you mean "poll"? write one of "auto", "bpf", "trace", "poll""#,
        ),
        (
            "\ntrigger = 1",
            r#"/b.toml:2: trigger: is an integer, not a word in quotes; write one of "auto", "bpf", "trace", "poll""#,
        ),
        (
            "[tell]\ntty = \"true\"",
            "/b.toml:2: tell.tty: is a string, not a boolean; write true or false without quotes",
        ),
        (
            "[ledger]\nmax_processes = 63",
            "/b.toml:2: ledger.max_processes: 63 is out of range; write a whole number from 64 to 1048576, without quotes",
        ),
        (
            "[ledger]\nmax_accounts = -1",
            "/b.toml:2: ledger.max_accounts: -1 is out of range; write a whole number from 2 to 65536, without quotes",
        ),
        (
            "[ledger]\nmax_accounts = \"10\"",
            "/b.toml:2: ledger.max_accounts: is a string, not an integer; write a whole number from 2 to 65536, without quotes",
        ),
        (
            "ledger.events_bytes = \"300K\"",
            "/b.toml:1: ledger.events_bytes: 300K is not a power of two; write \"256K\" or \"512K\"",
        ),
        (
            "ledger.events_bytes = \"128M\"",
            "/b.toml:1: ledger.events_bytes: 128M is out of range; write a size from 4K to 64M",
        ),
        (
            "events.keep_bytes = \"50%\"",
            "/b.toml:1: events.keep_bytes: \"50%\" is not a valid amount; write a size from 64K to 32M",
        ),
        (
            "events.keep_bytes = \"128M\"",
            "/b.toml:1: events.keep_bytes: 128M is out of range; write a size from 64K to 32M",
        ),
        (
            "events.keep_bytes = -5",
            "/b.toml:1: events.keep_bytes: \"-5\" is negative; write 0 or more",
        ),
        (
            "events.keep_bytes = \"12Q\"",
            "/b.toml:1: events.keep_bytes: \"12Q\" is not a valid size; write bytes with K, M, G or T (512M), a percentage (25%) or none",
        ),
        (
            "paths.state = \"var/lib\"",
            "/b.toml:1: paths.state: \"var/lib\" is not absolute; write an absolute path in quotes",
        ),
        (
            "paths.state = \"/a\\u0000b\"",
            "/b.toml:1: paths.state: \"/a\\0b\" contains a NUL; write an absolute path in quotes",
        ),
        (
            "accounts.exempt = \"5\"",
            "/b.toml:1: accounts.exempt: is a string, not an array; write uids and ranges in an array, [\"61184-65535\", 998]",
        ),
        (
            "accounts.exempt = [\"9-5\"]",
            "/b.toml:1: accounts.exempt: \"9-5\" ends before it begins; write \"5-9\"",
        ),
        (
            "accounts.exempt = [\"x\"]",
            "/b.toml:1: accounts.exempt: \"x\" is neither a uid nor a range of uids; write uids and ranges in an array, [\"61184-65535\", 998]",
        ),
        (
            "accounts.exempt = [1,2,3,4,5,6,7,8,9]",
            "/b.toml:1: accounts.exempt: has 9 ranges; write at most 8: join neighbours",
        ),
        (
            "log = \"debug\"",
            "/b.toml:1: log: is a string, not a table; write its keys under [log]",
        ),
        (
            "[trigger]\nx = 1",
            "/b.toml:1: trigger: is a table, not a value; write trigger = \"auto\"",
        ),
        (
            "[triggers]\nevent = false\ntimer = false\nnotifier = false\n",
            "/b.toml:4: triggers: event, timer and notifier are all false: no limit would hold; set one of them to true",
        ),
        (
            "trigger = \"auto\"\ntrigger = \"bpf\"",
            "/b.toml:2: trigger: stands in line 1 already; remove one of the two",
        ),
    ];
    for (text, error) in table {
        assert_eq!(errors(text), [error], "{text}");
    }
}

#[test]
fn what_is_no_toml_is_refused_with_its_line() {
    for (text, line) in [
        ("a = 1\nb = \n", 2),
        ("[log\n", 1),
        ("x = 1\ny = 2\n= 3\n", 3),
        ("a = \"", 1),
    ] {
        let error = errors(text).remove(0);
        assert!(
            error.starts_with(&format!("/b.toml:{line}: is no TOML: ")),
            "{error}"
        );
        assert!(error.ends_with("; mend that line"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn all_that_is_wrong_is_found_at_once() {
    let text = "trigger = 1\ncount = 2\n[tell]\ntty = 3\n";
    assert_eq!(errors(text).len(), 3);
    let error = Config::parse(text, Path::new("/b.toml")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(" (and 2 more: see `bursar check`)"),
        "{error}"
    );
}

#[test]
fn an_unknown_key_is_ignored_and_said_with_what_was_meant() {
    let table = [
        (
            "tigger = 1",
            "/b.toml:1: tigger: is unknown and ignored; did you mean trigger?",
        ),
        (
            "[log]\nlevle = \"info\"",
            "/b.toml:2: log.levle: is unknown and ignored; did you mean log.level?",
        ),
        (
            "level = \"info\"",
            "/b.toml:1: level: is unknown and ignored; did you mean log.level?",
        ),
        (
            "[leger]\nmax_accounts = 5",
            "/b.toml:1: leger: is unknown and ignored; did you mean ledger?",
        ),
        (
            "[triggers]\nevent = false\ntimer = false\n",
            "/b.toml:3: triggers: event and timer are false: limits hold only while bursard runs; set one of them to true if they are to hold without it",
        ),
        (
            "[forecast]\nhorizon = 5",
            "/b.toml:1: forecast: is unknown and ignored; remove it, or see docs/reference/configuration.md for what there is",
        ),
    ];
    for (text, remark) in table {
        assert_eq!(remarks(text), [remark], "{text}");
    }
}

#[test]
fn the_socket_path_has_to_fit_its_address() {
    let longest = format!("/{}", "r".repeat(94));
    assert!(
        Config::parse(
            &format!("paths.runtime = {longest:?}"),
            Path::new("/b.toml")
        )
        .is_ok()
    );
    assert_eq!(
        errors(&format!("paths.runtime = \"{longest}r\"")),
        ["/b.toml:1: paths.runtime: is 96 bytes long; write a path of at most 95 bytes"]
    );
}

#[test]
fn drop_ins_win_key_by_key_in_the_order_of_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let main = directory.path().join("bursar.toml");
    let drop_ins = directory.path().join("bursar.toml.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::write(
        &main,
        "trigger = \"poll\"\n[log]\nlevel = \"warn\"\n[tell]\ntty = false\n",
    )
    .unwrap();
    fs::write(drop_ins.join("50-b.toml"), "log.level = \"debug\"\n").unwrap();
    fs::write(
        drop_ins.join("10-a.toml"),
        "log.level = \"error\"\ntrigger = \"trace\"\n",
    )
    .unwrap();
    fs::write(drop_ins.join(".hidden.toml"), "trigger = \"bpf\"\n").unwrap();
    fs::write(drop_ins.join("99-not.toml.bak"), "trigger = \"bpf\"\n").unwrap();

    let loaded = Config::load(Some(&main)).unwrap();

    assert_eq!(loaded.config.trigger, BackendChoice::Trace);
    assert_eq!(loaded.config.log.level, LogLevel::Debug);
    assert!(!loaded.config.tell.tty);
    assert_eq!(
        loaded.files,
        [main, drop_ins.join("10-a.toml"), drop_ins.join("50-b.toml")]
    );
}

#[test]
fn what_several_files_say_together_is_blamed_on_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let main = directory.path().join("b.toml");
    let drop_ins = directory.path().join("b.toml.d");
    fs::create_dir(&drop_ins).unwrap();
    fs::write(&main, "\n\n\n[triggers]\nevent = false\ntimer = false\n").unwrap();
    fs::write(drop_ins.join("1.toml"), "triggers.notifier = false\n").unwrap();
    let error = Config::load(Some(&main)).unwrap_err().to_string();
    let place = format!("{}:1: triggers: ", drop_ins.join("1.toml").display());
    assert!(error.starts_with(&place), "{error}");
}

#[test]
fn a_named_file_has_to_exist() {
    let error = Config::load(Some(Path::new("/nonexistent/b.toml"))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/b.toml: cannot read it: entity not found; name a file that exists, or leave --config out"
    );
    // Its file system may not be mounted yet.
    assert!(!error.is_lasting());
}

#[test]
fn what_cannot_be_read_now_may_be_later_and_what_is_wrong_stays_so() {
    // A regular file that nobody can read from its beginning (EIO).
    let error = Config::load(Some(Path::new("/proc/self/mem"))).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }), "{error}");
    assert!(!error.is_lasting());
    let error = Config::parse("trigger = 1\n", Path::new("/b.toml")).unwrap_err();
    assert!(error.is_lasting());
}

#[test]
fn text_in_another_encoding_is_refused_with_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), b"# a\n# caf\xe9\n").unwrap();
    let error = Config::load(Some(file.path())).unwrap_err().to_string();
    assert!(
        error.ends_with(":2: is no UTF-8 text; write the file again in UTF-8"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = Config::parse(&text, Path::new("/b.toml"));
    }

    #[test]
    fn no_value_panics(
        key in "(trigger|paths\\.(state|runtime)|ledger\\.events_bytes|accounts\\.(exempt|uid_min)|events|tell\\.tty)",
        value in "(-?[0-9]{1,19}|\"[^\"\\\\]{0,20}\"|\\[[0-9, \"-]{0,20}\\]|true|1979-05-27|nan|\\{ a = 1 \\})",
    ) {
        let _ = Config::parse(&format!("{key} = {value}"), Path::new("/b.toml"));
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &bytes).unwrap();
        let _ = Config::load(Some(file.path()));
    }
}
