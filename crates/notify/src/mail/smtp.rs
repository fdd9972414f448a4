// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handing mail to a server: RFC 5321, plain, for the machine's own server or a relay that trusts it. Who needs TLS or
//! a password has the local server, or msmtp as `sendmail`, see to that.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::delivery::Outcome;

/// A server that takes longer for one answer is tried again later.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer lines and more of them are no answer.
const LONGEST_LINE: usize = 2048;
const MOST_LINES: usize = 100;

/// One conversation.
struct Conversation {
    reader: BufReader<TcpStream>,
}

/// Why it came to nothing.
enum Failure {
    Unreached(String),
    Later(String),
    /// It may be theirs.
    Unsure(String),
    Refused(String),
}

impl Failure {
    fn why(self) -> String {
        match self {
            Self::Unreached(why) | Self::Later(why) | Self::Unsure(why) | Self::Refused(why) => why,
        }
    }

    /// Nothing can have come through.
    fn before_text(self) -> Self {
        match self {
            Self::Unsure(why) => Self::Later(why),
            other => other,
        }
    }

    /// Before anything of one mail was said.
    fn unreached(self) -> Self {
        Self::Unreached(self.why())
    }
}

/// Sends one mail, whose lines end in CRLF.
pub(super) fn send(server: &str, host: &str, from: &str, to: &[String], text: &str) -> Outcome {
    match try_send(server, host, from, to, text) {
        Ok(()) => Outcome::Delivered,
        Err(Failure::Unreached(why)) => Outcome::Unreached(format!("{server}: {why}")),
        Err(Failure::Later(why)) => Outcome::later(format!("{server}: {why}")),
        Err(Failure::Unsure(why)) => Outcome::unsure(format!("{server}: {why}")),
        Err(Failure::Refused(why)) => Outcome::Refused(format!("{server}: {why}")),
    }
}

fn try_send(
    server: &str,
    host: &str,
    from: &str,
    to: &[String],
    text: &str,
) -> Result<(), Failure> {
    let mut it = Conversation::begin(server)?;
    let done = hand_over(&mut it, server, host, from, to, text);
    // The mail is theirs or not, whatever becomes of this; servers complain of clients that hang up without a word.
    let _ = match done {
        Ok(()) => it.say("QUIT", 221),
        Err(_) => it.write("QUIT\r\n"),
    };
    done
}

fn hand_over(
    it: &mut Conversation,
    server: &str,
    host: &str,
    from: &str,
    to: &[String],
    text: &str,
) -> Result<(), Failure> {
    offer(it, server, host, from, to).map_err(Failure::before_text)?;
    it.write(&stuffed(text))?;
    it.hear(250)
}

/// All that is said before the mail itself.
fn offer(
    it: &mut Conversation,
    server: &str,
    host: &str,
    from: &str,
    to: &[String],
) -> Result<(), Failure> {
    it.say(&format!("EHLO {host}"), 250)
        .map_err(Failure::unreached)?;
    // What it has against us or the sender is no word about a recipient, and can be mended.
    it.say(&format!("MAIL FROM:<{from}>"), 250)
        .map_err(|failure| Failure::Later(failure.why()))?;
    // Who is not known must not keep the others from it. Who cannot have it now gets it with the others later:
    // nobody is left out, and nobody gets it twice.
    let (mut taken, mut last) = (0, None);
    for address in to {
        match it.say(&format!("RCPT TO:<{address}>"), 250) {
            Ok(()) => taken += 1,
            Err(Failure::Refused(why)) => {
                tracing::warn!("{server}: a recipient was not taken: {why}");
                last = Some(Failure::Refused(why));
            }
            Err(failure) => return Err(failure),
        }
    }
    if let (Some(failure), 0) = (last, taken) {
        return Err(failure);
    }
    it.say("DATA", 354)
}

/// A line that begins with a dot gets another one; a line of one dot is the end.
fn stuffed(text: &str) -> String {
    let text = text.replace("\r\n.", "\r\n..");
    let end = if text.ends_with("\r\n") {
        ".\r\n"
    } else {
        "\r\n.\r\n"
    };
    format!("{text}{end}")
}

