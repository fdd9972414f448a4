// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses that no program can take for anything else: no option, no list, no header.

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
