// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `limits.toml` changed and written: nothing is lost but what was to go.

mod written;

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bursar_config::{ConfigError, Limits};
use bursar_model::{BoundsSpec, Bytes, Mode, Percent, Resource, RowBounds, SizeSpec, Uid, Who};
use proptest::prelude::*;
use written::{parse, spec, who};

fn of(limit: &str) -> BoundsSpec {
    spec(limit, None, None)
}

#[test]
fn the_first_limit_makes_the_file() {
    let mut limits = Limits::new(Path::new("/l.toml"));
    limits.set(&who("alice"), of("512M")).unwrap();
    limits
        .set(&who("@students"), spec("2G", Some("80%"), None))
        .unwrap();
    assert_eq!(
        limits.to_text(),
        r#"# Who may hold how much memory. Written by `bursar limit`; after a change by hand:
# systemctl reload bursard. `bursar check` says what is wrong with it.
[limits]
alice = { memory = "512M" }
"@students" = { memory = { limit = "2G", notice = "80%" } }
"#
    );
    assert_eq!(limits.get(&who("alice")).unwrap().line, 4);
}

fn rows(text: &str) -> BTreeMap<Resource, RowBounds> {
    text.split_whitespace()
        .map(|row| {
            let (name, bounds) = row.split_once('=').unwrap();
            let resource = Resource::beancounter(name).unwrap();
            (resource, RowBounds::parse(resource, bounds).unwrap())
        })
        .collect()
}

#[test]
fn beancounters_come_and_go_beside_memory() {
    let mut limits =
        parse("[limits]\n# hers\nalice = { memory = \"512M\", numpty = 4 }  # since May\n");
    limits
        .set_rows(&who("alice"), &rows("numproc=200:220 numpty=4"))
        .unwrap();
    limits.set_rows(&who("bob"), &rows("shmpages=64M")).unwrap();
    assert_eq!(
        limits.to_text(),
        "[limits]\n# hers\nalice = { memory = \"512M\", numpty = 4, numproc = \"200:220\" }  # since May\n\
         bob = { shmpages = \"16384:16384\" }\n"
    );
    limits.set(&who("bob"), of("1G")).unwrap();
    limits
        .set_rows(&who("alice"), &rows("numproc=unlimited numpty=unlimited"))
        .unwrap();
    assert_eq!(
        limits.to_text(),
        "[limits]\n# hers\nalice = { memory = \"512M\" }  # since May\n\
         bob = { shmpages = \"16384:16384\", memory = \"1G\" }\n"
    );
    limits.set(&who("bob"), of("none")).unwrap();
    // That he has no limit on memory was said, and is no row's business.
    limits
        .set_rows(&who("bob"), &rows("shmpages=unlimited"))
        .unwrap();
    assert_eq!(limits.get(&who("bob")).unwrap().memory, Some(of("none")));
    // Nothing is left of her that is limited.
    limits.set_rows(&who("dora"), &rows("numpty=4")).unwrap();
    assert_eq!(limits.get(&who("dora")).unwrap().memory, None);
    limits
        .set_rows(&who("dora"), &rows("numpty=unlimited"))
        .unwrap();
    assert!(limits.get(&who("dora")).is_none());
    // Whom default has left alone is freed from it by a word.
    limits.set_rows(&who("dora"), &rows("numpty=4")).unwrap();
    limits.set(&who("dora"), of("none")).unwrap();
    assert_eq!(limits.get(&who("dora")).unwrap().memory, Some(of("none")));
    assert!(
        limits
            .set_rows(&who("carol"), &rows("numproc=unlimited"))
            .is_err()
    );
}