impl Conversation {
    fn begin(server: &str) -> Result<Self, Failure> {
        let unreached = |error: std::io::Error| Failure::Unreached(error.to_string());
        let addresses = server.to_socket_addrs().map_err(unreached)?;
        let mut last = Failure::Unreached("has no address".to_owned());
        for address in addresses {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIMEOUT)).map_err(unreached)?;
                    stream.set_write_timeout(Some(TIMEOUT)).map_err(unreached)?;
                    let mut it = Self {
                        reader: BufReader::new(stream),
                    };
                    it.hear(220).map_err(Failure::unreached)?;
                    return Ok(it);
                }
                Err(error) => last = unreached(error),
            }
        }
        Err(last)
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.reader.get_mut().write_all(text.as_bytes());
        written.map_err(|error| Failure::Unsure(error.to_string()))
    }

    fn say(&mut self, line: &str, expected: u16) -> Result<(), Failure> {
        self.write(&format!("{line}\r\n"))?;
        self.hear(expected)
    }

    /// An answer: `250-one`, `250 two`. No answer that can be read leaves unsure what was done.
    fn hear(&mut self, expected: u16) -> Result<(), Failure> {
        use std::io::Read;
        for _ in 0..MOST_LINES {
            let mut line = Vec::new();
            let read = (&mut self.reader)
                .take(LONGEST_LINE as u64)
                .read_until(b'\n', &mut line);
            match read {
                Ok(0) => return Err(Failure::Unsure("hung up".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(Failure::Unsure(error.to_string())),
            }
            let shown = bursar_model::printable(line.trim_ascii_end(), 200);
            let code: Option<u16> = line
                .get(..3)
                .and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
            if line.get(3) == Some(&b'-') && code.is_some() {
                continue;
            }
            return match code {
                Some(code) if code == expected || (code == 251 && expected == 250) => Ok(()),
                Some(400..=499) => Err(Failure::Later(shown)),
                Some(500..=599) => Err(Failure::Refused(shown)),
                _ => Err(Failure::Unsure(shown)),
            };
        }
        Err(Failure::Unsure("answers without an end".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that gives these answers, one a line heard, and returns what it heard.
    fn served(answers: &'static [&'static str]) -> (Outcome, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap().to_string();
        let heard = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let mut heard = String::new();
            // An empty one: it hangs up.
            for answer in answers.iter().take_while(|it| !it.is_empty()) {
                stream.write_all(answer.as_bytes()).unwrap();
                if !answer.starts_with("354") {
                    let Some(Ok(line)) = lines.next() else { break };
                    heard += &format!("{line}\n");
                    continue;
                }
                for line in lines.by_ref().map(Result::unwrap) {
                    heard += &format!("{line}\n");
                    if line == "." {
                        break;
                    }
                }
            }
            heard
        });
        let to = ["alice".to_owned(), "bob".to_owned()];
        let outcome = send(
            &server,
            "host",
            "bursar@host",
            &to,
            "Subject: x\r\n\r\n.dot\r\n",
        );
        (outcome, heard.join().unwrap())
    }

    #[test]
    fn a_mail_is_handed_over_and_no_line_ends_it_early() {
        let (outcome, heard) = served(&[
            "220 hello\r\n",
            "250-host\r\n250 SIZE\r\n",
            "250 ok\r\n",
            "250 ok\r\n",
            "550 no bob\r\n",
            "354 go\r\n",
            "250 queued\r\n",
            "221 bye\r\n",
        ]);
        assert_eq!(outcome, Outcome::Delivered);
        assert_eq!(
            heard,
            "EHLO host\nMAIL FROM:<bursar@host>\nRCPT TO:<alice>\nRCPT TO:<bob>\nDATA\nSubject: x\n\n..dot\n.\nQUIT\n"
        );
    }

    #[test]
    fn a_refusal_is_final_and_a_server_in_trouble_is_asked_again() {
        let begun = ["220 hello\r\n", "250 ok\r\n", "250 ok\r\n"];
        let answered = |answers: &[&'static str]| served(Vec::leak([&begun[..], answers].concat()));
        let (outcome, _) = answered(&["550 no alice\r\n", "553 no bob\r\n"]);
        assert!(
            matches!(&outcome, Outcome::Refused(why) if why.ends_with("553 no bob")),
            "{outcome:?}"
        );
        // Not now for one: for nobody yet, whatever the others are told.
        for one in ["250 ok\r\n", "550 no alice\r\n"] {
            let (outcome, heard) = answered(&[one, "451 not now\r\n", ""]);
            assert!(matches!(outcome, Outcome::Later { is_unsure, .. } if !is_unsure));
            assert!(!heard.contains("DATA"), "{heard}");
        }
        // No word about a recipient.
        let (outcome, _) = served(&["220 hello\r\n", "250 ok\r\n", "553 not you\r\n"]);
        assert!(matches!(outcome, Outcome::Later { .. }), "{outcome:?}");
        let (outcome, _) = served(&["554 no service\r\n"]);
        assert!(matches!(outcome, Outcome::Unreached(_)), "{outcome:?}");
        let busy = served(&["421 busy\r\n"]).0;
        assert!(matches!(busy, Outcome::Unreached(_)));
        let full = served(&["220 hello\r\n", "250 ok\r\n", "451 disk full\r\n"]).0;
        assert!(matches!(full, Outcome::Later { is_unsure, .. } if !is_unsure));
        let gone = send("127.0.0.1:1", "host", "a", &["b".to_owned()], "");
        assert!(matches!(gone, Outcome::Unreached(_)));
    }

    #[test]
    fn a_mail_that_was_sent_and_not_answered_may_have_come_through() {
        let begun = &[
            "220 hello\r\n",
            "250 ok\r\n",
            "250 ok\r\n",
            "250 ok\r\n",
            "250 ok\r\n",
        ];
        for (last, expected) in [("", true), ("hm\r\n", true), ("452 full\r\n", false)] {
            let mut answers = begun.to_vec();
            answers.extend(["354 go\r\n", last]);
            let (outcome, _) = served(Vec::leak(answers));
            assert!(
                matches!(&outcome, Outcome::Later { is_unsure, .. } if *is_unsure == expected),
                "{last:?}: {outcome:?}"
            );
        }
        // Who hangs up before has nothing.
        let (outcome, _) = served(&begun[..3]);
        assert!(matches!(outcome, Outcome::Later { is_unsure, .. } if !is_unsure));
    }
}
