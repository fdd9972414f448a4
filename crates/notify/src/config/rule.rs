// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One `[[rule]]`.

use std::path::{Path, PathBuf};

use bursar_config::reading::{Wrong, absolute_path, integer, nearest, word};
use bursar_model::EventKind;
use bursar_text::event::kind;
use toml_edit::Value;
use ureq::tls::{PemItem, parse_pem};

use super::span::span;
use super::table::{Table, strings};
use super::{ExecRule, Format, MailRule, Rule, Text, Via, WebhookRule, Who};
use crate::delivery::Seconds;

const MINUTE: Seconds = 60;
const DAY: Seconds = 86_400;
const LONGEST_PATH: usize = 4000;
/// Templates, secrets and certificates are not longer, bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Where systemd puts what `LoadCredential=` names.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// What can be told of.
pub(crate) const KINDS: [EventKind; 15] = [
    EventKind::Notice,
    EventKind::Refused,
    EventKind::Kill,
    EventKind::WouldNotice,
    EventKind::WouldRefuse,
    EventKind::WouldKill,
    EventKind::Reaped,
    EventKind::Asked,
    EventKind::NoVictim,
    EventKind::KillFailed,
    EventKind::LimitChanged,
    EventKind::Attached,
    EventKind::Released,
    EventKind::Reloaded,
    EventKind::Lost,
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Mail,
    Webhook,
    Exec,
}

/// The rule; `None`: what is wrong is noted in the table.
pub(super) fn rule(table: &mut Table<'_>) -> Option<Rule> {
    let name = table.need("name", "write name = \"users\", one word", name);
    let kinds = table.need("kinds", "write kinds = [\"kill\", \"notice\"]", kinds);
    let words = [("user", Who::User), ("administrators", Who::Administrators)];
    let who = table.get("who", |value| word(value, &words));
    let words = [
        ("mail", How::Mail),
        ("webhook", How::Webhook),
        ("exec", How::Exec),
    ];
    let remedy = "write via = \"mail\", \"webhook\" or \"exec\"";
    let how = table.need("via", remedy, |value| word(value, &words));
    let gather = table.get("gather", |value| span(value, 0, DAY));
    let most = table.get("at_most_per_day", |value| integer(value, 0..=10_000));
    let give_up = table.get("give_up_after", |value| span(value, MINUTE, 30 * DAY));
    let how = how?;
    if how == How::Mail && who.is_none() && table.item("who").is_none() {
        let wrong = Wrong::new("is missing", "write who = \"user\" or \"administrators\"");
        table.blame("who", wrong);
    }
    let via = match how {
        How::Mail => Via::Mail(mail(table)),
        How::Webhook => Via::Webhook(webhook(table)?),
        How::Exec => Via::Exec(exec(table)?),
    };
    let (usual_gather, usual_most) = match &via {
        Via::Mail(_) => (15 * MINUTE, 10),
        Via::Webhook(webhook) if webhook.format != Format::Json => (MINUTE, 0),
        Via::Webhook(_) | Via::Exec(_) => (0, 0),
    };
    Some(Rule {
        name: name?,
        kinds: kinds?,
        who: who.unwrap_or(Who::Administrators),
        gather: gather.unwrap_or(usual_gather),
        at_most_per_day: most.unwrap_or(usual_most),
        give_up_after: give_up.unwrap_or(3 * DAY),
        via,
    })
}

fn name(value: &Value) -> Result<String, Wrong> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    match value.as_str() {
        Some(text) if (1..=40).contains(&text.len()) && text.bytes().all(is_plain) => {
            Ok(text.to_owned())
        }
        _ => Err(Wrong::new(
            "is not a valid name for a rule",
            "write one word of at most 40 letters, digits, - and _",
        )),
    }
}

fn kinds(value: &Value) -> Result<Vec<EventKind>, Wrong> {
    let names = KINDS.map(kind);
    let remedy = format!("write some of {}", names.join(", "));
    let written = strings(value, 1, &remedy)?;
    let find = |text: &String| {
        let found = KINDS.into_iter().find(|it| kind(*it) == text);
        found.ok_or_else(|| {
            let remedy = match nearest(text, names.into_iter()) {
                Some(close) => format!("did you mean {close:?}?"),
                None => remedy.clone(),
            };
            Wrong::new(format!("{text:?} is not a kind of event"), remedy)
        })
    };
    written.iter().map(find).collect()
}