#[test]
fn a_reason_comes_and_goes_and_leaves_the_rest_alone() {
    let mut limits = parse(
        "[limits]\n# hers\nalice = { memory = \"512M\" }  # since May\nbob = { memory = \"1G\" }\n",
    );
    let reason = |text: &str| text.parse().unwrap();
    let before = limits.to_text();
    limits
        .set_reason(&who("alice"), Some(&reason("thesis")))
        .unwrap();
    assert_eq!(
        limits.to_text(),
        "[limits]\n# hers\nalice = { memory = \"512M\", reason = \"thesis\" }  # since May\n\
         bob = { memory = \"1G\" }\n"
    );
    limits.set(&who("alice"), of("1G")).unwrap();
    assert_eq!(
        limits.get(&who("alice")).unwrap().reason,
        Some(reason("thesis"))
    );
    limits.set(&who("alice"), of("512M")).unwrap();
    limits.set_reason(&who("alice"), None).unwrap();
    assert_eq!(limits.to_text(), before);
    // Of whom nothing is said no reason is needed.
    limits
        .set_reason(&who("carol"), Some(&reason("thesis")))
        .unwrap();
    assert_eq!(limits.to_text(), before);
}

#[test]
fn a_mode_is_written_into_its_entry_and_stays_when_the_limit_changes() {
    let mut limits =
        parse("[limits]\nalice = { memory = \"512M\", reason = \"thesis\" }  # since May\n");
    limits.set_mode(&who("alice"), Mode::Observe).unwrap();
    limits.set(&who("alice"), of("1G")).unwrap();
    let expected = |mode: &str| {
        format!(
            "[limits]\nalice = {{ memory = \"1G\", reason = \"thesis\", mode = \"{mode}\" }}  # since May\n"
        )
    };
    assert_eq!(limits.to_text(), expected("observe"));
    limits.set_mode(&who("alice"), Mode::Enforce).unwrap();
    assert_eq!(limits.to_text(), expected("enforce"));
    assert_eq!(limits.get(&who("alice")).unwrap().mode, Some(Mode::Enforce));
    // Of whom nothing is said there is nothing to be observed.
    limits.set_mode(&who("carol"), Mode::Observe).unwrap();
    assert_eq!(limits.to_text(), expected("enforce"));
}

const KEPT: &str = r#"# the lab's limits
# ask bob

[limits]   # all of them

# team one

# alice writes her thesis
alice = { memory = "512M" }        # until March
01000 = { memory = {limit="2G",notice="80%"} } # tight
"@students" = { memory = { limit = "2 GiB" } }

# team two

# last one
default   =   {   memory="25%"   }

# about bob
[limits.bob] # he
memory = "1G" # is fine
# end of bob

# about carol
[limits.carol]
memory.limit = "1G"
# the end
"#;

