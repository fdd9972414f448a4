// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's apt sources, read and turned towards another suite of Debian. Pure: text in,
//! text out. Where packages come from is the machine's business, so no address is known here.

use anyhow::{Result, bail};

/// One entry for binary packages, in the words of sources.list(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    uris: Vec<String>,
    suites: Vec<String>,
    components: Vec<String>,
    signed_by: Option<String>,
    /// Everything else, carried along: Trusted, Check-Valid-Until, By-Hash, …
    options: Vec<(String, String)>,
}

/// Which part of a Debian release a suite name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pocket {
    Release,
    Updates,
    Security,
}

impl Pocket {
    /// `bookworm-security` and the older `buster/updates` are both the security pocket. Backports,
    /// proposed updates and third parties' names (`bookworm-pgdg`) are none of ours.
    fn of(suite: &str) -> Option<Pocket> {
        let (base, rest) = match suite.find(['-', '/']) {
            Some(at) => suite.split_at(at),
            None => (suite, ""),
        };
        match rest {
            _ if base.is_empty() => None,
            "" => Some(Pocket::Release),
            "-updates" => Some(Pocket::Updates),
            "-security" | "/updates" => Some(Pocket::Security),
            _ => None,
        }
    }

    /// The pocket of another release; unstable has one pocket only.
    fn within(self, suite: &str) -> Option<String> {
        let rolling = matches!(suite, "sid" | "unstable");
        match self {
            Pocket::Release => Some(suite.to_owned()),
            Pocket::Updates | Pocket::Security if rolling => None,
            Pocket::Updates => Some(format!("{suite}-updates")),
            Pocket::Security => Some(format!("{suite}-security")),
        }
    }
}

impl Source {
    /// Whether this entry serves Debian itself. Signed by Debian's keys it does; otherwise the
    /// customary path (`…/debian`, `…/debian-security`) with the component `main` is taken as a
    /// sign, and what it then delivers is checked by its `Origin` (see [`super::apt`]).
    pub(super) fn serves_debian(&self) -> bool {
        let reachable = self.uris.iter().any(|uri| !uri.starts_with("cdrom:"));
        let debian_keys = self
            .signed_by
            .as_deref()
            .is_some_and(|keys| keys.contains("debian-archive"));
        let customary_path = self.uris.iter().any(|uri| {
            uri.trim_end_matches('/')
                .rsplit('/')
                .next()
                .is_some_and(|last| last.starts_with("debian"))
        });
        let main = self.components.iter().any(|component| component == "main");
        reachable && main && (debian_keys || customary_path)
    }

    /// The same entry for another suite, pocket by pocket; `None` where nothing is left.
    pub(super) fn for_suite(&self, suite: &str) -> Option<Source> {
        let mut suites = Vec::new();
        for own in &self.suites {
            let Some(swapped) = Pocket::of(own).and_then(|pocket| pocket.within(suite)) else {
                continue;
            };
            if !suites.contains(&swapped) {
                suites.push(swapped);
            }
        }
        let source = Source {
            suites,
            components: vec!["main".to_owned()],
            ..self.clone()
        };
        (!source.suites.is_empty()).then_some(source)
    }

    /// Only the release itself, without updates and security: what a mirror must have.
    pub(super) fn release_only(&self) -> Option<Source> {
        let suites: Vec<String> = self
            .suites
            .iter()
            .filter(|s| Pocket::of(s) == Some(Pocket::Release))
            .cloned()
            .collect();
        (!suites.is_empty()).then(|| Source {
            suites,
            ..self.clone()
        })
    }

    /// The same entry checked against another keyring file.
    pub(super) fn signed_by(&self, keyring: &str) -> Source {
        Source {
            signed_by: Some(keyring.to_owned()),
            ..self.clone()
        }
    }

