// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling a server: an HTTPS POST, signed as Standard Webhooks has it (`webhook-id`, `webhook-timestamp`,
//! `webhook-signature`). No redirect is followed, and no answer is read beyond its status.

mod chat;
mod teams;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use jiff::Timestamp;
use sha2::Sha256;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{Format, WebhookRule};
use crate::delivery::Outcome;
use crate::telling::{Envelope, Job, Tell};
use crate::text::{Setting, Words};

/// Where systems keep whom they trust. Without any of these: those that came with the program.
const AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];

/// One server of one rule.
pub(crate) struct Webhook {
    rule: WebhookRule,
    setting: Setting,
    agent: Agent,
}

impl Webhook {
    pub(crate) fn new(rule: &WebhookRule, setting: &Setting) -> Self {
        let limit = Duration::from_secs(rule.time_limit.unsigned_abs());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // What the environment says about proxies is nobody's wish.
            .proxy(None)
            .max_idle_connections(0)
            .timeout_global(Some(limit))
            // So that it is known where time ran out.
            .timeout_resolve(Some(limit / 2))
            .timeout_connect(Some(limit / 2))
            .user_agent(concat!("bursar-notify/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(authorities(rule)).build())
            .build();
        Self {
            rule: rule.clone(),
            setting: setting.clone(),
            agent: config.new_agent(),
        }
    }

    fn body(&self, job: &Job) -> (&'static str, Vec<u8>) {
        let words = || Words::new(&job.delivery, &job.id, None, &self.setting);
        match self.rule.format {
            Format::Json => (
                "application/json",
                Envelope::new(job, &self.setting.host).to_json(),
            ),
            Format::Chat => ("application/json", chat::body(&words().short())),
            Format::Teams => ("application/json", teams::body(&words().short())),
            Format::Text => ("text/plain; charset=utf-8", words().short().into_bytes()),
        }
    }
}

fn authorities(rule: &WebhookRule) -> RootCerts {
    if let Some(own) = &rule.authorities {
        let own = own.iter().map(|it| Certificate::from_der(it).to_owned());
        return RootCerts::new_with_certs(&own.collect::<Vec<_>>());
    }
    let mut files = AUTHORITIES
        .iter()
        .filter_map(|path| std::fs::read(path).ok());
    let Some(pem) = files.next() else {
        return RootCerts::WebPki;
    };
    let items = parse_pem(&pem).filter_map(Result::ok);
    let certificates: Vec<_> = items
        .filter_map(|item| match item {
            PemItem::Certificate(certificate) => Some(certificate),
            _ => None,
        })
        .collect();
    match certificates.is_empty() {
        true => RootCerts::WebPki,
        false => RootCerts::new_with_certs(&certificates),
    }
}

/// The base64 of HMAC-SHA256 over `id.timestamp.body`.
fn signature(secret: &[u8], id: &str, timestamp: &str, body: &[u8]) -> String {
    // A key may have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return String::new();
    };
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

/// A secret as it is written: `whsec_` and base64, or bytes as they are.
fn key(secret: &[u8]) -> Vec<u8> {
    let encoded = secret.strip_prefix(b"whsec_");
    let decoded = encoded.and_then(|text| STANDARD.decode(text).ok());
    decoded.unwrap_or_else(|| secret.to_vec())
}

impl Tell for Webhook {
    fn tell(&mut self, job: &Job) -> Outcome {
        let (kind, body) = self.body(job);
        let timestamp = Timestamp::now().as_second().to_string();
        let mut request = self
            .agent
            .post(&self.rule.url)
            .header("content-type", kind)
            .header("webhook-id", &job.id)
            .header("webhook-timestamp", &timestamp);
        if let Some(secret) = &self.rule.secret {
            let signature = signature(&key(secret), &job.id, &timestamp, &body);
            request = request.header("webhook-signature", signature);
        }
        if let Some(token) = &self.rule.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        match request.send(&body) {
            Ok(answer) => match answer.status().as_u16() {
                200..=299 => Outcome::Delivered,
                status @ (408 | 409 | 425 | 429 | 500..=599) => {
                    let why = format!("webhook: status {status}");
                    // A gateway knows not what became of it.
                    let is_unsure = matches!(status, 502 | 504);
                    Outcome::Later { why, is_unsure }
                }
                status => Outcome::Refused(format!("webhook: status {status}")),
            },
            Err(error) => {
                let why = format!("webhook: {}", class(&error));
                match is_unreached(&error) {
                    true => Outcome::Unreached(why),
                    // It may have been read.
                    false => Outcome::unsure(why),
                }
            }
        }
    }
}

/// Whether it came to no connection.
fn is_unreached(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::InvalidData
                | ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::NetworkDown
                | ErrorKind::AddrNotAvailable
        ),
        ureq::Error::Timeout(during) => {
            matches!(during, ureq::Timeout::Resolve | ureq::Timeout::Connect)
        }
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_) => true,
        _ => false,
    }
}

/// What went wrong, without the URL, which may be a secret.
fn class(error: &ureq::Error) -> &'static str {
    match error {
        // What rustls says about certificates comes as this.
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            "no trusted TLS"
        }
        ureq::Error::Timeout(_) => "took too long",
        ureq::Error::HostNotFound => "no such host",
        ureq::Error::Io(_) | ureq::Error::ConnectionFailed => "no connection",
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) => "no trusted TLS",
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "no URL",
        _ => "no answer that is HTTP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{Delivery, Recipient};

    /// What comes of a server that reads a POST and gives this answer, or of one that is not there.
    fn answered(answer: Option<&'static str>, hangs_up: bool) -> Outcome {
        use std::io::{Read, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let Some(answer) = answer else { return };
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 65_536];
            let mut length = 0;
            while !request[..length].ends_with(b"}") {
                length += stream.read(&mut request[length..]).unwrap();
            }
            stream.write_all(answer.as_bytes()).unwrap();
            if !hangs_up {
                // Until the other one hangs up.
                let _ = stream.read(&mut request);
            }
        });
        if answer.is_none() {
            while !server.is_finished() {
                std::thread::yield_now();
            }
        }
        let rule = WebhookRule {
            url,
            format: Format::Json,
            secret: None,
            token: None,
            authorities: None,
            time_limit: 1,
        };
        let setting = Setting {
            host: "lab".to_owned(),
            hint: None,
            zone: jiff::tz::TimeZone::UTC,
        };
        let job = Job {
            id: "x-1".to_owned(),
            delivery: Delivery::new(1, "each", Recipient::Administrators, 0, 0),
        };
        let outcome = Webhook::new(&rule, &setting).tell(&job);
        server.join().unwrap();
        outcome
    }

    #[test]
    fn a_post_that_was_read_and_not_answered_may_have_come_through() {
        let unsure = |why: &str| Outcome::unsure(format!("webhook: {why}"));
        assert_eq!(answered(Some(""), false), unsure("took too long"));
        assert!(matches!(
            answered(Some(""), true),
            Outcome::Later { is_unsure, .. } if is_unsure
        ));
        let gateway = answered(Some("HTTP/1.1 504 x\r\nContent-Length: 0\r\n\r\n"), true);
        assert_eq!(gateway, unsure("status 504"));
        let busy = answered(Some("HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"), true);
        assert_eq!(busy, Outcome::later("webhook: status 503".to_owned()));
        assert!(matches!(answered(None, true), Outcome::Unreached(_)));
    }

    #[test]
    fn the_signature_is_that_of_standard_webhooks() {
        // The example of the specification's reference libraries.
        let secret = key(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signed = signature(
            &secret,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "1614265330",
            b"{\"test\": 2432232314}",
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