#[test]
fn a_change_leaves_everything_else_as_it_was_written() {
    let table = [
        (
            "alice",
            of("1G"),
            r#"{ memory = "512M" }        #"#,
            r#"{ memory = "1G" }        #"#,
        ),
        (
            "alice",
            spec("1G", None, Some("70%")),
            r#"{ memory = "512M" }        #"#,
            r#"{ memory = { limit = "1G", barrier = "70%" } }        #"#,
        ),
        (
            "1000",
            spec("3G", Some("80%"), Some("90%")),
            r#"{limit="2G",notice="80%"}"#,
            r#"{limit="3G",notice="80%", barrier = "90%" }"#,
        ),
        (
            "1000",
            of("3G"),
            r#"{limit="2G",notice="80%"}"#,
            r#"{limit="3G" }"#,
        ),
        (
            "@students",
            spec("2G", Some("1G"), None),
            r#"{ limit = "2 GiB" }"#,
            r#"{ limit = "2 GiB", notice = "1G" }"#,
        ),
        (
            "default",
            of("none"),
            r#"{   memory="25%"   }"#,
            r#"{   memory="none"   }"#,
        ),
        ("bob", of("2G"), r#""1G" # is fine"#, r#""2G" # is fine"#),
        (
            "carol",
            spec("1G", None, Some("90%")),
            "memory.limit = \"1G\"\n",
            "memory.limit = \"1G\"\nmemory.barrier = \"90%\"\n",
        ),
        (
            "dave",
            of("1G"),
            "{   memory=\"25%\"   }\n",
            "{   memory=\"25%\"   }\ndave = { memory = \"1G\" }\n",
        ),
        ("alice", of("512M"), "", ""),
    ];
    for (name, memory, old, new) in table {
        let mut limits = parse(KEPT);
        limits.set(&who(name), memory).unwrap();
        assert_eq!(limits.to_text(), KEPT.replacen(old, new, 1), "{name}");
    }
}

#[test]
fn what_is_cleared_takes_only_its_own_comments_along() {
    let table = [
        (
            "alice",
            "# alice writes her thesis\nalice = { memory = \"512M\" }        # until March\n",
        ),
        (
            "1000",
            "01000 = { memory = {limit=\"2G\",notice=\"80%\"} } # tight\n",
        ),
        (
            "default",
            "# last one\ndefault   =   {   memory=\"25%\"   }\n",
        ),
        (
            "bob",
            "# about bob\n[limits.bob] # he\nmemory = \"1G\" # is fine\n",
        ),
    ];
    for (name, gone) in table {
        let mut limits = parse(KEPT);
        assert!(limits.clear(&who(name)).unwrap());
        assert_eq!(limits.to_text(), KEPT.replacen(gone, "", 1), "{name}");
        assert!(!limits.clear(&who(name)).unwrap());
    }
}

#[test]
fn the_last_table_leaves_the_comments_before_it_to_the_end_of_the_file() {
    let mut limits =
        parse("[limits.a]\nmemory = \"1G\"\n\n# keep\n\n# go\n[limits.b]\nmemory = \"1G\"\n");
    assert!(limits.clear(&who("b")).unwrap());
    assert_eq!(
        limits.to_text(),
        "[limits.a]\nmemory = \"1G\"\n\n# keep\n\n"
    );
}

#[test]
fn odd_ways_to_write_the_table_can_be_changed_too() {
    let table = [
        (
            "limits.a.memory = \"1G\"\n",
            "limits.a.memory = \"1G\"\nlimits.b = { memory = \"2G\" }\n",
        ),
        ("limits = {}\n", "limits = { b = { memory = \"2G\" } }\n"),
        (
            "[limits.a]\nmemory = \"1G\"\n",
            "[limits]\nb = { memory = \"2G\" }\n[limits.a]\nmemory = \"1G\"\n",
        ),
        ("[limits]", "[limits]\nb = { memory = \"2G\" }\n"),
    ];
    for (old, new) in table {
        let mut limits = parse(old);
        limits.set(&who("b"), of("2G")).unwrap();
        assert_eq!(limits.to_text(), new);
        limits.clear(&who("b")).unwrap();
        assert_eq!(limits.len(), parse(old).len());
    }
}

#[test]
fn bounds_that_contradict_each_other_are_not_taken() {
    let mut limits = parse(KEPT);
    let error = limits
        .set(&who("alice"), spec("1G", Some("2G"), None))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/l.toml: limits.alice: the notice (2G) lies above the limit (1G); lower it or raise the limit"
    );
    assert_eq!(limits.to_text(), KEPT);
}

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("limits.toml")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn what_was_stored_is_loaded_and_nothing_else_is_left_there() {
    let place = Place::new();
    let path = place.directory.path().join("new/limits.toml");
    let mut limits = Limits::new(&path);
    limits.set(&who("alice"), of("512M")).unwrap();

    limits.store(&path).unwrap();
    limits.set(&who("alice"), of("1G")).unwrap();
    limits.store(&path).unwrap();

    let loaded = Limits::load(&path).unwrap().unwrap();
    assert_eq!(loaded.get(&who("alice")).unwrap().memory, Some(of("1G")));
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
        0o644
    );
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn limits_that_cannot_be_put_in_force_give_the_file_its_old_text_back() {
    let place = Place::new();
    let written = "[limits]\nbob = { memory = \"1G\", kill = \"graceful\" } # his\n";
    fs::write(place.file(), written).unwrap();
    let mut old = Limits::load(&place.file()).unwrap().unwrap();
    let mut new = old.clone();
    new.clear(&who("bob")).unwrap();
    new.set(&who("alice"), of("512M")).unwrap();
    new.store(&place.file()).unwrap();

    old.store_over(&new).unwrap();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), written);
    // They go on from there; what somebody wrote meanwhile is still not overwritten.
    old.set(&who("bob"), of("2G")).unwrap();
    old.store(&place.file()).unwrap();
    let error = old.store_over(&new).unwrap_err();
    assert!(matches!(error, ConfigError::Changed { .. }), "{error}");
}

