// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How amounts are said.

use bursar_model::{Bytes, Nanos};

use crate::Charset;

/// `1 process`, `2 processes`.
#[must_use]
pub fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A size as narrow as a column wants it and as `limit set` reads it: `512M`, `1.50G`, `0`.
#[must_use]
pub fn narrow_size(bytes: Bytes) -> String {
    let text = bytes.to_string();
    match text.split_once(' ') {
        Some((number, "B")) => number.to_owned(),
        Some((number, unit)) => format!("{number}{}", unit.get(..1).unwrap_or_default()),
        None => text,
    }
}

/// A counter in at most five columns: `99999`, then `100k`, `12m`, `3g` (thousands, not 1024s).
#[must_use]
pub fn narrow_count(number: u64) -> String {
    match number {
        ..100_000 => number.to_string(),
        100_000..10_000_000 => format!("{}k", number / 1_000),
        10_000_000..10_000_000_000 => format!("{}m", number / 1_000_000),
        _ => format!("{}g", number / 1_000_000_000),
    }
}

/// A span with two or three digits: `850 ns`, `38 µs`, `6.2 ms`, `1.4 s`.
#[must_use]
pub fn span(span: Nanos, charset: Charset) -> String {
    let micro = match charset {
        Charset::Unicode => "µs",
        Charset::Ascii => "us",
    };
    let nanos = span.get();
    let (unit, name) = match nanos {
        ..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (1_000, micro),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (whole, tenth) = (nanos / unit, nanos % unit / (unit / 10));
    if whole < 10 && tenth > 0 {
        format!("{whole}.{tenth} {name}")
    } else {
        format!("{whole} {name}")
    }
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_fit_a_column() {
        let sizes = [
            (0, "0"),
            (1023, "1023"),
            (410 << 20, "410M"),
            (3 << 29, "1.50G"),
            ((1 << 20) - 1, "1024K"),
            (u64::MAX, "16E"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(narrow_size(Bytes::new(bytes)), text);
        }
        for (number, text) in [
            (99_999, "99999"),
            (100_000, "100k"),
            (9_999_999, "9999k"),
            (10_000_000, "10m"),
        ] {
            assert_eq!(narrow_count(number), text);
        }
    }

    #[test]
    fn spans_have_the_unit_that_suits_them() {
        let table = [
            (0, "0 ns"),
            (38_400, "38 µs"),
            (6_200_000, "6.2 ms"),
            (250_000_000, "250 ms"),
            (1_000_000_000, "1 s"),
            (61_500_000_000, "61 s"),
        ];
        for (nanos, text) in table {
            assert_eq!(span(Nanos::new(nanos), Charset::Unicode), text);
        }
        assert_eq!(span(Nanos::new(1_000), Charset::Ascii), "1 us");
    }
}
