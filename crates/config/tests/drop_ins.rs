// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `limits.toml.d/*.toml`: which entry wins, what is refused, what is kept for a start with files that are wrong.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bursar_config::{Before, ConfigError, LAST_GOOD, Limits, overrides};
use bursar_model::{BoundsSpec, Who};
use tempfile::TempDir;

fn who(text: &str) -> Who {
    text.parse().unwrap()
}

/// A directory with `limits.toml` and drop-ins, by name and text.
struct Place(TempDir);

impl Place {
    fn of(files: &[(&str, &str)]) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir(place.at("limits.toml.d")).unwrap();
        files
            .iter()
            .for_each(|(name, text)| place.write(name, text));
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn drop_in(&self, name: &str) -> PathBuf {
        self.at("limits.toml.d").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = match name {
            "limits.toml" => self.at(name),
            _ => self.drop_in(name),
        };
        fs::write(path, format!("[limits]\n{text}\n")).unwrap();
    }

    fn load(&self) -> Result<Limits, ConfigError> {
        self.load_after(Before::default())
    }

    fn load_after(&self, before: Before) -> Result<Limits, ConfigError> {
        Limits::load_after(&self.at("limits.toml"), before)
    }

    /// What is wrong, without the directory.
    fn errors(&self) -> Vec<String> {
        let error = self.load().unwrap_err();
        assert!(!error.findings().is_empty(), "{error}");
        let folder = format!("{}/", self.0.path().display());
        let said = error.findings().iter().map(ToString::to_string);
        said.map(|it| it.replace(&folder, "")).collect()
    }
}

fn memory(limits: &Limits, name: &str) -> String {
    let limit = limits.get(&who(name)).unwrap();
    limit
        .memory
        .map_or_else(|| "-".into(), |it| it.limit.to_string())
}

#[test]
fn the_last_file_wins_entry_by_entry_and_says_where_it_stands() {
    let place = Place::of(&[
        (
            "limits.toml",
            "alice = { memory = \"1G\", numproc = 5 }\nbob = { memory = \"2G\" }",
        ),
        (
            "50-b.toml",
            "alice = { memory = \"3G\" }\n\"@staff\" = { memory = \"4G\" }",
        ),
        (
            "10-a.toml",
            "\nalice = { memory = \"5G\" }\n01000 = { memory = \"6G\" }",
        ),
        ("90-c.toml", "1000 = { memory = \"7G\" }"),
        (".hidden.toml", "alice = { memory = \"8G\" }"),
        ("99-not.toml.dpkg-new", "alice = { memory = \"9G\" }"),
    ]);
    let limits = place.load().unwrap();
    let table = [
        ("alice", "3G"),
        ("bob", "2G"),
        ("@staff", "4G"),
        ("1000", "7G"),
    ];
    assert_eq!(limits.len(), table.len());
    for (name, size) in table {
        assert_eq!(memory(&limits, name), size, "{name}");
    }
    // An entry is replaced as a whole.
    let alice = limits.get(&who("alice")).unwrap();
    assert!(alice.rows.is_empty());
    assert_eq!(
        (&*alice.path, alice.line),
        (&*place.drop_in("50-b.toml"), 2)
    );
    let losers: Vec<(&Path, usize)> = limits
        .overridden(&who("alice"))
        .iter()
        .map(|it| (&*it.path, it.line))
        .collect();
    let (first, second) = (place.at("limits.toml"), place.drop_in("10-a.toml"));
    assert_eq!(losers, [(first.as_path(), 2), (second.as_path(), 3)]);
    assert!(limits.overridden(&who("bob")).is_empty());
    let said = overrides(&limits);
    assert_eq!(said.len(), 2);
    assert!(said[1].to_string().contains("10-a.toml:3; "), "{}", said[1]);
    let read: Vec<&Path> = limits.files().collect();
    assert_eq!(read.len(), 4);
    assert_eq!(read[0], first);
}

