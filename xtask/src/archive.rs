// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's archive, reached the way this machine gets its packages: mmdebstrap with its apt sources
//! turned towards another suite. Proxy, credentials, options and trusted keys are the machine's, so
//! no address is known here; the machine's own package lists stay untouched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::program;

/// How packages are to be had.
#[derive(Clone, Debug, clap::Args)]
pub struct Fetch {
    /// Look for newer ones even if some are cached
    #[arg(long)]
    pub refresh: bool,
    /// Where apt's sources are
    #[arg(long, value_name = "DIR", default_value = "/etc/apt")]
    pub apt_dir: PathBuf,
    /// Go on unchecked where no trusted key can be had
    #[arg(long)]
    pub allow_unverified: bool,
}

impl Default for Fetch {
    fn default() -> Fetch {
        Fetch {
            refresh: false,
            apt_dir: PathBuf::from("/etc/apt"),
            allow_unverified: false,
        }
    }
}

/// Who has to have signed a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Whom the machine's own entry names.
    Machine,
    /// The keys in this file.
    Keyring(PathBuf),
    /// Anybody.
    Unverified,
}

/// What packages are wanted.
pub(crate) struct Wanted<'a> {
    /// Suites of Debian; the newest version in any of them is taken.
    pub suites: &'a [&'a str],
    pub packages: &'a [&'a str],
    /// With commas, as mmdebstrap wants them; the first is the chroot's own.
    pub architectures: &'a str,
    /// mmdebstrap's options, then the suite that is bootstrapped or nothing, then what is made.
    pub arguments: &'a [&'a str],
}

/// Suites whose keyring package is signed by keys that older suites already have, in that order.
const KEYRING_CHAIN: [&str; 3] = ["bookworm", "trixie", "forky"];

/// A mirror that is behind is good enough for guests.
const APT_CONF: &str = "\
Acquire::Languages \"none\";
Acquire::Retries \"3\";
Acquire::Check-Valid-Until \"false\";
APT::Install-Recommends \"false\";
";

const CREDENTIALS: &str = "mkdir -p \"$1/etc/apt\"; cp -a /etc/apt/auth.conf* \"$1/etc/apt\" || :";

/// Runs mmdebstrap in `dir`. Where the machine does not know a suite's keys, newer ones are fetched
/// as Debian hands them down. The answer is what was trusted in the end.
pub(crate) fn mmdebstrap(wanted: &Wanted<'_>, how: &Fetch, dir: &Path) -> Result<Trust> {
    program::provide("debian")?;
    let entries = debian_entries(&how.apt_dir)?;
    let attempt = |trust: Trust| run(&entries, wanted, &trust, dir).map(|()| trust);
    let unknown = match attempt(Trust::Machine) {
        Err(error) if error.is::<UnknownKey>() => error,
        other => return other,
    };
    eprintln!("{unknown}; looking for newer ones");
    match keyring(&entries, dir).and_then(attempt) {
        Err(error) if how.allow_unverified => {
            eprintln!("no newer keyring: {error:#}");
            eprintln!("WARNING: packages are NOT verified (--allow-unverified)");
            attempt(Trust::Unverified)
        }
        chained => chained.with_context(|| {
            format!(
                "{unknown}; install a newer debian-archive-keyring, or accept unchecked packages \
                 with --allow-unverified"
            )
        }),
    }
}

fn run(entries: &[Entry], wanted: &Wanted<'_>, trust: &Trust, dir: &Path) -> Result<()> {
    let suites = wanted.suites.join(" and ");
    let turned = entries
        .iter()
        .filter_map(|entry| entry.for_suites(wanted.suites, trust, wanted.architectures));
    let stanzas: Vec<String> = turned.collect();
    ensure!(
        !stanzas.is_empty(),
        "no apt source has a suite like {suites}"
    );
    write(&dir.join("debian.sources"), &stanzas.join("\n"))?;
    let mut conf = String::new();
    for line in program::text(Command::new("apt-config").args(["dump", "Acquire"]))?.lines() {
        if !line.contains("::Languages") && !line.contains("::IndexTargets") {
            conf.push_str(line);
            conf.push('\n');
        }
    }
    write(&dir.join("apt.conf"), &(conf + APT_CONF))?;
    eprintln!("fetching from {suites}: {}", wanted.packages.join(" "));
    let output = Command::new("mmdebstrap")
        .arg(format!("--include={}", wanted.packages.join(",")))
        .arg(format!("--architectures={}", wanted.architectures))
        .arg(format!("--aptopt={}", dir.join("apt.conf").display()))
        .arg(format!("--setup-hook={CREDENTIALS}"))
        .args(wanted.arguments)
        .arg(dir.join("debian.sources"))
        .current_dir(dir)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .context("run mmdebstrap")?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if let Some(keys) = unknown_keys(&said) {
        bail!(UnknownKey(keys));
    }
    let said: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("I: "))
        .collect();
    bail!(
        "mmdebstrap: {}",
        said[said.len().saturating_sub(8)..].join("; ")
    );
}