fn mail(table: &mut Table<'_>) -> MailRule {
    let line = table.line_of("subject");
    let subject = table.get("subject", |value| match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Wrong::new("is not a text", "write a template in quotes")),
    });
    let line_of_file = table.line_of("template");
    let template = table.get("template", |value| {
        let path = absolute_path(value, LONGEST_PATH)?;
        let bytes = read(&path, "of mail")?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok((path, text)),
            Err(_) => Err(Wrong::new(
                format!("{path:?} is no UTF-8 text"),
                "write the file again in UTF-8",
            )),
        }
    });
    MailRule {
        subject: subject.map(|text| Text { text, line }),
        template: template.map(|(path, text)| {
            let line = line_of_file;
            (path, Text { text, line })
        }),
    }
}

fn webhook(table: &mut Table<'_>) -> Option<WebhookRule> {
    let direct = table.get("url", |value| {
        url(value.as_str().unwrap_or_default().to_owned())
    });
    let from_file = table.get("url_file", |value| url(secret_text(value)?));
    let has_both = direct.is_some() && from_file.is_some();
    let has_none = table.item("url").is_none() && table.item("url_file").is_none();
    if has_both || has_none {
        let remedy = "write url = \"https://…\", or url_file = the file that has it";
        table.blame("url", Wrong::new("is needed once", remedy));
    }
    let words = [
        ("json", Format::Json),
        ("chat", Format::Chat),
        ("teams", Format::Teams),
        ("text", Format::Text),
    ];
    let format = table.get("format", |value| word(value, &words));
    let secret = table.get("secret_file", |value| {
        let text = secret_text(value)?;
        match text.len() {
            16.. => Ok(text.into_bytes()),
            _ => Err(Wrong::new(
                "has fewer than 16 characters",
                "write a longer secret (openssl rand -hex 32)",
            )),
        }
    });
    let token = table.get("token_file", secret_text);
    let authorities = table.get("ca_file", |value| {
        certificates(&absolute_path(value, LONGEST_PATH)?)
    });
    let time_limit = table.get("time_limit", |value| span(value, 1, 5 * MINUTE));
    Some(WebhookRule {
        url: direct.or(from_file)?,
        format: format.unwrap_or(Format::Json),
        secret,
        token,
        authorities,
        time_limit: time_limit.unwrap_or(30),
    })
}

/// Certificates, DER, of a file that has nothing else. Without any no server could be trusted, and all would fail.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, Wrong> {
    let text = read(path, "of certificates")?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        match item {
            Ok(PemItem::Certificate(it)) if is_whole(it.der()) => found.push(it.der().to_vec()),
            Ok(PemItem::PrivateKey(_)) => {
                let message = format!("{path:?} has a private key");
                return Err(Wrong::new(message, "name a file of certificates alone"));
            }
            Ok(_) | Err(_) => {
                let message = format!("{path:?} has a damaged certificate");
                return Err(Wrong::new(message, "copy the file again, in PEM"));
            }
        }
    }
    match found.is_empty() {
        true => Err(Wrong::new(
            format!("{path:?} has no certificate"),
            "write them in PEM (-----BEGIN CERTIFICATE-----), or remove the key to use the system's list",
        )),
        false => Ok(found),
    }
}

/// Whether it is as long as it says (DER: a sequence and its length).
fn is_whole(der: &[u8]) -> bool {
    match *der {
        [0x30, 0x82, high, low, ref rest @ ..] => {
            usize::from(u16::from_be_bytes([high, low])) == rest.len()
        }
        [0x30, 0x81, length, ref rest @ ..] => usize::from(length) == rest.len(),
        _ => false,
    }
}