    /// The same entry with its signature not checked at all.
    pub(super) fn unverified(&self) -> Source {
        let mut source = Source {
            signed_by: None,
            ..self.clone()
        };
        source
            .options
            .retain(|(name, _)| !name.eq_ignore_ascii_case("trusted"));
        source
            .options
            .push(("Trusted".to_owned(), "yes".to_owned()));
        source
    }

    /// The entry as a deb822 stanza for amd64 binaries.
    pub(super) fn to_stanza(&self) -> String {
        let mut stanza = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: {}\nArchitectures: amd64\n",
            self.uris.join(" "),
            self.suites.join(" "),
            self.components.join(" "),
        );
        if let Some(keys) = &self.signed_by {
            stanza.push_str(&format!(
                "Signed-By:{}{keys}\n",
                if keys.starts_with('\n') { "" } else { " " }
            ));
        }
        for (name, value) in &self.options {
            stanza.push_str(&format!("{name}: {value}\n"));
        }
        stanza
    }
}

/// Reads a `.sources` file.
pub(super) fn parse_deb822(text: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(from_fields(std::mem::take(&mut fields))?);
        } else if line.starts_with([' ', '\t']) {
            let Some((_, value)) = fields.last_mut() else {
                bail!("continuation line {line:?} continues nothing");
            };
            // The line break matters where a whole key stands in Signed-By.
            value.push('\n');
            value.push_str(line);
        } else {
            let Some((name, value)) = line.split_once(':') else {
                bail!("line {line:?} is not \"Field: value\"");
            };
            fields.push((name.to_owned(), value.trim().to_owned()));
        }
    }
    Ok(sources)
}

fn from_fields(fields: Vec<(String, String)>) -> Result<Option<Source>> {
    let mut source = Source {
        uris: Vec::new(),
        suites: Vec::new(),
        components: Vec::new(),
        signed_by: None,
        options: Vec::new(),
    };
    let (mut binary, mut enabled) = (false, true);
    let words = |value: &str| {
        value
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let any = !fields.is_empty();
    for (name, value) in fields {
        match name.to_ascii_lowercase().as_str() {
            "types" => binary = words(&value).iter().any(|kind| kind == "deb"),
            "uris" => source.uris = words(&value),
            "suites" => source.suites = words(&value),
            "components" => source.components = words(&value),
            "signed-by" => source.signed_by = Some(value),
            "enabled" => {
                enabled = !matches!(
                    value.to_ascii_lowercase().as_str(),
                    "no" | "false" | "0" | "off"
                )
            }
            // Ours are fixed, or would narrow or widen what is downloaded.
            "architectures" | "languages" | "targets" | "snapshot" => {}
            _ => source.options.push((name, value)),
        }
    }
    if any && binary && enabled && (source.uris.is_empty() || source.suites.is_empty()) {
        bail!("an entry lacks its URIs or its Suites");
    }
    Ok((any && binary && enabled).then_some(source))
}

/// Reads a `.list` file.
pub(super) fn parse_one_line(text: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line
            .strip_prefix("deb")
            .filter(|rest| rest.starts_with([' ', '\t', '[']))
        else {
            continue; // deb-src, or an empty line
        };
        let (options, rest) = match rest.trim_start().strip_prefix('[') {
            Some(bracketed) => match bracketed.split_once(']') {
                Some((options, rest)) => (options, rest),
                None => bail!("line {line:?} opens its options with [ and never closes them"),
            },
            None => ("", rest),
        };
        let mut fields = vec![("Types".to_owned(), "deb".to_owned())];
        for option in options.split_whitespace() {
            let Some((name, value)) = option.split_once('=') else {
                bail!("option {option:?} in line {line:?} is not name=value");
            };
            fields.push((
                long_option_name(name.trim_end_matches(['+', '-'])),
                value.to_owned(),
            ));
        }
        let mut words = rest.split_whitespace();
        let (Some(uri), Some(suite)) = (words.next(), words.next()) else {
            bail!("line {line:?} lacks its address or its suite");
        };
        fields.push(("URIs".to_owned(), uri.to_owned()));
        fields.push(("Suites".to_owned(), suite.to_owned()));
        fields.push(("Components".to_owned(), words.collect::<Vec<_>>().join(" ")));
        sources.extend(from_fields(fields)?);
    }
    Ok(sources)
}

