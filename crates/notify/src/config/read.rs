// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `notify.toml`, read as a whole: everything that is wrong is said at once, each with its line.

use std::path::{Path, PathBuf};

use bursar_config::reading::{Source, Wrong, absolute_path, amount, line};
use bursar_config::{ConfigError, Finding};
use bursar_model::Bytes;
use toml_edit::{Item, TableLike};

use super::rule::rule;
use super::table::{Table, strings, whole};
use super::{Config, MailConfig, Rule, Through};
use crate::address::is_address;

const LONGEST_PATH: usize = 4000;
const LONGEST_SOCKET: usize = 107;
const MOST_RULES: usize = 64;
const LONGEST_HINT: usize = 200;

/// Reads the file at `path`.
pub(crate) fn load(path: &Path) -> Result<Config, ConfigError> {
    let source = Source::read(path)?.ok_or_else(|| ConfigError::Unreadable {
        path: path.to_owned(),
        action: "read it",
        source: std::io::ErrorKind::NotFound.into(),
        remedy: "write it (an example is in /usr/share/doc/bursar/examples), or name another with --config",
    })?;
    parse(&source)
}

/// The queue's directory, for a caller that needs nothing else of the file at `path`: other errors in it, and systemd
/// credentials that the caller may not read, do not matter. `None`: there is no file.
pub(crate) fn state_of(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    let Some(source) = Source::read(path)? else {
        return Ok(None);
    };
    let document = source
        .document()
        .map_err(|finding| ConfigError::Invalid(vec![finding]))?;
    let mut table = Table::new(&source, whole(document.as_table()), "", None);
    let state = table.get("state", |value| absolute_path(value, LONGEST_PATH));
    Ok(Some(state.unwrap_or_else(|| Config::default().state)))
}

pub(super) fn parse(source: &Source) -> Result<Config, ConfigError> {
    let document = source
        .document()
        .map_err(|finding| ConfigError::Invalid(vec![finding]))?;
    let mut table = Table::new(source, whole(document.as_table()), "", None);
    let defaults = Config::default();
    let path = |longest| move |value: &_| absolute_path(value, longest);
    let mut config = Config {
        socket: table
            .get("socket", path(LONGEST_SOCKET))
            .unwrap_or(defaults.socket),
        state: table
            .get("state", path(LONGEST_PATH))
            .unwrap_or(defaults.state),
        queue_bytes: table
            .get("queue_bytes", |value| {
                amount(value, Bytes::from_mib(1), Some(Bytes::from_mib(1024)))
            })
            .unwrap_or(defaults.queue_bytes),
        hint: table
            .get("hint", |value| line(value, LONGEST_HINT))
            .flatten(),
        mail: defaults.mail,
        rules: Vec::new(),
    };
    let mut findings = Vec::new();
    if let Some(item) = table.item("mail") {
        match item.as_table_like() {
            Some(mail) => findings.extend(read_mail(source, mail, &mut config.mail)),
            None => table.blame(
                "mail",
                Wrong::new("is not a table", "write its keys under [mail]"),
            ),
        }
    }
    findings.extend(read_rules(&mut table, &mut config));
    findings.extend(table.finish());
    if !findings.is_empty() {
        findings.sort_by_key(|finding| finding.line);
        return Err(ConfigError::Invalid(findings));
    }
    Ok(config)
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/bursar/events.sock"),
            state: PathBuf::from("/var/lib/bursar-notify"),
            queue_bytes: Bytes::from_mib(16),
            hint: None,
            mail: MailConfig {
                through: Through::Smtp("localhost:25".to_owned()),
                from: None,
                domain: None,
                administrators: vec!["root".to_owned()],
                addresses: Vec::new(),
            },
            rules: Vec::new(),
        }
    }
}