#[test]
fn all_that_is_wrong_in_all_files_is_said_with_its_place() {
    let place = Place::of(&[
        ("limits.toml", "alice = { memroy = \"1G\" }"),
        ("10-good.toml", "bob = { memory = \"1G\" }"),
        (
            "20-twice.toml",
            "bob = { memory = \"1G\" }\nbob = { memory = \"2G\" }",
        ),
        ("30-cut.toml", "carol = { memo"),
    ]);
    let errors = place.errors();
    let starts = [
        "limits.toml:2: limits.alice.memroy: is not a resource; did you mean memory?",
        "limits.toml.d/20-twice.toml:3: bob: stands in line 2 already; remove one of the two",
        "limits.toml.d/30-cut.toml:",
    ];
    assert_eq!(errors.len(), starts.len(), "{errors:#?}");
    for (error, start) in errors.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn what_others_than_root_can_change_is_refused_with_a_remedy() {
    let place = Place::of(&[("10-a.toml", "bob = { memory = \"1G\" }")]);
    let file = place.drop_in("10-a.toml");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for bits in [0o664, 0o646, 0o666] {
        mode(&file, bits);
        let said = format!(
            "limits.toml.d/10-a.toml: may be written by others than root (mode 0{bits:o}); chmod go-w it"
        );
        assert_eq!(place.errors(), [said]);
    }
    mode(&file, 0o644);
    mode(&place.at("limits.toml.d"), 0o777);
    let said = "limits.toml.d: may be written by others than root (mode 0777); chmod go-w it";
    assert_eq!(place.errors(), [said]);
    mode(&place.at("limits.toml.d"), 0o755);
    assert_eq!(place.load().unwrap().len(), 1);
}

#[test]
fn a_file_a_link_and_a_directory_of_a_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::of(&[("10-a.toml", "bob = { memory = \"1G\" }")]);
    let file = place.drop_in("10-a.toml");
    let give = |path: &Path, uid| std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
    let belongs = "belongs to the user 60001, who could change limits; chown it to root";
    give(&file, 60001);
    assert_eq!(
        place.errors(),
        [format!("limits.toml.d/10-a.toml: {belongs}")]
    );
    give(&file, 0);
    // Root's file, by way of a user's directory or a user's link: he could lead the way elsewhere.
    let his = place.at("his");
    fs::create_dir(&his).unwrap();
    fs::rename(&file, his.join("a")).unwrap();
    chown(&his, Some(60001), Some(60001)).unwrap();
    symlink(his.join("a"), &file).unwrap();
    let error = place.errors().concat();
    assert!(
        error.contains("/his\\\" on the way to it ") || error.contains("his\" on the way to it"),
        "{error}"
    );
    assert!(error.ends_with(belongs), "{error}");
    give(&his, 0);
    assert_eq!(place.load().unwrap().len(), 1);
    give(&file, 60001);
    assert_eq!(
        place.errors(),
        [format!("limits.toml.d/10-a.toml: {belongs}")]
    );
}

#[test]
fn links_that_lead_in_a_circle_or_nowhere_are_refused() {
    let place = Place::of(&[("20-b.toml", "bob = { memory = \"1G\" }")]);
    symlink("10-b.toml", place.drop_in("10-a.toml")).unwrap();
    symlink("../limits.toml.d/10-a.toml", place.drop_in("10-b.toml")).unwrap();
    symlink("gone", place.drop_in("30-c.toml")).unwrap();
    let circle = "is a symbolic link that leads round in a circle; remove it, or link it to a file";
    let nowhere =
        "is a symbolic link that leads nowhere; remove it, or restore what it is linked to";
    assert_eq!(
        place.errors(),
        [
            format!("limits.toml.d/10-a.toml: {circle}"),
            format!("limits.toml.d/10-b.toml: {circle}"),
            format!("limits.toml.d/30-c.toml: {nowhere}"),
        ]
    );
    for name in ["10-a.toml", "10-b.toml", "30-c.toml"] {
        fs::remove_file(place.drop_in(name)).unwrap();
    }
    // A configuration manager's tree, linked.
    fs::create_dir(place.at("tree")).unwrap();
    fs::write(
        place.at("tree/c"),
        "[limits]\ncarol = { memory = \"1G\" }\n",
    )
    .unwrap();
    symlink("../tree/c", place.drop_in("30-c.toml")).unwrap();
    let limits = place.load().unwrap();
    let carol = limits.get(&who("carol")).unwrap();
    assert_eq!(&*carol.path, place.drop_in("30-c.toml"));
}

