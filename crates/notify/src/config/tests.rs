// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong with a `notify.toml` is said with file, line, key and remedy.

use std::path::Path;

use bursar_config::ConfigError;
use bursar_config::reading::Source;

use super::read::parse;
use super::*;

fn read(text: &str) -> Result<Config, Vec<String>> {
    let source = Source::new(Path::new("/n.toml"), text.to_owned());
    parse(&source).map_err(|error| match error {
        ConfigError::Invalid(findings) => findings.iter().map(ToString::to_string).collect(),
        other => vec![other.to_string()],
    })
}

const RULE: &str =
    "[[rule]]\nname = \"users\"\nkinds = [\"kill\"]\nwho = \"user\"\nvia = \"mail\"\n";

#[test]
fn the_example_is_right_and_says_the_defaults() {
    let example = include_str!("../../../../dist/notify.toml");
    let config = read(example).unwrap();
    let defaults = Config::default();
    assert_eq!(
        Config {
            rules: Vec::new(),
            ..config.clone()
        },
        defaults
    );
    let names: Vec<&str> = config.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["users", "administrators"]);
    let rule = &read(RULE).unwrap().rules[0];
    assert_eq!(
        (rule.gather, rule.at_most_per_day, rule.give_up_after),
        (900, 10, 259_200)
    );
}

#[test]
fn each_mistake_has_its_line_its_key_and_a_remedy() {
    let table = [
        (
            "",
            "/n.toml: rule: is missing: nothing would be told; write at least one [[rule]]",
        ),
        ("[[rule]\n", "/n.toml:1: is no TOML: "),
        (
            "sokcet = 1\n",
            "/n.toml:1: sokcet: is not a key here; did you mean \"socket\"?",
        ),
        (
            "queue_bytes = \"1K\"\n",
            "/n.toml:1: queue_bytes: 1K is out of range; write a size from 1M to 1G",
        ),
        (
            "socket = \"run\"\n",
            "/n.toml:1: socket: \"run\" is not absolute; ",
        ),
        (
            "[mail]\nsmtp = \"localhost\"\n",
            "/n.toml:2: mail.smtp: is not a server and port; ",
        ),
        (
            "[mail]\nsendmail = [\"mail\"]\n",
            "/n.toml:2: mail.sendmail: does not begin with an absolute path; ",
        ),
        (
            "[mail]\nsmtp = \"a:1\"\nsendmail = [\"/a\"]\n",
            "/n.toml:3: mail.sendmail: stands beside smtp; ",
        ),
        (
            "[mail]\nadministrators = [\"-oQ\"]\n",
            "/n.toml:2: mail.administrators: \"-oQ\" is not a plain address; ",
        ),
        ("[mail]\nfrom = \"a\\nBcc: b\"\n", "/n.toml:2: mail.from: "),
        (
            "[mail.addresses]\nalice = \"a b\"\n",
            "/n.toml:2: mail.addresses.alice: \"a b\" is not a plain address; ",
        ),
    ];
    for (text, expected) in table {
        let with_rule = format!("{text}{}", if text.is_empty() { "" } else { RULE });
        let said = read(&with_rule).unwrap_err();
        assert!(
            said.iter().any(|it| it.starts_with(expected)),
            "{text:?}: {said:?}"
        );
    }
}