fn read_rules(table: &mut Table<'_>, config: &mut Config) -> Vec<Finding> {
    let remedy = "write at least one [[rule]]";
    let Some(item) = table.item("rule") else {
        table.blame(
            "rule",
            Wrong::new("is missing: nothing would be told", remedy),
        );
        return Vec::new();
    };
    let Some(rules) = item.as_array_of_tables() else {
        table.blame("rule", Wrong::new("is not an array of tables", remedy));
        return Vec::new();
    };
    if rules.len() > MOST_RULES {
        let message = format!("stands there {} times", rules.len());
        table.blame(
            "rule",
            Wrong::new(message, format!("write at most {MOST_RULES}")),
        );
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for it in rules.iter() {
        let line = table.source().line_of(it.span());
        let mut fields = Table::new(table.source(), whole(it), "rule", line);
        let rule: Option<Rule> = rule(&mut fields);
        if let Some(rule) = rule {
            if names.contains(&rule.name) {
                let message = format!("{:?} is another rule's name already", rule.name);
                fields.blame("name", Wrong::new(message, "give each rule its own"));
            }
            names.push(rule.name.clone());
            config.rules.push(rule);
        }
        findings.extend(fields.finish());
    }
    findings
}

fn read_mail(source: &Source, mail: &dyn TableLike, config: &mut MailConfig) -> Vec<Finding> {
    let mut table = Table::new(source, mail, "mail", None);
    let smtp = table.get("smtp", |value| match value.as_str() {
        Some(text) if is_host_and_port(text) => Ok(text.to_owned()),
        _ => Err(Wrong::new(
            "is not a server and port",
            "write smtp = \"localhost:25\"",
        )),
    });
    let sendmail = table.get("sendmail", |value| {
        let remedy = "write sendmail = [\"/usr/bin/msmtp\", \"-i\"]";
        let command = strings(value, 1, remedy)?;
        match command.first().is_some_and(|it| it.starts_with('/')) {
            true => Ok(command),
            false => Err(Wrong::new("does not begin with an absolute path", remedy)),
        }
    });
    match (smtp, sendmail) {
        (Some(_), Some(_)) => table.blame(
            "sendmail",
            Wrong::new("stands beside smtp", "remove one of the two"),
        ),
        (Some(server), None) => config.through = Through::Smtp(server),
        (None, Some(command)) => config.through = Through::Sendmail(command),
        (None, None) => {}
    }
    let address = |value: &toml_edit::Value| match value.as_str() {
        Some(text) if is_address(text) => Ok(text.to_owned()),
        _ => Err(Wrong::new(
            format!("{value} is not a plain address"),
            "write a name, or name@example.org",
        )),
    };
    config.from = table.get("from", address);
    config.domain = table.get("domain", |value| match value.as_str() {
        Some(text) if is_address(&format!("x@{text}")) => Ok(text.to_owned()),
        _ => Err(Wrong::new(
            "is not a domain",
            "write domain = \"example.org\"",
        )),
    });
    if let Some(list) = table.get("administrators", |value| {
        let remedy = "write administrators = [\"root\", \"ops@example.org\"]";
        let list = strings(value, 1, remedy)?;
        match list.iter().find(|it| !is_address(it)) {
            Some(wrong) => Err(Wrong::new(
                format!("{wrong:?} is not a plain address"),
                remedy,
            )),
            None => Ok(list),
        }
    }) {
        config.administrators = list;
    }
    let mut findings = Vec::new();
    match table.item("addresses").map(Item::as_table_like) {
        Some(Some(addresses)) => {
            let mut addresses = Table::new(source, addresses, "mail.addresses", None);
            for (name, item) in addresses.names() {
                match item.as_value().map(address) {
                    Some(Ok(to)) => config.addresses.push((name, to)),
                    Some(Err(wrong)) => addresses.blame(&name, wrong),
                    None => addresses
                        .blame(&name, Wrong::new("is not an address", "write NAME = \"…\"")),
                }
            }
            findings = addresses.into_findings();
        }
        Some(None) => table.blame(
            "addresses",
            Wrong::new(
                "is not a table",
                "write NAME = \"…\" under [mail.addresses]",
            ),
        ),
        None => {}
    }
    findings.extend(table.finish());
    findings
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
    !host.is_empty() && host.bytes().all(is_plain) && port.parse::<u16>().is_ok_and(|it| it > 0)
}
