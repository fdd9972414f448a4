// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling by mail: addresses, templates, and whoever takes the mail on.

mod message;
mod smtp;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bursar_config::Finding;
use bursar_host::{Lookup, Users};
use bursar_model::{Event, EventKind, Uid};
use jiff::{Timestamp, fmt::rfc2822};

use self::message::Mail as Message;
use crate::address::{MAIL_NAME, is_address, mail_name, qualified};
use crate::child;
use crate::config::{MailConfig, MailRule, Rule, Through};
use crate::delivery::{Outcome, Recipient};
use crate::telling::{Job, Tell};
use crate::text::{Setting, Templates, Words};

/// A program that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Mail of one rule.
pub(crate) struct Mail {
    config: MailConfig,
    templates: Templates,
    setting: Setting,
    /// The domain of addresses that have none.
    mail_name: Option<String>,
    users: Users,
}

impl Mail {
    pub(crate) fn new(
        path: &Path,
        config: &MailConfig,
        rule: &Rule,
        mail: &MailRule,
        setting: &Setting,
    ) -> Result<Self, Finding> {
        Ok(Self {
            config: config.clone(),
            templates: Templates::new(path, rule.who, mail)?,
            setting: setting.clone(),
            mail_name: mail_name(Path::new(MAIL_NAME)),
            users: Users::new(1),
        })
    }

    /// The user's name and address.
    fn user(&mut self, uid: Uid) -> Result<(String, String), Outcome> {
        // Names change hands: asked each time.
        self.users.forget();
        let name = match self.users.by_uid(uid) {
            Lookup::Found(user) => user.name,
            // SSSD says so while it restarts: whoever has gone for good is given up after a while.
            Lookup::Absent => {
                return Err(Outcome::later(format!("no user has uid {uid} now")));
            }
            Lookup::Unavailable(error) => {
                return Err(Outcome::later(format!("cannot look up uid {uid}: {error}")));
            }
        };
        let other = self.config.addresses.iter().find(|(it, _)| *it == name);
        let address = match (other, &self.config.domain) {
            (Some((_, address)), _) => address.clone(),
            (None, Some(domain)) if !name.contains('@') => format!("{name}@{domain}"),
            _ => name.clone(),
        };
        match is_address(&address) {
            true => Ok((name, address)),
            false => Err(Outcome::Refused(
                "no mail address can be made of a user's name".to_owned(),
            )),
        }
    }

    /// A uid changes hands: what is about one user is no other's to read.
    fn is_still(&mut self, uid: Uid, name: &str, events: &[Event]) -> Result<(), Outcome> {
        let names = events.iter().filter_map(name_of_user);
        let others: BTreeSet<&str> = names.filter(|it| *it != name).collect();
        for other in others {
            // One user may have several names.
            match self.users.by_name(other) {
                Lookup::Found(user) if user.uid == uid => {}
                Lookup::Found(_) => {
                    let reason = "the uid is another user's by now".to_owned();
                    return Err(Outcome::Refused(reason));
                }
                // Gone, renamed, or not known for the moment: nobody else is told meanwhile.
                Lookup::Absent => {
                    let reason = format!("the uid has another name now, and no user has {other:?}");
                    return Err(Outcome::later(reason));
                }
                Lookup::Unavailable(error) => {
                    return Err(Outcome::later(format!("cannot look up a user: {error}")));
                }
            }
        }
        Ok(())
    }

    fn hand_over(&self, message: &Message<'_>) -> Outcome {
        match &self.config.through {
            Through::Smtp(server) => {
                let text = message.text("\r\n");
                smtp::send(server, &self.setting.host, message.from, message.to, &text)
            }
            Through::Sendmail(command) => {
                let mut command = command.clone();
                // Behind this nothing is an option, and nobody is taken from the headers.
                command.push("--".to_owned());
                command.extend(message.to.iter().cloned());
                let ended = child::run(&command, message.text("\n").as_bytes(), &[], TIMEOUT);
                child::outcome("sendmail", &ended)
            }
        }
    }
}

