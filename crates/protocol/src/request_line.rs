// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request as it is read from a line: it says by name what it asks, not by the number that serde gives a name.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use crate::message::Request;

impl Request {
    /// The request in a line.
    ///
    /// serde alone takes the number of a variant for its name, and what `0` asks for changes with each variant that is
    /// added: a name is insisted on here.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_line(line: &[u8]) -> Result<Self, serde_json::Error> {
        let request = serde_json::from_slice(line)?;
        if !begins_with_name(line) {
            serde_json::from_slice::<Named>(line)?;
        }
        Ok(request)
    }
}

/// Whether the line begins as ours do, with what is asked as a text: such a line is read once.
fn begins_with_name(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"{\"version\":") else {
        return false;
    };
    let digits = rest.iter().take_while(|it| it.is_ascii_digit()).count();
    rest.get(digits..)
        .is_some_and(|it| it.starts_with(b",\"ask\":\""))
}

/// A [`Request`] that says by name what it asks.
#[derive(Deserialize)]
struct Named {
    #[serde(rename = "ask", deserialize_with = "name")]
    _ask: (),
}

/// A text, whichever: [`Operation`] has looked at it.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = ();

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("what is asked, by its name")
        }

        fn visit_str<E>(self, _: &str) -> Result<(), E> {
            Ok(())
        }
    }
    deserializer.deserialize_str(Text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VERSION;
    use crate::message::Operation;

    #[test]
    fn what_is_asked_is_said_by_name() {
        let parse = |text: &str| Request::from_line(text.as_bytes());
        for (ask, error) in [
            (
                "0",
                "invalid type: integer `0`, expected what is asked, by its name",
            ),
            (
                "1",
                "invalid type: integer `1`, expected what is asked, by its name",
            ),
            ("99", "invalid value: integer `99`"),
            ("null", "invalid type"),
            (r#""0""#, "unknown variant `0`"),
            (r#"["quota"]"#, "invalid type"),
            (r#"1,"ask":"quota""#, "duplicate field `ask`"),
            (r#""quota","ask":1"#, "duplicate field `ask`"),
            (
                r#"1,"later":{"version":1,"ask":"quota"}"#,
                "invalid type: integer `1`",
            ),
            (r#"1,"later":",\"ask\":\"""#, "invalid type: integer `1`"),
        ] {
            for text in [
                format!(r#"{{"version":1,"ask":{ask}}}"#),
                format!(r#"{{ "version" : 1 , "ask" : {ask} }}"#),
                format!(r#"{{"ask":{ask},"version":1}}"#),
                format!(r#"{{"version":1,"\u0061sk":{ask}}}"#),
            ] {
                let said = parse(&text).unwrap_err().to_string();
                assert!(said.starts_with(error), "{text}: {said}");
            }
        }
        // The name may stand anywhere, and what nobody knows is passed over, as before.
        let quota = Request {
            version: VERSION,
            ask: Operation::Quota,
        };
        for text in [
            r#"{"version":1,"ask":"quota"}"#,
            r#"{ "version": 1, "ask": "quota" }"#,
            r#"{"ask":"quota","version":1}"#,
            r#"{"later":{"ask":0},"ask":"quota","version":1}"#,
            r#"{"version":1,"\u0061sk":"qu\u006fta"}"#,
        ] {
            assert_eq!(parse(text).unwrap(), quota, "{text}");
        }
        assert!(begins_with_name(&serde_json::to_vec(&quota).unwrap()));
    }
}
