// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses that no program can take for anything else: no option, no list, no header.

use std::path::Path;

/// Where Debian keeps the domain of this machine's own addresses (its policy, 11.6).
pub(crate) const MAIL_NAME: &str = "/etc/mailname";

/// What that file says, if it is there and says a domain.
pub(crate) fn mail_name(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let name = text.lines().next()?.trim();
    is_address(&format!("x@{name}")).then(|| name.to_owned())
}

/// The address with a domain, if one is known. Servers need not take one without (RFC 5321, 2.3.5).
pub(crate) fn qualified(address: String, domain: Option<&str>) -> String {
    match domain {
        Some(domain) if !address.contains('@') => format!("{address}@{domain}"),
        _ => address,
    }
}

/// `name` or `name@domain` of plain characters.
pub(crate) fn is_address(text: &str) -> bool {
    let (name, domain) = match text.rsplit_once('@') {
        Some((name, domain)) => (name, Some(domain)),
        None => (text, None),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-=".contains(&byte);
    let is_domain = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    let begins = |text: &str| {
        text.bytes()
            .next()
            .is_some_and(|it| it.is_ascii_alphanumeric() || it == b'_')
    };
    text.len() <= 254
        && begins(name)
        && name.bytes().all(is_name)
        && domain.is_none_or(|it| begins(it) && it.bytes().all(is_domain) && !it.contains(".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_domain_that_this_machine_calls_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, name) in [
            ("lab1.example.org\n", Some("lab1.example.org")),
            (" lab1 \nmore\n", Some("lab1")),
            ("", None),
            ("\n", None),
            ("a b\n", None),
            ("x>\r\nRCPT TO:<y\n", None),
        ] {
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(mail_name(file.path()).as_deref(), name, "{text:?}");
        }
        assert_eq!(mail_name(Path::new("/nowhere")), None);
        let of = |address: &str, domain| qualified(address.to_owned(), domain);
        assert_eq!(of("alice", Some("lab1")), "alice@lab1");
        assert_eq!(of("alice@example.org", Some("lab1")), "alice@example.org");
        assert_eq!(of("alice", None), "alice");
    }

    #[test]
    fn only_plain_addresses_pass() {
        for text in ["alice", "a.b+c@example.org", "x@localhost", "_apt", "a-b_1"] {
            assert!(is_address(text), "{text}");
        }
        let hostile = [
            "",
            "-oQ/tmp",
            "a b",
            "a,b",
            "a\nBcc: x@y",
            "a@b@c",
            "|/bin/sh",
            "<a@b>",
            "a@",
            "@b",
            "a@-b",
            "a@b..c",
            "\"a\"@b",
            "a;b",
            "ä",
            "a@b\r",
            "a:b",
            "DOM\\user",
            "a@b c",
            "a!b",
            "a%b@c",
            "/var/mail/x",
            ":include:/x",
        ];
        for text in hostile {
            assert!(!is_address(text), "{text:?}");
        }
    }
}
