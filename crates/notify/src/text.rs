// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What people read: from a delivery to words, by templates. All that programs chose has passed one door by then
//! ([`Charset::shown`]) and is one line without control characters.

mod sentence;

use std::path::Path;

use bursar_config::Finding;
use bursar_config::reading::Wrong;
use bursar_model::{Bytes, Event, EventKind, Uid};
use bursar_text::Charset;
use bursar_text::event::kind;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use self::sentence::{headline, sentence, summary};
use crate::config::{MailRule, Rule, Via, Who};
use crate::delivery::{Delivery, Recipient};

const USER: &str = include_str!("templates/user.txt");
const ADMINISTRATORS: &str = include_str!("templates/administrators.txt");
const SUBJECT: &str = "bursar: {{ headline }} on {{ host }}";
/// A template that makes more is cut, characters: nobody reads it, and MTAs have bounds.
const LONGEST: usize = 64 << 10;
/// Events in a text without a template, bytes: ntfy takes 4,096, chats a little more.
const LONGEST_SHORT: usize = 3_500;
/// Steps of a template; one that loops for ever is refused.
const FUEL: u64 = 500_000;

/// What a template can say.
#[derive(Debug, Serialize)]
pub(crate) struct Words {
    pub(crate) host: String,
    /// The user's name; of administrators empty.
    pub(crate) user: String,
    pub(crate) headline: String,
    pub(crate) summary: String,
    events: Vec<EventWords>,
    count: u64,
    beyond: u64,
    /// Accounts among all of its events.
    accounts: usize,
    hint: Option<String>,
    rule: String,
    id: String,
    may_repeat: bool,
}

/// Of one event. What is not known is empty.
#[derive(Debug, Serialize)]
struct EventWords {
    time: String,
    kind: &'static str,
    account: String,
    sentence: String,
    program: String,
    pid: String,
    command: String,
    held: String,
    limit: String,
    reason: String,
}

/// What is the same in all of them.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) host: String,
    pub(crate) hint: Option<String>,
    pub(crate) zone: TimeZone,
}

impl Words {
    pub(crate) fn new(
        delivery: &Delivery,
        id: &str,
        user: Option<&str>,
        setting: &Setting,
    ) -> Self {
        let is_own = matches!(delivery.to, Recipient::User(_));
        let words = |event| EventWords::new(event, is_own, &setting.zone);
        Self {
            host: setting.host.clone(),
            user: shown(user),
            headline: headline(delivery, is_own),
            summary: summary(delivery),
            events: delivery.events.iter().map(words).collect(),
            count: delivery.count(),
            beyond: delivery.beyond(),
            accounts: delivery.accounts(),
            hint: setting.hint.clone(),
            rule: delivery.rule.clone(),
            id: id.to_owned(),
            may_repeat: delivery.may_repeat,
        }
    }

    /// A few lines without a template, for chats and telephones, which have bounds.
    pub(crate) fn short(&self) -> String {
        let mut text = format!("{} on {}", self.headline, self.host);
        let mut beyond = self.count;
        for event in &self.events {
            let account = match event.account.as_str() {
                "" => String::new(),
                account => format!("{account}: "),
            };
            let line = format!("\n{}  {account}{}", event.time, event.sentence);
            if text.len().saturating_add(line.len()) > LONGEST_SHORT {
                break;
            }
            text.push_str(&line);
            beyond = beyond.saturating_sub(1);
        }
        if beyond > 0 {
            text.push_str(&format!(
                "\nand {beyond} more; all together: {}",
                self.summary
            ));
        }
        text
    }
}

impl EventWords {
    fn new(event: &Event, is_own: bool, zone: &TimeZone) -> Self {
        let size = |bytes: Option<Bytes>| bytes.map_or_else(String::new, |it| it.to_string());
        Self {
            time: local_time(&event.time, zone),
            kind: kind(event.event),
            account: shown(event.account.as_deref()),
            sentence: shown(Some(&sentence(event, is_own))),
            program: shown(event.comm.as_deref()),
            pid: event.pid.map_or_else(String::new, |it| it.to_string()),
            command: shown(event.command.as_deref()),
            held: size(event.held),
            limit: size(event.limit),
            reason: shown(event.reason.as_deref()),
        }
    }
}