#[test]
fn the_first_limits_that_cannot_be_put_in_force_leave_an_empty_file() {
    let place = Place::new();
    let mut old = Limits::new(&place.file());
    let mut new = old.clone();
    new.set(&who("alice"), of("512M")).unwrap();
    new.store(&place.file()).unwrap();
    old.store_over(&new).unwrap();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "");
    old.set(&who("alice"), of("1G")).unwrap();
    old.store(&place.file()).unwrap();
}

#[test]
fn an_edit_that_nobody_has_read_is_not_overwritten() {
    let place = Place::new();
    let mut limits = Limits::new(&place.file());
    limits.set(&who("alice"), of("512M")).unwrap();
    for by_hand in [
        "[limits]\nbob = { memory = \"1G\" }\n",
        "[limits]\nhalf-writ",
    ] {
        fs::write(place.file(), by_hand).unwrap();
        let error = limits.store(&place.file()).unwrap_err();
        assert!(matches!(error, ConfigError::Changed { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(": was changed by somebody since it was read; nothing was changed, ")
        );
        assert_eq!(fs::read_to_string(place.file()).unwrap(), by_hand);
    }
    fs::remove_file(place.file()).unwrap();
    limits.store(&place.file()).unwrap();
}

#[test]
fn a_stricter_mode_stays_and_a_laxer_one_does_not() {
    for (before, after) in [
        (0o600, 0o600),
        (0o640, 0o640),
        (0o666, 0o644),
        (0o755, 0o644),
    ] {
        let place = Place::new();
        fs::write(place.file(), KEPT).unwrap();
        fs::set_permissions(place.file(), fs::Permissions::from_mode(before)).unwrap();
        let mut limits = Limits::load(&place.file()).unwrap().unwrap();
        limits.clear(&who("alice")).unwrap();
        limits.store(&place.file()).unwrap();
        assert_eq!(fs::metadata(place.file()).unwrap().mode() & 0o7777, after);
    }
}

#[test]
fn a_link_to_the_file_stays_a_link() {
    let place = Place::new();
    let target = place.directory.path().join("elsewhere.toml");
    fs::write(&target, KEPT).unwrap();
    symlink(&target, place.file()).unwrap();
    let mut limits = Limits::load(&place.file()).unwrap().unwrap();
    limits.clear(&who("alice")).unwrap();
    limits.store(&place.file()).unwrap();
    assert!(fs::symlink_metadata(place.file()).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&target).unwrap(), limits.to_text());
    assert_eq!(limits.path(), place.file());
}

#[test]
fn a_link_to_a_file_that_is_not_there_yet_is_followed() {
    let place = Place::new();
    let at = |name: &str| place.directory.path().join(name);
    fs::create_dir(at("config")).unwrap();
    symlink("config/second.toml", at("first.toml")).unwrap();
    symlink("first.toml", place.file()).unwrap();
    symlink("limits.toml", at("config/second.toml")).unwrap();
    assert!(Limits::load(&place.file()).unwrap().is_none());
    let mut limits = Limits::new(&place.file());
    limits.set(&who("alice"), of("512M")).unwrap();
    limits.store(&place.file()).unwrap();
    assert!(fs::symlink_metadata(place.file()).unwrap().is_symlink());
    assert_eq!(
        fs::read_to_string(at("config/limits.toml")).unwrap(),
        limits.to_text()
    );
}

#[test]
fn a_link_into_no_directory_or_to_itself_is_refused_and_stays() {
    for (target, said) in [
        (
            "/nowhere/limits.toml",
            "/nowhere/limits.toml: cannot find its directory, where a link leads: ",
        ),
        ("limits.toml", "cannot follow the link: "),
    ] {
        let place = Place::new();
        symlink(target, place.file()).unwrap();
        let mut limits = Limits::new(&place.file());
        limits.set(&who("alice"), of("512M")).unwrap();
        let error = limits.store(&place.file()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(fs::read_link(place.file()).unwrap(), Path::new(target));
        assert_eq!(place.names(), ["limits.toml"]);
    }
}

#[test]
fn line_ends_stay_as_they_are() {
    let place = Place::new();
    let written = "# ours\r\n[limits]\r\nalice = { memory = \"1G\" } # hers\r\n\r\n# his\r\nbob = { memory = \"2G\" }\r\n";
    fs::write(place.file(), written).unwrap();
    let mut limits = Limits::load(&place.file()).unwrap().unwrap();
    assert_eq!(limits.to_text(), written);
    for (limit, carol) in [("512M", "3G"), ("1G", "4G")] {
        limits.set(&who("alice"), of(limit)).unwrap();
        limits.set(&who("carol"), of(carol)).unwrap();
        limits.store(&place.file()).unwrap();
    }
    let carols = format!("{written}carol = {{ memory = \"4G\" }}\r\n");
    assert_eq!(fs::read_to_string(place.file()).unwrap(), carols);
    limits.clear(&who("carol")).unwrap();
    limits.store(&place.file()).unwrap();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), written);
}

