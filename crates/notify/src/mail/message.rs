// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mail as it goes out: RFC 5322 with ASCII only, whatever is in it. No value can end a header or begin one: what
//! is not printable ASCII is encoded, and a text's lines are encoded as quoted-printable.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Most bytes of a subject that go into one encoded word (RFC 2047 allows 75 characters for all of it).
const WORD: usize = 42;
/// Characters of a subject.
const LONGEST_SUBJECT: usize = 150;
/// Columns of a quoted-printable line (RFC 2045).
const COLUMNS: usize = 76;

/// What is in a mail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mail<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a [String],
    pub(crate) subject: &'a str,
    /// RFC 2822.
    pub(crate) date: &'a str,
    /// Of the delivery: the same however often it is sent.
    pub(crate) id: &'a str,
    pub(crate) host: &'a str,
    pub(crate) body: &'a str,
}

impl Mail<'_> {
    /// The whole of it, lines ended by `end`.
    pub(crate) fn text(&self, end: &str) -> String {
        // Addresses, names of hosts and ids are of plain characters; a second look costs nothing.
        let plain = |text: &str| -> String {
            text.chars()
                .filter(|it| it.is_ascii_graphic() || *it == ' ')
                .collect()
        };
        let to: Vec<String> = self.to.iter().map(|it| plain(it)).collect();
        let headers = [
            format!("From: bursar <{}>", plain(self.from)),
            format!("To: {}", to.join(&format!(",{end} "))),
            format!("Subject: {}", subject(self.subject, end)),
            format!("Date: {}", plain(self.date)),
            format!(
                "Message-ID: <bursar.{}@{}>",
                plain(self.id),
                plain(self.host)
            ),
            format!("Bursar-Delivery: {}", plain(self.id)),
            // Nobody's holiday answers (RFC 3834).
            "Auto-Submitted: auto-generated".to_owned(),
            "MIME-Version: 1.0".to_owned(),
            "Content-Type: text/plain; charset=utf-8".to_owned(),
            "Content-Transfer-Encoding: quoted-printable".to_owned(),
        ];
        let mut text = String::new();
        for header in headers {
            text.push_str(&header);
            text.push_str(end);
        }
        text.push_str(end);
        for line in self.body.lines() {
            quote(line, end, &mut text);
            text.push_str(end);
        }
        text
    }
}

/// One line; what is not printable ASCII goes into encoded words.
fn subject(text: &str, end: &str) -> String {
    let one_line: String = text
        .chars()
        .map(|it| if it.is_control() { ' ' } else { it })
        .take(LONGEST_SUBJECT)
        .collect();
    let one_line = one_line.trim();
    if one_line
        .chars()
        .all(|it| it.is_ascii_graphic() || it == ' ')
        && !one_line.contains("=?")
    {
        return one_line.to_owned();
    }
    let mut words = vec![String::new()];
    for character in one_line.chars() {
        let is_full = words
            .last()
            .is_some_and(|it| it.len() + character.len_utf8() > WORD);
        if is_full {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(character);
        }
    }
    let encoded = words
        .iter()
        .map(|word| format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
    encoded.collect::<Vec<_>>().join(&format!("{end} "))
}

/// A line as quoted-printable, cut where it is long.
fn quote(line: &str, end: &str, text: &mut String) {
    let mut column = 0;
    let bytes = line.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let is_last = at + 1 == bytes.len();
        let is_blank = byte == b' ' || byte == b'\t';
        // A dot or "From " that begins a line is somebody else's business on the way.
        let is_special = byte == b'.' || byte == b'F';
        let is_plain = (byte.is_ascii_graphic() && byte != b'=') || (is_blank && !is_last);
        let width_at = |column| match is_plain && !(is_special && column == 0) {
            true => 1,
            false => 3,
        };
        if column + width_at(column) > COLUMNS - 1 {
            text.push('=');
            text.push_str(end);
            column = 0;
        }
        // A line that was cut begins one, too.
        let width = width_at(column);
        match width {
            1 => text.push(char::from(byte)),
            _ => text.push_str(&format!("={byte:02X}")),
        }
        column += width;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mail(subject: &str, body: &str) -> String {
        let to = ["alice".to_owned(), "b@example.org".to_owned()];
        let mail = Mail {
            from: "bursar@host",
            to: &to,
            subject,
            date: "Thu, 26 Nov 2026 07:00:00 +0000",
            id: "abc-1",
            host: "host",
            body,
        };
        mail.text("\n")
    }

    #[test]
    fn a_mail_has_its_headers_and_its_text() {
        let text = mail("killed: python3", "one\n\ntwo = 2 \nFrom here\n.\n");
        let expected = "From: bursar <bursar@host>\nTo: alice,\n b@example.org\nSubject: killed: python3\n\
            Date: Thu, 26 Nov 2026 07:00:00 +0000\nMessage-ID: <bursar.abc-1@host>\nBursar-Delivery: abc-1\n\
            Auto-Submitted: auto-generated\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
            Content-Transfer-Encoding: quoted-printable\n\none\n\ntwo =3D 2=20\n=46rom here\n=2E\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn no_line_is_one_dot_wherever_it_is_cut() {
        for length in 60..90 {
            let text = mail("x", &format!("{}.", "x".repeat(length)));
            assert!(text.lines().all(|line| line != "."), "{length}: {text}");
            let text = mail("x", &format!("{}From you", "x".repeat(length)));
            let begins = text
                .lines()
                .skip(1)
                .any(|line| line.starts_with("From you"));
            assert!(!begins, "{length}: {text}");
        }
    }

    #[test]
    fn a_subject_cannot_begin_a_header() {
        let text = mail("x\r\nBcc: all@example.org\n\nbody", "");
        assert!(
            text.contains("\nSubject: x  Bcc: all@example.org  body\nDate"),
            "{text}"
        );
        let text = mail("=?utf-8?B?eA==?= ü", "");
        assert!(text.contains("\nSubject: =?utf-8?B?"), "{text}");
    }

    proptest! {
        #[test]
        fn whatever_is_in_it_it_has_the_same_headers_and_short_ascii_lines(subject: String, body: String) {
            let text = mail(&subject, &body);
            prop_assert!(text.is_ascii());
            prop_assert!(text.lines().all(|line| line.len() <= 170 && !line.contains('\r')));
            let (head, _) = text.split_once("\n\n").unwrap();
            let names: Vec<&str> = head
                .lines()
                .filter(|line| !line.starts_with(' '))
                .filter_map(|line| Some(line.split_once(':')?.0))
                .collect();
            prop_assert_eq!(names, [
                "From", "To", "Subject", "Date", "Message-ID", "Bursar-Delivery", "Auto-Submitted", "MIME-Version",
                "Content-Type", "Content-Transfer-Encoding",
            ]);
        }
    }
}