#[test]
fn drop_ins_that_are_too_many_or_too_large_are_refused() {
    let place = Place::of(&[]);
    let long = format!("# {}\nbob = {{ memory = \"1G\" }}", "x".repeat(3 << 20));
    place.write("10-a.toml", &long);
    place.write("20-b.toml", &long);
    let error = place.errors().concat();
    assert!(error.contains("larger than 4 MiB together; "), "{error}");
    fs::remove_file(place.drop_in("10-a.toml")).unwrap();
    assert_eq!(place.load().unwrap().len(), 1);
    for number in 0..300 {
        place.write(&format!("{number}.toml"), "");
    }
    assert!(place.errors().concat().contains("more than 256 drop-ins"));
}

#[test]
fn a_directory_that_has_gone_takes_no_limit_away() {
    let place = Place::of(&[("10-a.toml", "bob = { memory = \"1G\" }")]);
    // limits.toml was never there, and need not be.
    let before = place.load().unwrap().before();
    assert!(place.load_after(before).is_ok());
    let moved = place.at("moved");
    fs::rename(place.at("limits.toml.d"), &moved).unwrap();
    let error = place.load_after(before).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, ConfigError::Missing { .. }), "{said}");
    assert!(
        said.contains("limits.toml.d: does not exist") && said.contains("leave an empty directory"),
        "{said}"
    );
    fs::create_dir(place.at("limits.toml.d")).unwrap();
    assert!(place.load_after(before).unwrap().is_empty());
    // Of limits in force about which nobody knows more, drop-ins may have been all there was.
    let unknown = Before {
        unknown: true,
        ..Before::default()
    };
    assert!(matches!(
        place.load_after(unknown),
        Err(ConfigError::Missing { .. })
    ));
    place.write("10-a.toml", "bob = { memory = \"1G\" }");
    assert_eq!(place.load_after(unknown).unwrap().len(), 1);
}

#[test]
fn a_command_writes_limits_toml_alone_and_not_in_vain() {
    let place = Place::of(&[("10-a.toml", "bob = { memory = \"1G\" }")]);
    let path = place.at("limits.toml");
    let mut limits = place.load().unwrap();
    let size = |text: &str| BoundsSpec::of_limit(text.parse().unwrap());
    let error = limits.set(&who("bob"), size("2G")).unwrap_err().to_string();
    let start = format!(
        "{}:2: bob: this drop-in overrides limits.toml",
        place.drop_in("10-a.toml").display()
    );
    assert!(error.starts_with(&start), "{error}");
    assert!(matches!(
        limits.clear(&who("bob")),
        Err(ConfigError::Overridden { .. })
    ));
    assert_eq!(memory(&limits, "bob"), "1G");
    limits.set(&who("alice"), size("2G")).unwrap();
    assert_eq!((memory(&limits, "alice"), limits.len()), ("2G".into(), 2));
    limits.store(&path).unwrap();
    assert!(!fs::read_to_string(&path).unwrap().contains("bob"));
    assert_eq!(place.load().unwrap().len(), 2);
}

