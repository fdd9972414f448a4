// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is generated from the schema and kept in the repository. After a change of the schema:
//! `BURSAR_BLESS=1 cargo test -p bursar-config --test shipped`.

use std::fs;
use std::path::{Path, PathBuf};

use bursar_config::{Config, Loaded, key_reference, shipped_file};

const BEGIN: &str = "<!-- keys: begin (generated from crates/config/src/schema.rs) -->\n";
const END: &str = "<!-- keys: end -->\n";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

fn assert_is(path: &Path, now: &str) {
    if std::env::var_os("BURSAR_BLESS").is_some() {
        fs::write(path, now).unwrap();
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == now,
        "{} is not what the schema says: BURSAR_BLESS=1 cargo test -p bursar-config --test shipped",
        path.display()
    );
}

#[test]
fn the_shipped_file_is_what_the_schema_says() {
    assert_is(&repository("dist/bursar.toml"), &shipped_file());
}

#[test]
fn the_configuration_page_has_the_keys_of_the_schema() {
    let path = repository("docs/reference/configuration.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    assert_is(
        &path,
        &format!("{before}{BEGIN}{}{END}{after}", key_reference()),
    );
}

#[test]
fn the_shipped_file_means_the_defaults() {
    let path = repository("dist/bursar.toml");
    let loaded = Config::load(Some(&path)).unwrap();
    let expected = Loaded {
        files: vec![path],
        ..Loaded::default()
    };
    assert_eq!(loaded, expected);
}

#[test]
fn the_shipped_file_names_every_key() {
    let text = shipped_file();
    let keys = key_reference();
    let names = keys
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut count = 0;
    for (name, _) in names {
        let uncommented = format!("\n{name} = ");
        let absent_by_default = format!("\n# {name} = ");
        assert!(
            text.contains(&uncommented) || text.contains(&absent_by_default),
            "{name}"
        );
        count += 1;
    }
    assert_eq!(count, 44);
}
