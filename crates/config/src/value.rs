// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One TOML value read as what its key expects.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use bursar_model::{
    Bytes, MAX_REASON, Mode, Reason, ReasonError, SizeError, SizeSpec, Uid, Until, printable,
};
use toml_edit::{Item, Value};

use crate::finding::Wrong;
use crate::spelling::nearest;
use crate::{MAX_EXEMPT, UidRange};

const SIZES: &str = "write bytes with K, M, G or T (512M), a percentage (25%) or none";

/// What a value is, for a message.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "an array",
        Value::InlineTable(_) => "a table",
    }
}

/// What an item is, for a message.
pub fn kind_of_item(item: &Item) -> &'static str {
    match item {
        Item::None => "nothing",
        Item::Value(value) => kind(value),
        Item::Table(_) => "a table",
        Item::ArrayOfTables(_) => "an array of tables",
    }
}

/// `true` or `false`.
pub(crate) fn boolean(value: &Value) -> Result<bool, Wrong> {
    value.as_bool().ok_or_else(|| {
        Wrong::new(
            format!("is {}, not a boolean", kind(value)),
            "write true or false without quotes",
        )
    })
}

/// A whole number within `range`.
pub fn integer(value: &Value, range: RangeInclusive<u32>) -> Result<u32, Wrong> {
    let (least, most) = range.into_inner();
    let remedy = format!("write a whole number from {least} to {most}, without quotes");
    let Some(number) = value.as_integer() else {
        return Err(Wrong::new(
            format!("is {}, not an integer", kind(value)),
            remedy,
        ));
    };
    match u32::try_from(number) {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(Wrong::new(format!("{number} is out of range"), remedy)),
    }
}