#[test]
fn old_leftovers_are_removed_and_links_planted_there_are_not_followed() {
    let place = Place::new();
    let precious = place.directory.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    // The names that the next temporary files will get.
    for number in 0..4 {
        let name = format!(".limits.toml.{}-{number}.bursar-new", std::process::id());
        let _ = symlink(&precious, place.directory.path().join(name));
    }
    let old = place.directory.path().join(".limits.toml.1-1.bursar-new");
    let fresh = place.directory.path().join(".limits.toml.1-2.bursar-new");
    let other = place.directory.path().join(".other.toml.1-1.bursar-new");
    let hour = SystemTime::now() - Duration::from_secs(3600);
    for (path, time) in [(&old, hour), (&fresh, SystemTime::now()), (&other, hour)] {
        let file = File::create(path).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
    }
    let mut limits = Limits::new(&place.file());
    limits.set(&who("alice"), of("512M")).unwrap();

    limits.store(&place.file()).unwrap();

    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(
        !old.exists() && fresh.exists() && other.exists(),
        "{:?}",
        place.names()
    );
    assert!(!fs::symlink_metadata(place.file()).unwrap().is_symlink());
}

#[test]
fn what_cannot_be_written_changes_nothing_and_says_so() {
    let place = Place::new();
    let path = place.directory.path().join("file/limits.toml");
    fs::write(place.directory.path().join("file"), "").unwrap();
    let mut limits = Limits::new(&path);
    limits.set(&who("alice"), of("512M")).unwrap();
    let error = limits.store(&path).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{}: cannot ", path.display())),
        "{error}"
    );
    assert_eq!(place.names(), ["file"]);
}

fn any_who() -> impl Strategy<Value = Who> {
    prop_oneof![
        (0_u32..2000).prop_map(|uid| Who::Uid(Uid::new(uid))),
        "[a-z_][a-z0-9._@-]{0,6}".prop_filter_map("a name", |name| name.parse().ok()),
        "[a-z]{1,4}".prop_map(Who::Group),
        "[a-zé]{1,4}".prop_map(Who::Shared),
        Just(Who::Default),
    ]
}

fn any_size() -> impl Strategy<Value = SizeSpec> {
    prop_oneof![
        Just(SizeSpec::None),
        any::<u64>().prop_map(|count| SizeSpec::Bytes(Bytes::new(count))),
        (0_u32..=100).prop_map(|percent| SizeSpec::Percent(Percent::new(percent).unwrap())),
    ]
}

fn any_bounds() -> impl Strategy<Value = BoundsSpec> {
    let part = || prop::option::of(any_size());
    (any_size(), part(), part()).prop_map(|(limit, notice, barrier)| BoundsSpec {
        limit,
        notice,
        barrier,
    })
}

