// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A crate uses crates of lower rank only: cargo's word against the table in ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tree::root;

/// Folder → rank, as the table says; `None`: above all of them.
fn table() -> BTreeMap<String, Option<u32>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = page.split("## Folders and ranks").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut ranks = BTreeMap::new();
    for line in section.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, folders, rank, ..] = cells.as_slice() else {
            continue;
        };
        // Odd parts stand between backquotes.
        for folder in folders.split('`').skip(1).step_by(2) {
            let rank = (*rank != "–").then(|| rank.parse().unwrap());
            ranks.insert(folder.to_owned(), rank);
        }
    }
    ranks
}

/// Folder → folders of the workspace that it uses, for whatever.
fn uses() -> BTreeMap<String, Vec<String>> {
    let root = fs::canonicalize(root()).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let below = |path: &Path| {
        path.strip_prefix(&root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap());
            let used = package["dependencies"].as_array().unwrap().iter();
            let used = used.filter_map(|it| it["path"].as_str());
            let used = used.map(|path| below(Path::new(path))).collect();
            (below(manifest.parent().unwrap()), used)
        })
        .collect()
}

#[test]
fn a_crate_uses_crates_of_lower_rank_only() {
    let (ranks, uses) = (table(), uses());
    let mut wrongs = Vec::new();
    for (folder, used) in &uses {
        let Some(rank) = ranks.get(folder) else {
            wrongs.push(format!("{folder} is not in ARCHITECTURE.md's table"));
            continue;
        };
        let text = |rank: &Option<u32>| rank.map_or("–".to_owned(), |it| it.to_string());
        println!("{:>2}  {folder:24} {}", text(rank), used.join(" "));
        for other in used {
            let (Some(rank), Some(Some(other_rank))) = (rank, ranks.get(other)) else {
                continue;
            };
            if other_rank >= rank {
                wrongs.push(format!("{folder} ({rank}) uses {other} ({other_rank})"));
            }
        }
        let above = used.iter().filter(|it| ranks.get(*it) == Some(&None));
        for other in above.filter(|_| rank.is_some()) {
            wrongs.push(format!(
                "{folder} uses {other}, which stands above all crates"
            ));
        }
    }
    // Folders without a package, as `dist`, have no rank.
    let gone = ranks
        .iter()
        .filter(|(folder, rank)| rank.is_some() && !uses.contains_key(*folder));
    wrongs
        .extend(gone.map(|(folder, _)| format!("ARCHITECTURE.md has {folder}, which is no crate")));
    assert!(wrongs.is_empty(), "{wrongs:#?}");
}