/// The few options whose name differs between the two formats.
fn long_option_name(name: &str) -> String {
    match name {
        "arch" => "Architectures",
        "lang" => "Languages",
        "target" => "Targets",
        other => other,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(sources: &[Source], suite: &str) -> String {
        sources
            .iter()
            .filter(|source| source.serves_debian())
            .filter_map(|source| source.for_suite(suite))
            .map(|source| source.to_stanza())
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
    fn deb822_sources_turn_to_another_release_pocket_by_pocket() {
        let sources = parse_deb822(DEB822).unwrap();
        assert_eq!(sources.len(), 3);
        assert_eq!(
            swapped(&sources, "trixie"),
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
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\
             Check-Valid-Until: no\n"
        );
    }

    #[test]
    fn unstable_has_no_updates_and_no_security_pocket() {
        let sources = parse_deb822(DEB822).unwrap();
        let text = swapped(&sources, "sid");
        assert_eq!(text.matches("Suites: sid\n").count(), 1, "{text}");
        assert!(!text.contains("security"), "{text}");
    }

    #[test]
    fn a_key_inside_signed_by_keeps_its_lines() {
        let text = "Types: deb\nURIs: http://m.example/debian\nSuites: bookworm\nComponents: main\n\
                    Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n -----END PGP PUBLIC KEY BLOCK-----\n";
        let sources = parse_deb822(text).unwrap();
        let stanza = sources[0].to_stanza();
        assert!(
            stanza.contains(
                "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n -----END"
            ),
            "{stanza}"
        );
        assert_eq!(parse_deb822(&stanza).unwrap(), sources);
    }

    #[test]
    fn one_line_sources_are_read_with_and_without_options() {
        let text = "\
# comment
deb http://mirror.example/debian bookworm main contrib # trailing words
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no ] http://mirror.example/deb-mirror bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb [trusted=yes] http://vendor.example/linux/debian bookworm stable
deb cdrom:[Debian]/ bookworm main
";
        let sources = parse_one_line(text).unwrap();
        assert_eq!(
            swapped(&sources, "trixie"),
            "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie\nComponents: main\nArchitectures: amd64\n\n\
             Types: deb\nURIs: http://mirror.example/deb-mirror\nSuites: trixie-security\nComponents: main\nArchitectures: amd64\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\ncheck-valid-until: no\n"
        );
    }

    #[test]
    fn foreign_pockets_are_not_taken_for_debian_ones() {
        for (suite, pocket) in [
            ("bookworm", Some(Pocket::Release)),
            ("stable-security", Some(Pocket::Security)),
            ("buster/updates", Some(Pocket::Security)),
            ("bookworm-updates", Some(Pocket::Updates)),
            ("bookworm-backports", None),
            ("bookworm-pgdg", None),
            ("./", None),
            ("/", None),
        ] {
            assert_eq!(Pocket::of(suite), pocket, "{suite}");
        }
    }

    #[test]
    fn broken_sources_are_refused_with_the_line() {
        for text in [
            "Suites bookworm\n",
            " continued\n",
            "Types: deb\nURIs: http://m.example/debian\n",
        ] {
            assert!(parse_deb822(text).is_err(), "{text}");
        }
        for text in [
            "deb [arch=amd64 http://m.example/debian bookworm main",
            "deb http://m.example/debian",
            "deb [x] a b c",
        ] {
            assert!(parse_one_line(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_unverified_source_says_so_and_drops_its_keyring() {
        let source = &parse_deb822(DEB822).unwrap()[0];
        let stanza = source.unverified().to_stanza();
        assert!(
            stanza.contains("Trusted: yes") && !stanza.contains("Signed-By"),
            "{stanza}"
        );
    }
}