#[test]
fn each_mistake_in_a_rule_has_its_line_too() {
    let rule = |lines: &str| format!("[[rule]]\nname = \"a\"\nkinds = [\"kill\"]\n{lines}");
    let table = [
        (
            "",
            "/n.toml:1: rule.via: is missing; write via = \"mail\", \"webhook\" or \"exec\"",
        ),
        (
            "via = \"mial\"\n",
            "/n.toml:4: rule.via: \"mial\" is none of its words; did you mean \"mail\"?",
        ),
        ("via = \"mail\"\n", "/n.toml:1: rule.who: is missing; "),
        (
            "via = \"mail\"\nwho = \"user\"\ngather = \"1w\"\n",
            "/n.toml:6: rule.gather: \"1w\" is not a span of time; ",
        ),
        (
            "via = \"mail\"\nwho = \"user\"\ntemplate = \"/nowhere\"\n",
            "/n.toml:6: rule.template: cannot read the file of mail \"/nowhere\": ",
        ),
        (
            "via = \"mail\"\nwho = \"user\"\nurl = \"x\"\n",
            "/n.toml:6: rule.url: is not a key here; ",
        ),
        (
            "via = \"webhook\"\n",
            "/n.toml:1: rule.url: is needed once; ",
        ),
        (
            "via = \"webhook\"\nurl = \"http://example.org/\"\n",
            "/n.toml:5: rule.url: is not an https URL; ",
        ),
        (
            "via = \"webhook\"\nurl = \"http://localhost@example.org/\"\n",
            "/n.toml:5: rule.url: is not an https URL; ",
        ),
        (
            "via = \"webhook\"\nurl = \"https://x\"\nsecret_file = \"/dev/null\"\n",
            "/n.toml:6: rule.secret_file: ",
        ),
        ("via = \"exec\"\n", "/n.toml:1: rule.command: is missing; "),
        (
            "via = \"exec\"\ncommand = [\"tell\"]\n",
            "/n.toml:5: rule.command: does not begin with an absolute path; ",
        ),
        (
            "via = \"exec\"\ncommand = [\"/nowhere\"]\n",
            "/n.toml:5: rule.command: \"/nowhere\" is not a file; ",
        ),
    ];
    for (lines, expected) in table {
        let said = read(&rule(lines)).unwrap_err();
        assert!(
            said.iter().any(|it| it.starts_with(expected)),
            "{lines:?}: {said:?}"
        );
    }
    let said = read(&RULE.replace("kill", "kil")).unwrap_err();
    assert_eq!(
        said,
        ["/n.toml:3: rule.kinds: \"kil\" is not a kind of event; did you mean \"kill\"?"]
    );
    let said = read(&format!("{RULE}{RULE}")).unwrap_err();
    assert_eq!(
        said,
        ["/n.toml:7: rule.name: \"users\" is another rule's name already; give each rule its own"]
    );
    for url in [
        "http://localhost:80/x",
        "http://127.0.0.1",
        "http://[::1]:8/",
        "https://example.org/a?b",
    ] {
        let text = rule(&format!("via = \"webhook\"\nurl = {url:?}\n"));
        assert!(read(&text).is_ok(), "{url}");
    }
}

/// Of a server named lab, made for this test.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBMjCB5aADAgECAhQSqSigD7Qv0uiR/9Pxvd9Zq8gshTAFBgMrZXAwDjEMMAoG\n\
A1UEAwwDbGFiMCAXDTI2MTEyNjEwMjYwNloYDzIxMjYxMTAyMTAyNjA2WjAOMQww\n\
CgYDVQQDDANsYWIwKjAFBgMrZXADIQDFfJisj3aV7js3Nzez4t2bSb5iLZC4Pj5G\n\
eASnbgsFVaNTMFEwHQYDVR0OBBYEFLxNjNGZFehyAPcbrJn05BoH31XdMB8GA1Ud\n\
IwQYMBaAFLxNjNGZFehyAPcbrJn05BoH31XdMA8GA1UdEwEB/wQFMAMBAf8wBQYD\n\
K2VwA0EA3POHBsvBFyQ7z7/B4Wm7um72ZdqWwCVhHG6Hv3NxyGIArh2ivTVd0UWG\n\
ZXmvvEPR2VMu0wcE3TQHjUWZDcvCAQ==\n\
-----END CERTIFICATE-----\n";

#[test]
fn a_file_of_certificates_has_some_and_whole_ones() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = |content: &str| {
        std::fs::write(file.path(), content).unwrap();
        let rule = RULE.replace("who = \"user\"\nvia = \"mail\"\n", "via = \"webhook\"\n");
        let path = file.path().display();
        read(&format!(
            "{rule}url = \"https://x\"\nca_file = \"{path}\"\n"
        ))
        .map(|_| ())
    };
    assert_eq!(said(CERTIFICATE), Ok(()));
    assert_eq!(said(&format!("# lab\n{CERTIFICATE}{CERTIFICATE}")), Ok(()));
    let third = CERTIFICATE.lines().nth(2).unwrap();
    for (content, expected) in [
        ("", "has no certificate; write them in PEM"),
        (
            "\n# nothing here\n",
            "has no certificate; write them in PEM",
        ),
        (
            &CERTIFICATE.replace(third, "AAAA"),
            "has a damaged certificate; ",
        ),
        (
            &CERTIFICATE.replace(third, "!"),
            "has a damaged certificate; ",
        ),
    ] {
        let said = said(content).unwrap_err().join("\n");
        let is_right = said.starts_with("/n.toml:6: rule.ca_file: ") && said.contains(expected);
        assert!(is_right, "{content:?}: {said}");
    }
}