/// A line for people of so many characters at most; `None`: an empty one. What moves the cursor or turns the
/// direction of writing would make the message around it say something else.
pub fn line(value: &Value, most: usize) -> Result<Option<String>, Wrong> {
    let remedy = format!(
        "write one line in quotes, of at most {most} printable characters, without a backslash"
    );
    let Some(text) = value.as_str() else {
        return Err(Wrong::new(
            format!("is {}, not text in quotes", kind(value)),
            remedy,
        ));
    };
    let text = text.trim();
    let count = text.chars().count();
    if count > most {
        return Err(Wrong::new(format!("has {count} characters"), remedy));
    }
    // Escapes are made longer, never shorter.
    if printable(text.as_bytes(), text.len().saturating_mul(8)) != text {
        return Err(Wrong::new("has characters that are not printable", remedy));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// Why an entry is what it is.
pub(crate) fn reason(item: &Item) -> Result<Reason, Wrong> {
    let remedy = format!("write reason = \"thesis\", one line of at most {MAX_REASON} bytes");
    let Some(text) = item.as_str() else {
        let message = format!("is {}, not text in quotes", kind_of_item(item));
        return Err(Wrong::new(message, remedy));
    };
    text.parse().map_err(|error| match error {
        ReasonError::Empty => Wrong::new("is empty", remedy),
        ReasonError::TooLong(count) => Wrong::new(format!("has {count} bytes"), remedy),
        ReasonError::Unprintable => Wrong::new(
            "has characters that are not printable, or a backslash",
            remedy,
        ),
    })
}

/// A moment as text, or as TOML's own date with a time and an offset.
pub(crate) fn until(item: &Item) -> Result<Until, Wrong> {
    let text = match item.as_value() {
        Some(Value::String(text)) => text.value().clone(),
        Some(Value::Datetime(date)) => date.value().to_string(),
        _ => format!("({})", kind_of_item(item)),
    };
    text.parse().map_err(|_| {
        let message = format!(
            "{:?} is not a moment with an offset from UTC",
            printable(text.as_bytes(), 80)
        );
        Wrong::new(message, "write until = \"2026-12-01T09:00:00+01:00\"")
    })
}

/// Whether bounds are enforced.
pub(crate) const MODES: [(&str, Mode); 2] = [
    (Mode::Enforce.name(), Mode::Enforce),
    (Mode::Observe.name(), Mode::Observe),
];

/// One of a few words.
pub fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, Wrong> {
    let list = words
        .iter()
        .map(|(word, _)| format!("{word:?}"))
        .collect::<Vec<_>>()
        .join(", ");
    let remedy = format!("write one of {list}");
    let Some(text) = value.as_str() else {
        return Err(Wrong::new(
            format!("is {}, not a word in quotes", kind(value)),
            remedy,
        ));
    };
    if let Some(&(_, meant)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(meant);
    }
    let remedy = match nearest(text, words.iter().map(|(word, _)| *word)) {
        Some(close) => format!("did you mean {close:?}? {remedy}"),
        None => remedy,
    };
    Err(Wrong::new(format!("{text:?} is none of its words"), remedy))
}

/// SIZE as a string, or a bare number of bytes.
pub(crate) fn size(value: &Value) -> Result<SizeSpec, Wrong> {
    match value {
        Value::String(text) => text.value().parse().map_err(no_size),
        Value::Integer(number) => match u64::try_from(*number.value()) {
            Ok(count) => Ok(SizeSpec::Bytes(Bytes::new(count))),
            Err(_) => Err(no_size(SizeError::Negative(number.value().to_string()))),
        },
        _ => Err(Wrong::new(format!("is {}, not a size", kind(value)), SIZES)),
    }
}

fn no_size(error: SizeError) -> Wrong {
    match error {
        SizeError::Empty => Wrong::new("is empty", SIZES),
        SizeError::Negative(text) => Wrong::new(format!("{text:?} is negative"), "write 0 or more"),
        SizeError::Malformed(text) => Wrong::new(format!("{text:?} is not a valid size"), SIZES),
        SizeError::TooLarge(text) => Wrong::new(
            format!("{text:?} is too large"),
            "the largest size is 16E minus one byte, the largest share 10000%",
        ),
    }
}

/// An amount of memory from `least` to `most`; a share of something makes no sense here.
pub fn amount(value: &Value, least: Bytes, most: Option<Bytes>) -> Result<Bytes, Wrong> {
    let shown = SizeSpec::Bytes;
    let remedy = match most {
        None => format!("write a size of {} or more", shown(least)),
        Some(most) => format!("write a size from {} to {}", shown(least), shown(most)),
    };
    match size(value)? {
        SizeSpec::Bytes(bytes) if bytes >= least && most.is_none_or(|most| bytes <= most) => {
            Ok(bytes)
        }
        SizeSpec::Bytes(bytes) => Err(Wrong::new(
            format!("{} is out of range", shown(bytes)),
            remedy,
        )),
        other => Err(Wrong::new(
            format!("\"{other}\" is not a valid amount"),
            remedy,
        )),
    }
}

/// An absolute path of at most `longest` bytes.
pub fn absolute_path(value: &Value, longest: usize) -> Result<PathBuf, Wrong> {
    let remedy = "write an absolute path in quotes";
    let Some(text) = value.as_str() else {
        return Err(Wrong::new(
            format!("is {}, not a path", kind(value)),
            remedy,
        ));
    };
    if text.contains('\0') {
        return Err(Wrong::new(format!("{text:?} contains a NUL"), remedy));
    }
    if !text.starts_with('/') {
        return Err(Wrong::new(format!("{text:?} is not absolute"), remedy));
    }
    if text.len() > longest {
        let message = format!("is {} bytes long", text.len());
        return Err(Wrong::new(
            message,
            format!("write a path of at most {longest} bytes"),
        ));
    }
    Ok(PathBuf::from(text))
}

/// An array of at most `most` absolute paths of at most `longest` bytes each.
pub(crate) fn absolute_paths(
    value: &Value,
    most: usize,
    longest: usize,
) -> Result<Vec<PathBuf>, Wrong> {
    let remedy = "write absolute paths in an array, [\"/usr/bin/bash\", \"/usr/bin/tmux\"]";
    let Some(array) = value.as_array() else {
        let message = format!("is {}, not an array", kind(value));
        return Err(Wrong::new(message, remedy));
    };
    if array.len() > most {
        let message = format!("has {} paths", array.len());
        return Err(Wrong::new(message, format!("write at most {most}")));
    }
    let paths = array.iter().map(|entry| absolute_path(entry, longest));
    paths.collect()
}

/// An array of uids and inclusive ranges of uids: `["61184-65535", 998]`.
pub(crate) fn uid_ranges(value: &Value) -> Result<Vec<UidRange>, Wrong> {
    let remedy = "write uids and ranges in an array, [\"61184-65535\", 998]";
    let Some(array) = value.as_array() else {
        return Err(Wrong::new(
            format!("is {}, not an array", kind(value)),
            remedy,
        ));
    };
    if array.len() > MAX_EXEMPT {
        let message = format!("has {} ranges", array.len());
        return Err(Wrong::new(
            message,
            format!("write at most {MAX_EXEMPT}: join neighbours"),
        ));
    }
    array.iter().map(|entry| uid_range(entry, remedy)).collect()
}

fn uid_range(entry: &Value, remedy: &str) -> Result<UidRange, Wrong> {
    let shown = match entry {
        Value::Integer(number) => number.value().to_string(),
        Value::String(text) => text.value().clone(),
        _ => return Err(Wrong::new(format!("contains {}", kind(entry)), remedy)),
    };
    let uid = |text: &str| {
        let text = text.trim();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<u32>().ok().filter(|&number| number < u32::MAX);
        number.filter(|_| digits).map(Uid::new)
    };
    let (first, last) = shown.split_once('-').unwrap_or((&shown, &shown));
    let (Some(first), Some(last)) = (uid(first), uid(last)) else {
        return Err(Wrong::new(
            format!("{shown:?} is neither a uid nor a range of uids"),
            remedy,
        ));
    };
    UidRange::new(first, last).ok_or_else(|| {
        Wrong::new(
            format!("{shown:?} ends before it begins"),
            format!("write \"{last}-{first}\""),
        )
    })
}