/// A suite is signed by keys that are not trusted; these are their names.
#[derive(Debug)]
struct UnknownKey(String);

impl std::fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "signed by keys that are not trusted here: {}", self.0)
    }
}

impl std::error::Error for UnknownKey {}

/// The keys that apt does not have, where that is what stopped it.
fn unknown_keys(said: &str) -> Option<String> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == "NO_PUBKEY");
    let mut keys: Vec<&str> = pairs.map(|pair| pair[1]).collect();
    keys.sort_unstable();
    keys.dedup();
    // sqv, of newer apt, says it in its own words.
    let unsigned = said.contains("is not signed") || said.contains("Missing key");
    match keys.as_slice() {
        [] => unsigned.then(|| "apt does not name them".to_owned()),
        keys => Some(keys.join(", ")),
    }
}

/// A keyring that knows the newest keys and is itself trusted: each release's keyring package is
/// signed by a key the release before it has. The machine's keys check the first link, the unpacked
/// keyring the next; nothing is taken on faith.
fn keyring(entries: &[Entry], dir: &Path) -> Result<Trust> {
    let mut trust = Trust::Machine;
    for link in KEYRING_CHAIN {
        let wanted = Wanted {
            suites: &[link],
            packages: &["debian-archive-keyring"],
            architectures: "amd64",
            arguments: &["--variant=extract", "", "keyring.tar"],
        };
        if let Err(error) = run(entries, &wanted, &trust, dir) {
            eprintln!("no keyring from {link}: {error:#}");
            continue;
        }
        let root = dir.join(link);
        fs::create_dir_all(&root).with_context(|| format!("create {root:?}"))?;
        let tar = ["-xf", "keyring.tar", "./usr/share/keyrings", "-C"];
        program::run(Command::new("tar").args(tar).arg(&root).current_dir(dir))?;
        // .pgp is the newer name; where both are there one links to the other.
        let file = ["pgp", "gpg"]
            .map(|end| {
                root.join("usr/share/keyrings/debian-archive-keyring")
                    .with_extension(end)
            })
            .into_iter()
            .find(|file| file.is_file())
            .with_context(|| format!("the keyring package of {link} has no keyring"))?;
        trust = Trust::Keyring(file);
    }
    ensure!(
        trust != Trust::Machine,
        "no link of the chain could be verified"
    );
    Ok(trust)
}

/// One entry of sources.list(5): its fields, in the words of the deb822 format.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry(Vec<(String, String)>);

impl Entry {
    fn field(&self, name: &str) -> &str {
        let field = self
            .0
            .iter()
            .find(|(have, _)| have.eq_ignore_ascii_case(name));
        field.map_or("", |(_, value)| value)
    }

    fn has(&self, name: &str, word: &str) -> bool {
        self.field(name).split_whitespace().any(|have| have == word)
    }

    /// Whether this entry serves Debian itself: signed by Debian's keys it does; otherwise the
    /// customary path (`…/debian`, `…/debian-security`) with the component `main` is taken as a sign.
    fn serves_debian(&self) -> bool {
        let is_customary = |uri: &str| {
            let last = uri.trim_end_matches('/').rsplit('/').next();
            !uri.starts_with("cdrom:") && last.is_some_and(|last| last.starts_with("debian"))
        };
        let is_off = ["no", "false", "0", "off"].contains(&self.field("enabled"));
        let is_customary = self.field("uris").split_whitespace().any(is_customary);
        let is_debian = is_customary || self.field("signed-by").contains("debian-archive");
        is_debian && !is_off && self.has("types", "deb") && self.has("components", "main")
    }

    /// The same entry for other suites, pocket by pocket, as a stanza; `None` where nothing is left.
    fn for_suites(&self, suites: &[&str], trust: &Trust, architectures: &str) -> Option<String> {
        let mut turned: Vec<String> = Vec::new();
        for own in self.field("suites").split_whitespace() {
            for pocket in suites.iter().filter_map(|suite| pocket(own, suite)) {
                if !turned.contains(&pocket) {
                    turned.push(pocket);
                }
            }
        }
        let mut fields = vec![
            ("Types", "deb".to_owned()),
            ("URIs", self.field("uris").to_owned()),
            ("Suites", turned.join(" ")),
            ("Components", "main".to_owned()),
            ("Architectures", architectures.replace(',', " ")),
        ];
        match trust {
            Trust::Machine => fields.extend([
                ("Signed-By", self.field("signed-by").to_owned()),
                ("Trusted", self.field("trusted").to_owned()),
            ]),
            Trust::Keyring(file) => fields.push(("Signed-By", file.display().to_string())),
            Trust::Unverified => fields.push(("Trusted", "yes".to_owned())),
        }
        fields.retain(|(_, value)| !value.is_empty());
        let line =
            |(name, value): &(&str, String)| format!("{name}: {value}\n").replace(": \n", ":\n");
        let stanza: String = fields.iter().map(line).collect();
        (!turned.is_empty()).then_some(stanza)
    }
}

