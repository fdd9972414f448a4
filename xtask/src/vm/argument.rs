// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command-line arguments with two sides: files in, files out, variables.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

/// `HOST[:GUEST]`. Without GUEST an absolute path stays what it is; of a relative one a program
/// goes to /usr/local/bin and anything else to /root.
pub(super) fn file_argument(text: &str) -> Result<(PathBuf, PathBuf)> {
    if let Some(at) = text.rfind(":/") {
        let (host, guest) = (&text[..at], &text[at + 1..]);
        return Ok((PathBuf::from(host), PathBuf::from(guest)));
    }
    let host = PathBuf::from(text);
    if host.is_absolute() {
        return Ok((host.clone(), host));
    }
    let meta = fs::metadata(&host).with_context(|| format!("look at {host:?}"))?;
    let name = host
        .file_name()
        .ok_or_else(|| anyhow!("{host:?} has no name"))?;
    let program =
        meta.is_file() && std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o111 != 0;
    let guest = Path::new(if program { "/usr/local/bin" } else { "/root" }).join(name);
    Ok((host, guest))
}

/// `GUEST:HOST`.
pub(super) fn out_argument(text: &str) -> Result<(PathBuf, PathBuf)> {
    match text.split_once(':') {
        Some((guest, host)) if guest.starts_with('/') && !host.is_empty() => {
            Ok((guest.into(), host.into()))
        }
        _ => bail!("{text:?} is not GUEST:HOST with an absolute GUEST"),
    }
}

/// `NAME=VALUE`.
pub(super) fn env_argument(text: &str) -> Result<(String, String)> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) => Ok((name.to_owned(), value.to_owned())),
        _ => bail!("{text:?} is not NAME=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_arguments_name_both_sides() {
        let file = |text: &str| file_argument(text).unwrap();
        assert_eq!(file("a/b:/usr/bin/b"), ("a/b".into(), "/usr/bin/b".into()));
        assert_eq!(
            file("/usr/bin/env"),
            ("/usr/bin/env".into(), "/usr/bin/env".into())
        );
        // Tests run in the package's directory.
        assert_eq!(
            file("Cargo.toml"),
            ("Cargo.toml".into(), "/root/Cargo.toml".into())
        );
        assert!(file_argument("no/such/file").is_err());
    }

    #[test]
    fn out_and_environment_arguments_are_checked() {
        assert_eq!(
            out_argument("/root/r.json:out/r.json").unwrap(),
            ("/root/r.json".into(), "out/r.json".into())
        );
        for text in ["r.json:x", "/root/r.json", "/root/r.json:"] {
            assert!(out_argument(text).is_err(), "{text}");
        }
        assert_eq!(
            env_argument("A_1=x=y").unwrap(),
            ("A_1".to_owned(), "x=y".to_owned())
        );
        for text in ["A", "1A=x", "A B=x", "=x"] {
            assert!(env_argument(text).is_err(), "{text}");
        }
    }
}