/// Whose answer nobody on the way can change; on this machine itself plain http will do.
fn url(text: String) -> Result<String, Wrong> {
    let is_printable = text.bytes().all(|byte| byte.is_ascii_graphic());
    let authority = |rest: &str| {
        let authority = rest.split(['/', '?', '#', '\\']).next();
        authority.unwrap_or_default().to_owned()
    };
    // Before an @ stands what looks like a host and is none.
    let is_host = |authority: &String| !authority.is_empty() && !authority.contains('@');
    let secure = text.strip_prefix("https://").map(authority);
    let is_safe = secure.is_some_and(|it| is_host(&it));
    let local = text.strip_prefix("http://").map(authority);
    let local = local.filter(is_host).map(|authority| {
        let host = match authority.strip_prefix("[::1]") {
            Some(rest) if rest.is_empty() || rest.starts_with(':') => "localhost",
            Some(_) => "",
            None => authority.split(':').next().unwrap_or_default(),
        };
        host == "localhost"
            || host
                .parse()
                .is_ok_and(|ip: std::net::Ipv4Addr| ip.is_loopback())
    });
    match is_printable && (is_safe || local == Some(true)) {
        true => Ok(text),
        // Its end may be a secret.
        false => Err(Wrong::new(
            "is not an https URL",
            "write https://…; http:// is for localhost only",
        )),
    }
}

fn exec(table: &mut Table<'_>) -> Option<ExecRule> {
    let remedy = "write command = [\"/usr/local/bin/tell\", \"--fixed\"]";
    let command = table.need("command", remedy, |value| {
        let command = strings(value, 1, remedy)?;
        let program = command.first().map(Path::new);
        if !program.is_some_and(Path::is_absolute) {
            return Err(Wrong::new("does not begin with an absolute path", remedy));
        }
        if !program.is_some_and(Path::is_file) {
            let message = format!("{:?} is not a file", program.unwrap_or(Path::new("")));
            return Err(Wrong::new(message, "install it, or correct the path"));
        }
        Ok(command)
    });
    let time_limit = table.get("time_limit", |value| span(value, 1, 60 * MINUTE));
    Some(ExecRule {
        command: command?,
        time_limit: time_limit.unwrap_or(30),
    })
}

/// The first line of a file; a name without a slash is one of systemd's credentials.
fn secret_text(value: &Value) -> Result<String, Wrong> {
    let text = value.as_str().unwrap_or_default();
    let path = match std::env::var_os(CREDENTIALS) {
        Some(directory) if !text.is_empty() && !text.contains('/') => {
            PathBuf::from(directory).join(text)
        }
        None if !text.is_empty() && !text.contains('/') => {
            return Err(Wrong::new(
                format!("{text:?} is a credential of systemd's, and there are none here"),
                "ask the service itself (systemctl restart bursar-notify), or write an absolute path",
            ));
        }
        _ => absolute_path(value, LONGEST_PATH)?,
    };
    let bytes = read(&path, "of secrets")?;
    let line = String::from_utf8(bytes).ok();
    let line = line.and_then(|text| text.lines().next().map(|it| it.trim().to_owned()));
    match line {
        Some(line) if !line.is_empty() && line.bytes().all(|it| it.is_ascii_graphic()) => Ok(line),
        _ => Err(Wrong::new(
            format!("{path:?} has no secret in its first line"),
            "write printable characters without blanks",
        )),
    }
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>, Wrong> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    let count = file.and_then(|it| it.take(LONGEST_FILE + 1).read_to_end(&mut bytes));
    match count {
        Ok(count) if count as u64 <= LONGEST_FILE => Ok(bytes),
        Ok(_) => Err(Wrong::new(
            format!("the file {what} {path:?} is larger than 1 MiB"),
            "is it the right one?",
        )),
        Err(error) => Err(Wrong::new(
            format!("cannot read the file {what} {path:?}: {error}"),
            "bursar-notify must be able to read it; for secrets use LoadCredential= in a drop-in",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_this_machine_only() {
        let right = [
            "https://example.org/x@y",
            "http://localhost:80/",
            "http://127.0.0.1/@",
            "http://[::1]",
            "http://[::1]:8080/x",
        ];
        for text in right {
            assert!(url(text.to_owned()).is_ok(), "{text}");
        }
        let wrong = [
            "http://[::1]@evil.example/",
            "http://[::1].evil.example/",
            "http://localhost:x@evil.example/",
            "http://127.0.0.1:80@evil.example",
            "https://user:word@example.org/",
            "https://",
            "https:///x",
            "http://evil.example/",
        ];
        for text in wrong {
            assert!(url(text.to_owned()).is_err(), "{text}");
        }
    }
}