/// What `own` is of its release, of another one: `bookworm-security` → `trixie-security`. Unstable
/// and backports have one pocket only. Third parties' names (`bookworm-pgdg`) are none of ours.
fn pocket(own: &str, suite: &str) -> Option<String> {
    let at = own.find(['-', '/']).unwrap_or(own.len());
    let is_single = matches!(suite, "sid" | "unstable") || suite.ends_with("-backports");
    match own.split_at(at) {
        ("" | ".", _) => None,
        (_, "") => Some(suite.to_owned()),
        (_, "-updates") if !is_single => Some(format!("{suite}-updates")),
        (_, "-security" | "/updates") if !is_single => Some(format!("{suite}-security")),
        _ => None,
    }
}

/// The entries of this machine that serve Debian itself. `dir` is `/etc/apt`, or one like it.
fn debian_entries(dir: &Path) -> Result<Vec<Entry>> {
    let mut files = vec![dir.join("sources.list")];
    let parts = dir.join("sources.list.d");
    if parts.is_dir() {
        for entry in fs::read_dir(&parts).with_context(|| format!("read {parts:?}"))? {
            files.push(entry?.path());
        }
    }
    files.sort();
    let mut entries = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => stanzas,
            Some("list") => lines,
            _ => continue,
        };
        let text = fs::read_to_string(file).with_context(|| format!("read {file:?}"))?;
        entries.extend(parse(&text).with_context(|| format!("read {file:?}"))?);
    }
    entries.retain(Entry::serves_debian);
    ensure!(
        !entries.is_empty(),
        "no apt source in {dir:?} serves Debian itself; add one, or name another directory that has \
         sources.list.d/*.sources with --apt-dir"
    );
    Ok(entries)
}

/// Reads a `.sources` file.
fn stanzas(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .chain([""])
    {
        if line.trim().is_empty() {
            entries.push(Entry(std::mem::take(&mut fields)));
        } else if line.starts_with([' ', '\t']) {
            let field = fields.last_mut();
            let field = field.with_context(|| format!("line {line:?} continues nothing"))?;
            // The line break matters where a whole key stands in Signed-By.
            field.1.push('\n');
            field.1.push_str(line);
        } else {
            let field = line.split_once(':');
            let field = field.with_context(|| format!("line {line:?} is not \"Field: value\""))?;
            fields.push((field.0.to_owned(), field.1.trim().to_owned()));
        }
    }
    entries.retain(|entry| !entry.0.is_empty());
    let is_whole = |entry: &Entry| {
        ["uris", "suites"]
            .iter()
            .all(|name| !entry.field(name).is_empty())
    };
    ensure!(
        entries.iter().all(is_whole),
        "an entry lacks its URIs or its Suites"
    );
    Ok(entries)
}