#[test]
fn what_was_in_force_is_kept_with_its_files() {
    let place = Place::of(&[
        ("limits.toml", "alice = { memory = \"1G\" } # hers\n"),
        (
            "10-a.toml",
            "alice = { memory = \"2G\" }\nbob = { memory = \"'''\\\"3G\" }",
        ),
    ]);
    place.write(
        "10-a.toml",
        "alice = { memory = \"2G\" } # '''\"\"\"\nbob = { memory = \"3G\" }",
    );
    let path = place.at("limits.toml");
    let copy = place.at(LAST_GOOD);
    let limits = place.load().unwrap();
    limits.keep(&copy).unwrap();
    let kept = Limits::kept(&copy, &path).unwrap();
    assert_eq!(
        kept.iter().collect::<Vec<_>>(),
        limits.iter().collect::<Vec<_>>()
    );
    assert_eq!(kept.before(), limits.before());
    assert_eq!(kept.to_text(), limits.to_text());
    // Without drop-ins it is the file's own text, which an older bursard reads too.
    fs::remove_file(place.drop_in("10-a.toml")).unwrap();
    place.load().unwrap().keep(&copy).unwrap();
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&path).unwrap());
    // Where all files have gone by an administrator's word, nothing comes back.
    fs::remove_file(&path).unwrap();
    place.load().unwrap().keep(&copy).unwrap();
    assert!(Limits::kept(&copy, &path).is_none_or(|it| it.is_empty()));
}

#[test]
fn a_copy_that_cannot_be_written_leaves_no_older_one() {
    let place = Place::of(&[("limits.toml", "alice = { memory = \"1G\" }\n")]);
    // Nothing can take the place of a directory, and it is none of ours to remove.
    let copy = place.at(LAST_GOOD);
    fs::create_dir(&copy).unwrap();
    assert!(place.load().unwrap().keep(&copy).is_err());
    assert!(Limits::kept(&copy, &place.at("limits.toml")).is_none());
}

#[test]
fn two_thousand_entries_in_fifty_files_are_read_in_no_time() {
    let place = Place::of(&[]);
    for file in 0..50 {
        let lines: Vec<String> = (0..40)
            .map(|entry| {
                format!(
                    "{} = {{ memory = \"1G\", numproc = \"200:220\" }}",
                    70_000 + file * 40 + entry
                )
            })
            .collect();
        place.write(&format!("{file:02}.toml"), &lines.join("\n"));
    }
    let read = || {
        let began = Instant::now();
        assert_eq!(place.load().unwrap().len(), 2000);
        began.elapsed()
    };
    let fastest = (0..5).map(|_| read()).min().unwrap();
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}

#[test]
fn a_text_is_taken_as_a_whole_and_its_differences_are_told() {
    let place = Place::of(&[
        (
            "limits.toml",
            "alice = { memory = \"1G\" }\nbob = { memory = \"1G\" }",
        ),
        ("10-a.toml", "carol = { memory = \"1G\" }"),
    ]);
    let limits = place.load().unwrap();
    let name = Path::new("/wanted.toml");
    let text = "[limits] # new\nalice = { memory = \"1024M\" }\ndan = { numproc = 5 }\n";
    let new = limits.with_text(text, name).unwrap();
    let changes: Vec<(String, bool, bool)> = limits
        .written_changes(&new)
        .into_iter()
        .map(|(who, old, new)| (who.to_string(), old.is_some(), new.is_some()))
        .collect();
    assert_eq!(
        changes,
        [("bob".into(), true, false), ("dan".into(), false, true)]
    );
    assert_eq!(new.len(), 3);
    assert_eq!(
        &*new.get(&who("dan")).unwrap().path,
        place.at("limits.toml")
    );
    // It replaces what was read, and nothing else.
    let (mut stored, path) = (new, place.at("limits.toml"));
    fs::write(&path, "").unwrap();
    assert!(matches!(
        stored.store(&path),
        Err(ConfigError::Changed { .. })
    ));
    let refused = |text: &str| limits.with_text(text, name).unwrap_err().to_string();
    assert!(refused("[limits]\nalice = 1\n").starts_with("/wanted.toml:2: limits.alice: "));
    assert!(refused("[limits]\ncarol = { memory = \"2G\" }\n").contains("10-a.toml:2: carol: "));
    assert!(
        limits
            .with_text("[limits]\ncarol = { memory = \"1G\" }\n", name)
            .is_ok()
    );
}
