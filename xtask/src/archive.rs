// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Debian's archive, reached the way this machine gets its packages: mmdebstrap with its apt sources
//! turned towards another suite (bootstrap.sh). No address is known here.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;

use crate::program;

/// How packages are to be had.
#[derive(Clone, Debug, Parser)]
#[group(skip)]
pub struct Fetch {
    /// Look for newer ones even if some are cached
    #[arg(long)]
    pub refresh: bool,
    /// Where apt's sources are
    #[arg(long, value_name = "DIR", default_value = "/etc/apt")]
    pub apt_dir: PathBuf,
}

impl Default for Fetch {
    fn default() -> Fetch {
        Fetch::parse_from([""])
    }
}

/// Runs mmdebstrap in `dir`: architecture, suites and packages, each with commas, then mmdebstrap's own.
/// The newest version in any of the suites is taken.
pub(crate) fn mmdebstrap(how: &Fetch, dir: &Path, arguments: &[&str]) -> Result<()> {
    program::provide("debian")?;
    let mut script = program::script("bootstrap.sh");
    script.arg(&how.apt_dir).args(arguments).current_dir(dir);
    program::run(&mut script)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What mmdebstrap would be given to read on a machine with these files in /etc/apt.
    fn sources(files: &[(&str, &str)], suites: &str) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("apt/sources.list.d"))?;
        for (name, text) in files {
            fs::write(at("apt").join(name), text)?;
        }
        fs::write(at("mmdebstrap"), "#!/bin/sh\n")?;
        fs::set_permissions(at("mmdebstrap"), fs::Permissions::from_mode(0o755))?;
        let path = std::env::var("PATH")?;
        let mut sh = program::script("bootstrap.sh");
        sh.arg(at("apt"))
            .args(["amd64,arm64", suites, "hello", "--variant=extract"])
            .env("PATH", format!("{}:{path}", dir.path().display()))
            .current_dir(dir.path());
        program::run(&mut sh)?;
        Ok(fs::read_to_string(at("debian.sources"))?)
    }

    const DEB822: &str = "\
# the release
Types: deb deb-src
URIs: http://mirror.example/debian
# an old address in the middle
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://vendor.example/node
Suites: nodistro
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main
";

    const LINES: &str = "\
# comment
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg ] http://mirror.example/debian-security bookworm-security main
deb http://mirror.example/debian bookworm-pgdg main
deb [trusted=yes] http://vendor.example/linux/debian bookworm stable
deb cdrom:[Debian]/debian bookworm main
";

    #[test]
    fn entries_turn_to_another_release_pocket_by_pocket() {
        let files = [
            ("sources.list.d/debian.sources", DEB822),
            ("sources.list", LINES),
            ("sources.list.d/old.list.disabled", "nonsense ["),
        ];
        let fields = |suites: &str, name: &str| {
            let sources = sources(&files, suites).unwrap();
            let values = sources.lines().filter_map(|line| line.strip_prefix(name));
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            fields("trixie", "Suites: "),
            ["trixie-security", "trixie", "trixie-updates"]
        );
        assert_eq!(
            fields("trixie", "URIs: "),
            [
                "http://mirror.example/debian-security/",
                "http://mirror.example/debian/",
                "http://mirror.example/debian/"
            ]
        );
        assert_eq!(fields("trixie", "Architectures: ")[0], "amd64 arm64");
        assert!(fields("trixie", "Signed-By: ")[0].contains("debian-archive-keyring"));
        assert_eq!(fields("sid", "Suites: "), ["sid"]);
        assert_eq!(fields("trixie-backports", "Suites: "), ["trixie-backports"]);
    }

    #[test]
    fn a_machine_without_debian_is_refused() {
        let vendor = "deb http://vendor.example/linux/debian bookworm stable\n";
        let error = sources(&[("sources.list", vendor)], "trixie").unwrap_err();
        assert!(format!("{error:#}").contains("--apt-dir"), "{error:#}");
    }
}