/// Reads a `.list` file.
fn lines(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let rest = match line.strip_prefix("deb") {
            Some(rest) if rest.starts_with([' ', '\t', '[']) => rest.trim_start(),
            _ => continue, // deb-src, or an empty line
        };
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => rest
                .split_once(']')
                .with_context(|| format!("line {line:?} lacks a ]"))?,
            None => ("", rest),
        };
        let mut words = rest.split_whitespace();
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else {
            bail!("line {line:?} lacks its address or its suite");
        };
        let components = words.collect::<Vec<_>>().join(" ");
        let mut fields = vec![("types", "deb"), ("uris", uri), ("suites", suite)];
        fields.push(("components", &components));
        for option in options.split_whitespace() {
            let field = option.split_once('=');
            fields
                .push(field.with_context(|| format!("{option:?} in {line:?} is not name=value"))?);
        }
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        entries.push(Entry(fields.into_iter().map(own).collect()));
    }
    Ok(entries)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {path:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(entries: &[Entry], suite: &str, trust: &Trust) -> String {
        let entries = entries.iter().filter(|entry| entry.serves_debian());
        entries
            .filter_map(|entry| entry.for_suites(&[suite], trust, "amd64"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    const DEB822: &str = "\
# the release
Types: deb deb-src
URIs: http://mirror.example/debian
# an old address in the middle
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

types: deb
uris: http://mirror.example/debian-security
suites: bookworm-security
components: main
signed-by: /usr/share/keyrings/debian-archive-keyring.gpg
Check-Valid-Until: no

Types: deb
URIs: http://vendor.example/node
Suites: nodistro
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg

Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main
";

    #[test]
    fn deb822_entries_turn_to_another_release_pocket_by_pocket() {
        let entries = stanzas(DEB822).unwrap();
        assert_eq!(
            swapped(&entries, "trixie", &Trust::Machine),
            "Types: deb\n\
             URIs: http://mirror.example/debian\n\
             Suites: trixie trixie-updates\n\
             Components: main\n\
             Architectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\
             \n\
             Types: deb\n\
             URIs: http://mirror.example/debian-security\n\
             Suites: trixie-security\n\
             Components: main\n\
             Architectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        let unstable = swapped(&entries, "sid", &Trust::Unverified);
        assert!(
            unstable.contains("Suites: sid\n") && unstable.contains("Trusted: yes\n"),
            "{unstable}"
        );
        assert!(
            !unstable.contains("security") && !unstable.contains("igned-"),
            "{unstable}"
        );
        let chained = swapped(&entries, "trixie", &Trust::Keyring("/k.gpg".into()));
        assert_eq!(
            chained.matches("Signed-By: /k.gpg\n").count(),
            2,
            "{chained}"
        );
    }

    #[test]
    fn a_key_inside_signed_by_keeps_its_lines() {
        let key = "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n -----END PGP PUBLIC KEY BLOCK-----\n";
        let text = format!(
            "Types: deb\nURIs: http://m.example/debian\nSuites: bookworm\nComponents: main\n{key}"
        );
        let stanza = swapped(&stanzas(&text).unwrap(), "trixie", &Trust::Machine);
        assert!(stanza.contains(key), "{stanza}");
    }

    #[test]
    fn one_line_entries_are_read_with_and_without_options() {
        let text = "\
# comment
deb http://mirror.example/debian bookworm main contrib # trailing words
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no ] http://mirror.example/deb-mirror bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb [trusted=yes] http://vendor.example/linux/debian bookworm stable
deb cdrom:[Debian]/ bookworm main
";
        assert_eq!(
            swapped(&lines(text).unwrap(), "trixie", &Trust::Machine),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\nArchitectures: amd64\n\n\
             Types: deb\nURIs: http://mirror.example/deb-mirror\nSuites: trixie-security\nComponents: main\nArchitectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
    }

    #[test]
    fn pockets_are_those_of_the_release() {
        for (own, suite, expected) in [
            ("bookworm", "trixie", Some("trixie")),
            ("stable-security", "trixie", Some("trixie-security")),
            ("buster/updates", "trixie", Some("trixie-security")),
            ("bookworm-updates", "trixie", Some("trixie-updates")),
            ("bookworm-updates", "sid", None),
            ("bookworm", "trixie-backports", Some("trixie-backports")),
            ("bookworm-security", "trixie-backports", None),
            ("bookworm-backports", "trixie", None),
            ("bookworm-pgdg", "trixie", None),
            ("./", "trixie", None),
            ("/", "trixie", None),
        ] {
            assert_eq!(pocket(own, suite).as_deref(), expected, "{own} {suite}");
        }
    }

    #[test]
    fn broken_sources_are_refused_with_the_line() {
        for text in [
            "Suites bookworm\n",
            " continued\n",
            "Types: deb\nURIs: http://m.example/debian\n",
        ] {
            assert!(stanzas(text).is_err(), "{text}");
        }
        for text in [
            "deb [arch=amd64 http://m.example/debian bookworm main",
            "deb http://m.example/debian",
            "deb [x] a b c",
        ] {
            assert!(lines(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_directory_is_read_without_disabled_files_and_refused_without_debian() {
        let dir = tempfile::tempdir().unwrap();
        let parts = dir.path().join("sources.list.d");
        fs::create_dir(&parts).unwrap();
        write(
            &parts.join("vendor.list"),
            "deb http://vendor.example/linux/debian bookworm stable\n",
        )
        .unwrap();
        write(
            &parts.join("old.list.disabled"),
            "nonsense that would not parse [",
        )
        .unwrap();
        let error = debian_entries(dir.path()).unwrap_err().to_string();
        assert!(error.contains("--apt-dir"), "{error}");
        write(
            &dir.path().join("sources.list"),
            "deb http://m.example/debian bookworm main\n",
        )
        .unwrap();
        assert_eq!(debian_entries(dir.path()).unwrap().len(), 1);
    }

    #[test]
    fn missing_keys_are_told_from_other_failures() {
        let said = "W: GPG error: x InRelease: not available: NO_PUBKEY AA11 NO_PUBKEY BB22\n\
                    W: y: NO_PUBKEY AA11\nE: The repository 'x' is not signed.\n";
        assert_eq!(unknown_keys(said).as_deref(), Some("AA11, BB22"));
        assert_eq!(unknown_keys("E: Failed to fetch x  404  Not Found\n"), None);
        assert!(unknown_keys("Missing key 0123, which is needed to verify signature.\n").is_some());
    }
}
