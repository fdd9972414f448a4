// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A private apt beside the machine's own: the same way out (proxy, credentials, options, trusted
//! keys), but its own sources, lists and downloads, so that nothing of the machine changes.

use std::cmp::Ordering;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::package::{Package, newest, parse_show};
use super::program;
use super::sources::{Source, parse_deb822, parse_one_line};

/// An apt whose whole state is one directory.
pub(super) struct PrivateApt {
    dir: PathBuf,
}

/// Why lists could not be had.
#[derive(Debug)]
pub(super) enum UpdateError {
    /// A suite is signed by keys this machine does not have; these are their names.
    UnknownKey(String),
    /// Anything else; the text is apt's.
    Failed(String),
}

impl std::fmt::Display for UpdateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UpdateError::UnknownKey(keys) => {
                write!(f, "signed by keys that are not trusted here: {keys}")
            }
            UpdateError::Failed(text) => f.write_str(&program::last_words(text.as_bytes())),
        }
    }
}

/// The keys that apt does not have, where that is what stopped it.
fn unknown_keys(said: &str) -> Option<String> {
    let mut keys: Vec<&str> = Vec::new();
    for text in said.split("NO_PUBKEY ").skip(1) {
        let key = text.split_whitespace().next().unwrap_or_default();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // sqv, of newer apt, says it in its own words.
    let unsigned = ["is not signed", "Missing key"]
        .iter()
        .any(|sign| said.contains(sign));
    match keys.as_slice() {
        [] if unsigned => Some("apt does not say which".to_owned()),
        [] => None,
        keys => Some(keys.join(", ")),
    }
}

impl std::error::Error for UpdateError {}

impl PrivateApt {
    /// Lays out the state under `dir` for these sources.
    pub(super) fn new(dir: &Path, sources: &[Source]) -> Result<PrivateApt> {
        let apt = PrivateApt {
            dir: dir.to_owned(),
        };
        for sub in [
            "conf.d",
            "sources.d",
            "preferences.d",
            "state/lists/partial",
            "cache/archives/partial",
        ] {
            fs::create_dir_all(dir.join(sub))
                .with_context(|| format!("create {:?}", dir.join(sub)))?;
        }
        let stanzas: Vec<String> = sources.iter().map(Source::to_stanza).collect();
        write(&dir.join("sources.d/debian.sources"), &stanzas.join("\n"))?;
        // The machine's configuration first, ours last so that it wins. It cannot be given by -o:
        // only a file can #clear the hooks, which are the machine's own business.
        for part in configuration_parts(Path::new("/etc/apt"))? {
            let name = part
                .file_name()
                .ok_or_else(|| anyhow!("{part:?} has no name"))?;
            let link = if name == "apt.conf" {
                "zz-main".as_ref()
            } else {
                name
            };
            symlink(&part, dir.join("conf.d").join(link))
                .with_context(|| format!("link {part:?}"))?;
        }
        let at = |sub: &str| dir.join(sub).display().to_string();
        write(
            &dir.join("conf.d/zzz-bursar-vm"),
            &format!(
                "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
                 #clear APT::Update::Post-Invoke-Success;\n#clear DPkg::Post-Invoke;\n\
                 #clear APT::Default-Release;\n\
                 Dir::Etc::sourcelist \"/dev/null\";\nDir::Etc::sourceparts \"{sources}\";\n\
                 Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"{preferences}\";\n\
                 Dir::State \"{state}\";\nDir::State::status \"/dev/null\";\nDir::Cache \"{cache}\";\n\
                 APT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n\
                 APT::Update::Error-Mode \"any\";\nAPT::Sandbox::User \"root\";\n\
                 Acquire::Languages \"none\";\nAcquire::Retries \"3\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
                 Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled \"false\";\n\
                 Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled \"false\";\n\
                 Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n",
                sources = at("sources.d"),
                preferences = at("preferences.d"),
                state = at("state"),
                cache = at("cache"),
            ),
        )?;
        write(
            &dir.join("apt.conf"),
            &format!(
                "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"{}\";\n",
                at("conf.d")
            ),
        )?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.dir.join("apt.conf"))
            .env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Downloads the lists, and drops those that are not Debian's.
    pub(super) fn update(&self) -> Result<(), UpdateError> {
        let output = self
            .command("apt-get")
            .arg("update")
            .output()
            .map_err(|error| UpdateError::Failed(format!("run apt-get: {error}")))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(match unknown_keys(&said) {
                Some(keys) => UpdateError::UnknownKey(keys),
                None => UpdateError::Failed(said),
            });
        }
        self.drop_foreign_lists()
            .map_err(|error| UpdateError::Failed(format!("{error:#}")))
    }

    /// A vendor's archive may look like Debian's; its Release file says who it is.
    fn drop_foreign_lists(&self) -> Result<()> {
        let lists = self.dir.join("state/lists");
        let files = file_names(&lists)?;
        for release in files.iter().filter(|name| name.ends_with("Release")) {
            let text = fs::read_to_string(lists.join(release))
                .with_context(|| format!("read {release:?}"))?;
            if origin(&text) == Some("Debian") {
                continue;
            }
            let archive = release
                .trim_end_matches("InRelease")
                .trim_end_matches("Release");
            for file in files.iter().filter(|name| name.starts_with(archive)) {
                fs::remove_file(lists.join(file)).with_context(|| format!("remove {file:?}"))?;
            }
        }
        Ok(())
    }

    /// All versions of a package that the lists know.
    pub(super) fn show(&self, package: &str) -> Result<Vec<Package>> {
        // apt-cache fails when it knows no such package; that is an answer, not an error.
        let output = self
            .command("apt-cache")
            .args(["show", package])
            .output()
            .context("run apt-cache")?;
        Ok(parse_show(&String::from_utf8_lossy(&output.stdout)))
    }

    /// The newest version of a package that the lists know.
    pub(super) fn newest(&self, package: &str) -> Result<Option<Package>> {
        Ok(newest(self.show(package)?, compare_versions))
    }

    /// Downloads packages into `dir`; apt checks their hashes. Returns the `.deb` files.
    pub(super) fn download(&self, specs: &[String], dir: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(dir).with_context(|| format!("create {dir:?}"))?;
        let output = self
            .command("apt-get")
            .arg("download")
            .args(specs)
            .current_dir(dir)
            .output()
            .context("run apt-get")?;
        if !output.status.success() {
            bail!(
                "apt-get download {}: {}",
                specs.join(" "),
                program::last_words(&output.stderr)
            );
        }
        let debs: Vec<PathBuf> = file_names(dir)?
            .iter()
            .filter(|name| name.ends_with(".deb"))
            .map(|name| dir.join(name))
            .collect();
        if debs.len() != specs.len() {
            bail!(
                "apt-get download {}: {} files arrived",
                specs.join(" "),
                debs.len()
            );
        }
        Ok(debs)
    }
}