/// One way of writing an entry, with a comment that belongs to nobody before it.
fn entry_text(number: usize, who: &Who, style: u8) -> (String, bool) {
    let key = format!("{:?}", who.to_string());
    match style {
        0 => (
            format!("\n# c{number}\n\n{key} = {{ memory = \"1G\" }}\n"),
            false,
        ),
        1 => (
            format!("\n# c{number}\n\n{key} = {{memory={{limit=\"1G\"}}}} # {number}\n"),
            false,
        ),
        2 => (format!("\n# c{number}\n\n{key}.memory = \"1G\"\n"), false),
        3 => (
            format!("\n# c{number}\n\n[limits.{key}]\nmemory = \"1G\"\n"),
            true,
        ),
        4 => (
            format!("\n# c{number}\n\n[limits.{key}.memory]\nlimit = \"1G\"\n"),
            true,
        ),
        _ => (
            format!("\n# c{number}\n\n{key}.memory.limit = \"1G\"\n"),
            false,
        ),
    }
}

#[derive(Debug, Clone)]
enum Change {
    Set(Who, BoundsSpec),
    Clear(Who),
    Store,
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any_who(), any_bounds()).prop_map(|(who, spec)| Change::Set(who, spec)),
        any_who().prop_map(Change::Clear),
        Just(Change::Store),
    ]
}

proptest! {
    /// The file is at any time what a map would be; what was stored is what is loaded.
    #[test]
    fn limits_behave_like_a_map(changes in prop::collection::vec(any_change(), 0..24)) {
        let place = Place::new();
        let mut limits = Limits::new(&place.file());
        let mut map = BTreeMap::new();
        for change in changes {
            match change {
                Change::Set(who, spec) => match limits.set(&who, spec) {
                    Ok(()) => drop(map.insert(who, spec)),
                    Err(ConfigError::Invalid(_)) => {}
                    Err(other) => return Err(TestCaseError::fail(other.to_string())),
                },
                Change::Clear(who) => {
                    prop_assert_eq!(limits.clear(&who).unwrap(), map.remove(&who).is_some());
                }
                Change::Store => {
                    limits.store(&place.file()).unwrap();
                    limits = Limits::load(&place.file()).unwrap().unwrap();
                }
            }
            let says: BTreeMap<_, _> =
                limits.iter().map(|limit| (limit.who.clone(), limit.memory.unwrap())).collect();
            prop_assert_eq!(&says, &map);
            for limit in limits.iter() {
                let text = limits.to_text();
                let line = text.lines().nth(limit.line - 1).unwrap();
                prop_assert!(line.contains(&limit.who.to_string()), "{}: {line}", limit.who);
            }
        }
    }

    /// However the administrator wrote it, a change meets its entry only and no free comment is lost.
    #[test]
    fn other_entries_and_comments_survive_a_change(
        whos in prop::collection::btree_set(any_who(), 1..6),
        styles in prop::collection::vec(0_u8..6, 6),
        chosen: prop::sample::Index,
        change in prop::option::of(any_bounds()),
    ) {
        let whos: Vec<Who> = whos.into_iter().collect();
        let mut entries: Vec<_> = whos.iter().zip(&styles).enumerate()
            .map(|(number, (who, style))| entry_text(number, who, *style)).collect();
        entries.sort_by_key(|(_, table)| *table);
        let body: String = entries.iter().map(|(text, _)| text.as_str()).collect();
        let mut limits = parse(&format!("# top\n[limits]\n{body}\n# end\n"));
        let who = chosen.get(&whos);
        let done = match change {
            Some(spec) => limits.set(who, spec).is_ok(),
            None => limits.clear(who).unwrap(),
        };
        let text = limits.to_text();
        for comment in (0..whos.len()).map(|n| format!("# c{n}\n")).chain(["# top\n".into(), "# end\n".into()]) {
            prop_assert_eq!(text.matches(&comment).count(), 1, "{}", text);
        }
        let again = parse(&text);
        for other in whos.iter().filter(|other| *other != who) {
            prop_assert_eq!(again.get(other).unwrap().memory, Some(of("1G")));
        }
        if done {
            prop_assert_eq!(again.get(who).map(|limit| limit.memory), change.map(Some));
        }
    }
}