impl Tell for Mail {
    fn tell(&mut self, job: &Job) -> Outcome {
        let (user, to) = match job.delivery.to {
            Recipient::Administrators => (None, self.config.administrators.clone()),
            Recipient::User(uid) => match self.user(uid) {
                Ok((name, address)) => match self.is_still(uid, &name, &job.delivery.events) {
                    Ok(()) => (Some(name), vec![address]),
                    Err(outcome) => return outcome,
                },
                Err(outcome) => return outcome,
            },
        };
        // A program with sendmail(8)'s interface does that itself, and knows better.
        let to: Vec<String> = match self.config.through {
            Through::Smtp(_) => {
                let domain = self.mail_name.as_deref();
                to.into_iter().map(|it| qualified(it, domain)).collect()
            }
            Through::Sendmail(_) => to,
        };
        let words = Words::new(&job.delivery, &job.id, user.as_deref(), &self.setting);
        let (subject, body) = match self.templates.mail(&words) {
            Ok(mail) => mail,
            Err(error) => return Outcome::Refused(format!("template: {}", error.kind())),
        };
        let host = self.mail_name.as_ref().unwrap_or(&self.setting.host);
        let usual = format!("bursar@{host}");
        let now = Timestamp::now().to_zoned(self.setting.zone.clone());
        let date = match rfc2822::to_string(&now) {
            Ok(date) => date,
            Err(error) => return Outcome::later(format!("clock: {error}")),
        };
        self.hand_over(&Message {
            from: self.config.from.as_deref().unwrap_or(&usual),
            to: &to,
            subject: &subject,
            date: &date,
            id: &job.id,
            host: &self.setting.host,
            body: &body,
        })
    }
}

/// The user whose account an event is about; shared accounts, uids without a name and entries of the limits are none.
fn name_of_user(event: &Event) -> Option<&str> {
    let is_entry = event.event == EventKind::LimitChanged;
    let account = event.account.as_deref().filter(|_| !is_entry)?;
    let is_number = account.bytes().all(|it| it.is_ascii_digit());
    (!is_number && !account.starts_with(['=', '@'])).then_some(account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Via;
    use crate::config::Who;
    use crate::delivery::Delivery;

    /// What comes of mail to uid 0 about this account.
    fn told(account: &str) -> Outcome {
        told_to(Uid::new(0), account)
    }

    fn told_to(uid: Uid, account: &str) -> Outcome {
        let config = MailConfig {
            through: Through::Sendmail(vec!["/bin/true".to_owned()]),
            from: None,
            domain: None,
            administrators: Vec::new(),
            addresses: Vec::new(),
        };
        let rule = Rule {
            name: "users".to_owned(),
            kinds: Vec::new(),
            who: Who::User,
            gather: 0,
            at_most_per_day: 0,
            give_up_after: 100,
            via: Via::Mail(MailRule::default()),
        };
        let setting = Setting {
            host: "lab".to_owned(),
            hint: None,
            zone: jiff::tz::TimeZone::UTC,
        };
        let path = Path::new("/n.toml");
        let mail = Mail::new(path, &config, &rule, &MailRule::default(), &setting);
        let to = Recipient::User(uid);
        let mut delivery = Delivery::new(1, "users", to, 0, 0);
        let mut event = Event::new(EventKind::Kill);
        event.account = Some(account.to_owned());
        delivery.add(&event);
        let id = "x-1".to_owned();
        mail.unwrap().tell(&Job { id, delivery })
    }

    #[test]
    fn mail_about_who_had_the_uid_before_goes_to_nobody() {
        for account in ["root", "0", "=render"] {
            assert_eq!(told(account), Outcome::Delivered, "{account}");
        }
        assert!(matches!(told("nobody"), Outcome::Refused(_)));
    }

    #[test]
    fn mail_about_who_is_not_known_at_the_moment_waits() {
        let outcome = told("no-such-user");
        assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
        let outcome = told_to(Uid::new(60_999), "60999");
        assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
    }
}