/// What others chose: one line, and no link.
fn shown(text: Option<&str>) -> String {
    let text = Charset::Unicode.shown(text.unwrap_or_default());
    text.replace("://", ": //")
}

fn local_time(time: &str, zone: &TimeZone) -> String {
    match time.parse::<Timestamp>() {
        Ok(moment) => moment
            .to_zoned(zone.clone())
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string(),
        Err(_) => shown(Some(time)),
    }
}

/// The two templates of a rule that sends mail.
#[derive(Debug)]
pub(crate) struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    /// Reads them, and tries them on events of all kinds: what is wrong is said now and not when somebody waits.
    pub(crate) fn new(config: &Path, who: Who, rule: &MailRule) -> Result<Self, Finding> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_trim_blocks(false);
        // Mail is plain text, whatever the file is called.
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        let usual = match who {
            Who::User => USER,
            Who::Administrators => ADMINISTRATORS,
        };
        let subject = rule.subject.as_ref();
        let own = rule.template.as_ref();
        let blame_subject = |error: minijinja::Error| {
            wrong(&error).at(config, subject.and_then(|it| it.line), "rule.subject")
        };
        let blame_text = |error: minijinja::Error| match own {
            Some((path, _)) => wrong(&error).at(path, error.line(), ""),
            None => wrong(&error).at(config, None, "rule.template"),
        };
        let text = subject.map_or(SUBJECT, |it| &it.text).to_owned();
        environment
            .add_template_owned("subject", text)
            .map_err(blame_subject)?;
        let text = own.map_or(usual, |(_, it)| &it.text).to_owned();
        environment
            .add_template_owned("text", text)
            .map_err(blame_text)?;
        let templates = Self { environment };
        for words in samples(who) {
            templates.render("subject", &words).map_err(blame_subject)?;
            templates.render("text", &words).map_err(blame_text)?;
        }
        Ok(templates)
    }

    fn render(&self, name: &str, words: &Words) -> Result<String, minijinja::Error> {
        let text = self.environment.get_template(name)?.render(words)?;
        Ok(text.chars().take(LONGEST).collect())
    }

    /// Subject and text.
    pub(crate) fn mail(&self, words: &Words) -> Result<(String, String), minijinja::Error> {
        Ok((self.render("subject", words)?, self.render("text", words)?))
    }
}

/// All templates of the rules, tried.
pub(crate) fn check(config: &Path, rules: &[Rule]) -> Vec<Finding> {
    let mail = rules.iter().filter_map(|rule| match &rule.via {
        Via::Mail(mail) => Templates::new(config, rule.who, mail).err(),
        Via::Webhook(_) | Via::Exec(_) => None,
    });
    mail.collect()
}

fn wrong(error: &minijinja::Error) -> Wrong {
    let detail = error.detail().unwrap_or("is no template");
    let message = format!("{}: {detail}", error.kind());
    Wrong::new(
        message,
        "mend that line; docs/reference/notify.md lists what templates can say",
    )
}