/// The entries of this machine that serve Debian itself. `dir` is `/etc/apt`, or one like it.
pub(super) fn debian_sources(dir: &Path) -> Result<Vec<Source>> {
    let mut files = vec![dir.join("sources.list")];
    let parts = dir.join("sources.list.d");
    if parts.is_dir() {
        files.extend(file_names(&parts)?.iter().map(|name| parts.join(name)));
    }
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let read = || fs::read_to_string(file).with_context(|| format!("read {file:?}"));
        let parsed = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => parse_deb822(&read()?),
            Some("list") => parse_one_line(&read()?),
            _ => continue,
        };
        sources.extend(parsed.with_context(|| format!("read {file:?}"))?);
    }
    sources.retain(Source::serves_debian);
    if sources.is_empty() {
        bail!(
            "no apt source in {dir:?} serves Debian itself; add one, or name another directory \
             that has sources.list.d/*.sources with --apt-dir"
        );
    }
    Ok(sources)
}

/// How two versions order, as dpkg sees it.
pub(super) fn compare_versions(a: &str, b: &str) -> Ordering {
    let holds = |relation: &str| {
        Command::new("dpkg")
            .args(["--compare-versions", a, relation, b])
            .status()
            .is_ok_and(|status| status.success())
    };
    if holds("gt") {
        Ordering::Greater
    } else if holds("lt") {
        Ordering::Less
    } else {
        Ordering::Equal
    }
}

fn configuration_parts(etc: &Path) -> Result<Vec<PathBuf>> {
    let dir = etc.join("apt.conf.d");
    let mut parts = Vec::new();
    if dir.is_dir() {
        parts.extend(
            file_names(&dir)?
                .iter()
                .map(|name| dir.join(name))
                .filter(|part| part.is_file()),
        );
    }
    parts.extend(Some(etc.join("apt.conf")).filter(|main| main.is_file()));
    Ok(parts)
}

fn file_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {dir:?}"))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {path:?}"))
}

fn origin(release: &str) -> Option<&str> {
    release
        .lines()
        .find_map(|line| line.strip_prefix("Origin:"))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_file_names_its_origin() {
        assert_eq!(
            origin("Hash: SHA256\n\nOrigin: Debian\nLabel: x\n"),
            Some("Debian")
        );
        assert_eq!(origin("Label: x\n"), None);
    }

    #[test]
    fn missing_keys_are_told_from_other_failures() {
        let said = "W: GPG error: x InRelease: not available: NO_PUBKEY AA11 NO_PUBKEY BB22\n\
                    W: y: NO_PUBKEY AA11\nE: The repository 'x' is not signed.\n";
        assert_eq!(unknown_keys(said).as_deref(), Some("AA11, BB22"));
        assert_eq!(unknown_keys("E: Failed to fetch x  404  Not Found\n"), None);
        assert!(unknown_keys("Missing key 0123, which is needed to verify signature.\n").is_some());
    }

    #[test]
    fn a_directory_without_debian_sources_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sources.list.d")).unwrap();
        write(
            &dir.path().join("sources.list.d/vendor.list"),
            "deb http://vendor.example/linux/debian bookworm stable\n",
        )
        .unwrap();
        let error = debian_sources(dir.path()).unwrap_err().to_string();
        assert!(error.contains("--apt-dir"), "{error}");
    }

    #[test]
    fn disabled_and_foreign_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sources.list.d")).unwrap();
        write(
            &dir.path().join("sources.list"),
            "deb http://m.example/debian bookworm main\n",
        )
        .unwrap();
        write(
            &dir.path().join("sources.list.d/old.list.disabled"),
            "nonsense that would not parse [",
        )
        .unwrap();
        assert_eq!(debian_sources(dir.path()).unwrap().len(), 1);
    }
}
