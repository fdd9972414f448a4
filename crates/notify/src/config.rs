// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the administrator wants told, to whom and how: `notify.toml`.

mod read;
mod rule;
mod span;
mod table;

use std::path::PathBuf;

use bursar_model::{Bytes, EventKind};

pub(crate) use self::read::{load, state_of};
use crate::delivery::Seconds;

/// Where it is when nobody says otherwise.
pub(crate) const DEFAULT_PATH: &str = "/etc/bursar/notify.toml";

/// What notify.toml says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    /// Where bursard tells events.
    pub(crate) socket: PathBuf,
    /// Where what waits is kept.
    pub(crate) state: PathBuf,
    /// What may wait, bytes.
    pub(crate) queue_bytes: Bytes,
    /// The administrator's word to users.
    pub(crate) hint: Option<String>,
    pub(crate) mail: MailConfig,
    pub(crate) rules: Vec<Rule>,
}

/// How mail leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MailConfig {
    pub(crate) through: Through,
    /// The sender; absent: bursar at this host.
    pub(crate) from: Option<String>,
    /// What stands behind the @ of a user's address; absent: the name alone, for the local MTA.
    pub(crate) domain: Option<String>,
    pub(crate) administrators: Vec<String>,
    /// Users whose address is another one.
    pub(crate) addresses: Vec<(String, String)>,
}

/// Who takes mail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Through {
    /// A server, `host:port`.
    Smtp(String),
    /// A program with sendmail(8)'s interface, and its arguments.
    Sendmail(Vec<String>),
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(crate) kinds: Vec<EventKind>,
    pub(crate) who: Who,
    /// So long events of one recipient are gathered into one message; 0: each is told by itself.
    pub(crate) gather: Seconds,
    /// So many messages for one recipient in 24 hours; 0: any number. What comes more is gathered.
    pub(crate) at_most_per_day: u32,
    /// So long after the first attempt it is tried again.
    pub(crate) give_up_after: Seconds,
    pub(crate) via: Via,
}

/// Who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// Whom an event is about.
    User,
    Administrators,
}

/// How people are told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Via {
    Mail(MailRule),
    Webhook(WebhookRule),
    Exec(ExecRule),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MailRule {
    pub(crate) subject: Option<Text>,
    /// The file of the text.
    pub(crate) template: Option<(PathBuf, Text)>,
}

/// A template as it is written, and the line of `notify.toml` that has or names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) line: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookRule {
    pub(crate) url: String,
    pub(crate) format: Format,
    /// The key of the signature.
    pub(crate) secret: Option<Vec<u8>>,
    /// `Authorization: Bearer`.
    pub(crate) token: Option<String>,
    /// Certificates of those who may vouch for the server, DER.
    pub(crate) authorities: Option<Vec<Vec<u8>>>,
    pub(crate) time_limit: Seconds,
}

/// What is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The events, as JSON.
    Json,
    /// `{"text": …}`, as Slack and Mattermost want it.
    Chat,
    /// An Adaptive Card, as a workflow of Microsoft Teams wants it.
    Teams,
    /// Plain text, as ntfy wants it.
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecRule {
    pub(crate) command: Vec<String>,
    pub(crate) time_limit: Seconds,
}

#[cfg(test)]
mod tests;