/// A delivery of little and one of much.
fn samples(who: Who) -> Vec<Words> {
    let (to, user) = match who {
        Who::User => (Recipient::User(Uid::new(1000)), Some("alice")),
        Who::Administrators => (Recipient::Administrators, None),
    };
    let setting = Setting {
        host: "host".to_owned(),
        hint: Some("a hint".to_owned()),
        zone: TimeZone::UTC,
    };
    let mut delivery = Delivery::new(1, "rule", to, 0, 0);
    delivery.add(&Event::new(EventKind::Notice));
    let little = Words::new(&delivery, "id", user, &setting);
    for number in 0..200 {
        let mut event = Event::new(EventKind::Kill);
        event.account = Some(format!("user{number}"));
        event.held = Some(Bytes::from_mib(512));
        event.limit = Some(Bytes::from_mib(512));
        delivery.add(&event);
    }
    delivery.may_repeat = true;
    vec![little, Words::new(&delivery, "id", user, &setting)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(subject: &str, text: &str) -> MailRule {
        let written = |text: &str| crate::config::Text {
            text: text.to_owned(),
            line: Some(7),
        };
        MailRule {
            subject: (!subject.is_empty()).then(|| written(subject)),
            template: (!text.is_empty()).then(|| ("/t.txt".into(), written(text))),
        }
    }

    fn refused(subject: &str, text: &str) -> String {
        let made = Templates::new(Path::new("/n.toml"), Who::User, &rule(subject, text));
        made.unwrap_err().to_string()
    }

    #[test]
    fn the_usual_templates_hold_for_everybody() {
        for who in [Who::User, Who::Administrators] {
            Templates::new(Path::new("/n.toml"), who, &MailRule::default()).unwrap();
        }
    }

    #[test]
    fn a_template_that_is_wrong_is_refused_with_its_line() {
        let said = refused(
            "",
            "one\n{% for event in events %}\n{{ event.time }\n{% endfor %}",
        );
        assert!(said.starts_with("/t.txt:3: "), "{said}");
        let said = refused("", "one\n{{ evnts }}\n");
        assert!(said.starts_with("/t.txt:2: undefined value"), "{said}");
        let said = refused(
            "",
            "\n{% for i in range(10000) %}{% for j in range(10000) %}{{ j }}{% endfor %}{% endfor %}",
        );
        assert!(said.starts_with("/t.txt:2: "), "{said}");
        let said = refused("{{ headline", "");
        assert!(said.starts_with("/n.toml:7: rule.subject: "), "{said}");
    }

    fn setting() -> Setting {
        Setting {
            host: "lab".to_owned(),
            hint: None,
            zone: TimeZone::UTC,
        }
    }

    #[test]
    fn what_a_program_is_called_is_no_link() {
        let mut delivery = Delivery::new(1, "admins", Recipient::Administrators, 0, 0);
        let mut event = Event::new(EventKind::Kill);
        event.comm = Some("https://evil.io".to_owned());
        event.command = Some("http://evil.example/x".to_owned());
        event.account = Some("a://b".to_owned());
        delivery.add(&event);
        let words = Words::new(&delivery, "id-1", None, &setting());
        let all = serde_json::to_string(&words).unwrap() + &words.short();
        assert!(all.contains("https: //evil.io was killed"), "{all}");
        assert!(!all.contains("://"), "{all}");
    }

    #[test]
    fn a_short_text_has_an_end_and_says_what_is_not_in_it() {
        let mut delivery = Delivery::new(1, "chat", Recipient::Administrators, 0, 0);
        let mut event = Event::new(EventKind::Refused);
        event.reason = Some("why\\".repeat(100));
        for _ in 0..30 {
            delivery.add(&event);
        }
        let text = Words::new(&delivery, "id-1", None, &setting()).short();
        let told = text.lines().count() - 2;
        assert!(text.len() < 4_000, "{}", text.len());
        let rest = format!("\nand {} more; all together: 30 refused", 30 - told);
        assert!(told >= 5 && text.ends_with(&rest), "{text}");
    }

    #[test]
    fn what_a_program_is_called_ends_no_line_and_is_no_template() {
        let mut delivery = Delivery::new(1, "users", Recipient::User(Uid::new(1000)), 0, 0);
        let mut event = Event::new(EventKind::Kill);
        event.comm = Some("a\nFrom: b\r\u{202e}{{ host }}".to_owned());
        event.time = "2026-11-26T07:00:00.000000Z".to_owned();
        delivery.add(&event);
        let setting = Setting {
            host: "lab".to_owned(),
            hint: None,
            zone: TimeZone::UTC,
        };
        let words = Words::new(&delivery, "id-1", Some("alice"), &setting);
        let templates = Templates::new(Path::new("/n.toml"), Who::User, &MailRule::default());
        let (subject, text) = templates.unwrap().mail(&words).unwrap();
        assert_eq!(subject, "bursar: one of your programs was killed on lab");
        let line = text.lines().nth(2).unwrap();
        let name = "a\\nFrom: b\\r\\u{202e}{{ host }}";
        assert_eq!(line, format!("- 2026-11-26 07:00:00: {name} was killed."));
    }
}
