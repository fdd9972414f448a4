// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Where code is.
pub(crate) const FOLDERS: [&str; 4] = ["crates", "e2e", "xtask", "bench"];

/// A file of source code.
pub(crate) struct Source {
    /// Below the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn extension(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or("")
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }

    /// Whether all of it is a unit or integration test.
    pub(crate) fn is_cargo_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    /// Whether all of it is a test, stories and what they run included.
    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("e2e/") || self.is_cargo_test()
    }

    /// Its lines outside of `mod tests`, which stands last in a file.
    pub(crate) fn lines_outside_tests(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.text.lines().collect();
        let begin = lines.windows(2).position(|pair| {
            let [first, second] = pair else { return false };
            *first == "#[cfg(test)]" && second.contains("mod ") && second.ends_with('{')
        });
        lines[..begin.unwrap_or(lines.len())].to_vec()
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn gather(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, root, sources);
            continue;
        }
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        let is_code = [".rs", ".c", ".h"].iter().any(|it| name.ends_with(it));
        let is_generated = name.contains("/vmlinux");
        if is_code && !is_generated {
            sources.push(Source {
                path: name.to_owned(),
                text: fs::read_to_string(&path).unwrap(),
            });
        }
    }
}

/// All Rust and C of the repository, but what bpftool has generated.
pub(crate) fn sources() -> Vec<Source> {
    let (root, mut sources) = (root(), Vec::new());
    for folder in FOLDERS {
        gather(&root.join(folder), &root, &mut sources);
    }
    sources.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(sources.len() > 300, "only {} files found", sources.len());
    sources
}
