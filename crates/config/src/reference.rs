// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is derived from the schema: the file we ship, and the table of keys in
//! docs/reference/configuration.md. A test compares both with what is in the repository.

use crate::schema::{Key, TABLES, keys};

/// `dist/bursar.toml`: every key with its default, and what it is for.
pub fn shipped_file() -> String {
    let mut out = String::from(
        "# SPDX-License-Identifier: Apache-2.0 OR MIT\n\
         # What bursard can be told. Every key stands here with its default; a file that says less means\n\
         # the same. After a change: systemctl restart bursard; for log.level and messages.hint a reload is enough. Better\n\
         # than editing this file: put what differs into bursar.toml.d/50-local.toml, it wins key by key.\n\
         # Limits stand in limits.toml.\n\
         # This file is generated from crates/config/src/schema.rs.\n",
    );
    for (table, about) in TABLES {
        out.push('\n');
        push_comment(&mut out, about);
        if !table.is_empty() {
            out.push_str(&format!("[{table}]\n"));
        }
        for key in keys_of(table) {
            out.push('\n');
            push_comment(&mut out, &format!("{} ({})", key.about, key.values));
            match key.default {
                "" => out.push_str(&format!("# {} = 1000\n", key.name)),
                default => out.push_str(&format!("{} = {default}\n", key.name)),
            }
        }
    }
    out
}

/// The keys as Markdown tables, one for each TOML table.
pub fn key_reference() -> String {
    let mut out = String::new();
    for (table, about) in TABLES {
        let title = if table.is_empty() {
            "Before the first table".to_owned()
        } else {
            format!("`[{table}]`")
        };
        out.push_str(&format!(
            "### {title}\n\n{about}\n\n| key | values | default | |\n|---|---|---|---|\n"
        ));
        for key in keys_of(table) {
            let default = match key.default {
                "" => "absent".to_owned(),
                default => format!("`{default}`"),
            };
            let Key {
                name,
                values,
                about,
                ..
            } = key;
            out.push_str(&format!("| `{name}` | {values} | {default} | {about} |\n"));
        }
        out.push('\n');
    }
    out
}

fn keys_of(table: &'static str) -> impl Iterator<Item = &'static Key> {
    keys().filter(move |key| key.table == table)
}

/// Appends `text` as comment lines of at most 100 characters.
fn push_comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 100 {
            out.push_str(&line);
            out.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}
