// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which packages make a kernel, decided from what `apt-cache show` prints. Pure.
//!
//! Up to trixie one package holds everything (`linux-image-6.12.…`); the newest suites split it
//! into `linux-binary-…` (vmlinuz), `linux-modules-…` and `linux-base-…` (config, module lists).

use std::cmp::Ordering;

/// One version of one package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it depends on.
    pub depends: Vec<Dependency>,
}

/// One alternative of one dependency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    /// The package it names.
    pub name: String,
    /// The one version it accepts, when it is that narrow.
    pub exactly: Option<String>,
}

impl Package {
    /// What to give `apt-get download`.
    pub(super) fn spec(&self) -> String {
        format!("{}={}", self.name, self.version)
    }

    /// The kernel image a metapackage such as `linux-image-cloud-amd64` stands for.
    pub(super) fn image(&self) -> Option<&Dependency> {
        self.depends
            .iter()
            .find(|dependency| kernel_part(&dependency.name, &["linux-image-"]))
    }

    /// The packages an image is split into, where it is.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Dependency> {
        const PARTS: [&str; 3] = ["linux-base-", "linux-binary-", "linux-modules-"];
        self.depends
            .iter()
            .filter(|dependency| kernel_part(&dependency.name, &PARTS))
    }
}

impl Dependency {
    /// Whether this version will do.
    pub(super) fn accepts(&self, version: &str) -> bool {
        self.exactly
            .as_deref()
            .is_none_or(|exactly| exactly == version)
    }
}

/// `linux-image-6.1.0-56-amd64` is a part of a kernel; `linux-image-amd64` and `linux-base` are not.
fn kernel_part(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// `linux-image-6.1.0-56-cloud-amd64` → `6.1.0-56-cloud-amd64`, which is what `uname -r` will say.
pub(super) fn kernel_release(image: &str) -> Option<&str> {
    image.strip_prefix("linux-image-")
}

/// Reads the stanzas that `apt-cache show` prints, all versions of all packages asked for.
pub(super) fn parse_show(text: &str) -> Vec<Package> {
    let mut packages = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        let (Some(name), Some(version)) = (field("Package"), field("Version")) else {
            continue;
        };
        let depends = field("Depends")
            .unwrap_or_default()
            .split([',', '|'])
            .filter_map(parse_dependency)
            .collect();
        packages.push(Package {
            name: name.to_owned(),
            version: version.to_owned(),
            depends,
        });
    }
    packages
}

fn parse_dependency(text: &str) -> Option<Dependency> {
    let (name, condition) = match text.split_once('(') {
        Some((name, condition)) => (name, condition),
        None => (text, ""),
    };
    let name = name
        .trim()
        .split(':')
        .next()
        .filter(|name| !name.is_empty())?;
    let exactly = condition
        .trim_start()
        .strip_prefix("= ")
        .map(|version| version.trim_end_matches([')', ' ']).to_owned());
    Some(Dependency {
        name: name.to_owned(),
        exactly,
    })
}

/// The newest of several versions, by an order that only dpkg knows.
pub(super) fn newest(
    packages: Vec<Package>,
    mut compare: impl FnMut(&str, &str) -> Ordering,
) -> Option<Package> {
    packages
        .into_iter()
        .reduce(|best, next| match compare(&next.version, &best.version) {
            Ordering::Greater => next,
            Ordering::Equal | Ordering::Less => best,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "\
Package: linux-image-cloud-amd64
Source: linux-signed-amd64 (6.1.192+2)
Version: 6.1.192-2
Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)
Size: 1504

Package: linux-image-cloud-amd64
Version: 6.1.176-1
Depends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)
Description-en: Linux
 Depends: this is prose

";
    const SPLIT: &str = "\
Package: linux-image-7.2.13+deb14-cloud-amd64
Version: 7.2.13-1
Depends: dracut | initramfs-tools (>= 0.120+deb8u2), linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), linux-binary-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), linux-modules-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), linux-base (>= 4.3~), kmod:any
";

    fn by_text(a: &str, b: &str) -> Ordering {
        a.cmp(b)
    }

    #[test]
    fn the_newest_metapackage_names_its_image() {
        let meta = newest(parse_show(META), by_text).unwrap();
        assert_eq!(meta.spec(), "linux-image-cloud-amd64=6.1.192-2");
        let image = meta.image().unwrap();
        assert_eq!(image.name, "linux-image-6.1.0-56-cloud-amd64");
        assert!(image.accepts("6.1.192-2") && !image.accepts("6.1.176-1"));
        assert_eq!(kernel_release(&image.name), Some("6.1.0-56-cloud-amd64"));
    }

    #[test]
    fn a_metapackage_that_also_depends_on_a_base_package_still_names_its_image() {
        let text = "Package: linux-image-cloud-amd64\nVersion: 7.2.13-1\n\
                    Depends: linux-base-cloud-amd64 (= 7.2.13-1), linux-image-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n";
        let meta = &parse_show(text)[0];
        assert_eq!(
            meta.image().unwrap().name,
            "linux-image-7.2.13+deb14-cloud-amd64"
        );
    }

    #[test]
    fn a_split_image_names_its_parts_and_nothing_else() {
        let image = &parse_show(SPLIT)[0];
        let parts: Vec<_> = image.parts().map(|part| part.name.as_str()).collect();
        assert_eq!(
            parts,
            [
                "linux-base-7.2.13+deb14-cloud-amd64",
                "linux-binary-7.2.13+deb14-cloud-amd64",
                "linux-modules-7.2.13+deb14-cloud-amd64"
            ]
        );
        assert!(
            image
                .parts()
                .all(|part| part.exactly.as_deref() == Some("7.2.13-1"))
        );
    }

    #[test]
    fn an_undivided_image_has_no_parts() {
        let text = "Package: linux-image-6.1.0-56-cloud-amd64\nVersion: 6.1.192-2\n\
                    Depends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool\n";
        assert_eq!(parse_show(text)[0].parts().count(), 0);
    }

    #[test]
    fn nothing_shown_is_no_package() {
        assert_eq!(newest(parse_show(""), by_text), None);
    }
}
