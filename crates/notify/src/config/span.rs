// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A span of time as it is written: `90s`, `15m`, `2h`, `3d`.

use bursar_config::reading::{Wrong, kind};
use toml_edit::Value;

use crate::delivery::Seconds;

const UNITS: [(char, Seconds); 4] = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];

/// A span from `least` to `most` seconds.
pub(super) fn span(value: &Value, least: Seconds, most: Seconds) -> Result<Seconds, Wrong> {
    let remedy = format!("write a span from {} to {}", shown(least), shown(most));
    let Some(text) = value.as_str() else {
        let message = format!("is {}, not a span of time in quotes", kind(value));
        return Err(Wrong::new(message, remedy));
    };
    let Some(seconds) = seconds(text) else {
        let remedy = "write a whole number with s, m, h or d (\"15m\")";
        return Err(Wrong::new(
            format!("{text:?} is not a span of time"),
            remedy,
        ));
    };
    if !(least..=most).contains(&seconds) {
        return Err(Wrong::new(format!("{text:?} is out of range"), remedy));
    }
    Ok(seconds)
}

fn seconds(text: &str) -> Option<Seconds> {
    let unit = text.chars().next_back()?;
    let number = text.strip_suffix(unit)?;
    let (_, factor) = UNITS.iter().find(|(it, _)| *it == unit)?;
    let is_plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: Seconds = number.parse().ok().filter(|_| is_plain)?;
    number.checked_mul(*factor)
}

fn shown(seconds: Seconds) -> String {
    let fits = |factor: &Seconds| seconds % factor == 0 && seconds >= *factor;
    let unit = UNITS.iter().rev().find(|(_, factor)| fits(factor));
    let (unit, factor) = unit.copied().unwrap_or(('s', 1));
    format!("\"{}{unit}\"", seconds / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units() {
        let table = [
            ("90s", Some(90)),
            ("15m", Some(900)),
            ("2h", Some(7_200)),
            ("3d", Some(259_200)),
            ("0s", Some(0)),
        ];
        let wrong = [
            "",
            "s",
            "15",
            "-1m",
            "1.5h",
            "1w",
            "99999999999999999999s",
            "٣d",
            "5µ",
        ];
        for (text, meant) in table.into_iter().chain(wrong.map(|it| (it, None))) {
            let read = span(&Value::from(text), 0, 1 << 40);
            assert_eq!(read.ok(), meant, "{text}");
        }
        let wrong = span(&Value::from("2d"), 60, 86_400).unwrap_err();
        assert_eq!(wrong.remedy, "write a span from \"1m\" to \"1d\"");
    }
}
