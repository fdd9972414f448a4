// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's texts as bytes: numbers and words, without a detour over UTF-8.

use std::str::FromStr;

use crate::Malformed;

/// The words of `text`, separated by blanks.
pub(crate) fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// `text`, blanks around it aside, as a decimal number that fits.
pub(crate) fn number<T: FromStr>(text: &[u8]) -> Option<T> {
    let text = text.trim_ascii();
    // from_str would also take "+5".
    let first = text.strip_prefix(b"-").unwrap_or(text).first()?;
    if !first.is_ascii_digit() {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// The value of the last line `key:value` in `text` with exactly this key. The last: where a process
/// could smuggle lines in with its name, the kernel's own come after them.
pub(crate) fn value_of<'a>(text: &'a [u8], key: &str) -> Option<&'a [u8]> {
    text.rsplit(|&byte| byte == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?;
        rest.strip_prefix(b":").map(<[u8]>::trim_ascii)
    })
}

/// The number behind `key`; an error when there is the key and no number.
pub(crate) fn number_of<T: FromStr>(text: &[u8], key: &str) -> Result<Option<T>, Malformed> {
    let Some(value) = value_of(text, key) else {
        return Ok(None);
    };
    let number =
        number(value).ok_or_else(|| Malformed::new(format!("{key} is no number that fits")))?;
    Ok(Some(number))
}

/// The amount behind `key`, `512 kB`, in bytes.
pub(crate) fn kilobytes_of(
    text: &[u8],
    key: &str,
) -> Result<Option<bursar_model::Bytes>, Malformed> {
    let Some(value) = value_of(text, key) else {
        return Ok(None);
    };
    let count = value.strip_suffix(b"kB").and_then(number::<u64>);
    let count = count.ok_or_else(|| Malformed::new(format!("{key} is no number of kB")))?;
    Ok(Some(bursar_model::Bytes::new(count.saturating_mul(1024))))
}

/// A missing key as an error.
pub(crate) fn required<T>(value: Option<T>, key: &str) -> Result<T, Malformed> {
    value.ok_or_else(|| Malformed::new(format!("no key {key}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        let table: [(&[u8], Option<u8>); 8] = [
            (b" 7\n", Some(7)),
            (b"007", Some(7)),
            (b"+7", None),
            (b"-", None),
            (b"-1", None),
            (b"256", None),
            (b"", None),
            (b"\xff", None),
        ];
        for (text, value) in table {
            assert_eq!(number(text), value, "{text:?}");
        }
        assert_eq!(number::<i32>(b"-12"), Some(-12));
    }

    #[test]
    fn keys_are_compared_whole_and_the_last_one_counts() {
        let text = b"Uid:\t1\nRssAnonX:\t5 kB\nRssAnon:\t6 kB\nUid:\t2\n";
        assert_eq!(value_of(text, "Uid"), Some(&b"2"[..]));
        assert_eq!(value_of(text, "RssAnon"), Some(&b"6 kB"[..]));
        assert_eq!(value_of(text, "Rss"), None);
    }
}
