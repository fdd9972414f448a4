// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/pressure/memory (PSI, 4.20). A second opinion only: kswapd's own work counts as a stall there.

use crate::Malformed;
use crate::bytes::{number, words};

/// One of its lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PressureLine {
    /// The share of the last ten seconds, hundredths of a percent.
    pub avg10: u32,
    /// Of the last minute.
    pub avg60: u32,
    /// Of the last five minutes.
    pub avg300: u32,
    /// Since boot, microseconds.
    pub total_us: u64,
}

/// The file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Time in which some task waited for memory.
    pub some: PressureLine,
    /// Time in which all did; not every kernel says so of every resource.
    pub full: Option<PressureLine>,
}

impl Pressure {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When there is no line `some`, or a value is no number.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let mut some = None;
        let mut full = None;
        for line in text.split(|&byte| byte == b'\n') {
            let mut parts = words(line);
            match parts.next() {
                Some(b"some") => some = Some(self::line(parts)?),
                Some(b"full") => full = Some(self::line(parts)?),
                _ => {}
            }
        }
        let some = some.ok_or_else(|| Malformed::new("no line \"some\""))?;
        Ok(Self { some, full })
    }
}

fn line<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Result<PressureLine, Malformed> {
    let mut line = PressureLine::default();
    for part in parts {
        if let Some(value) = part.strip_prefix(b"avg10=") {
            line.avg10 = hundredths(value)?;
        } else if let Some(value) = part.strip_prefix(b"avg60=") {
            line.avg60 = hundredths(value)?;
        } else if let Some(value) = part.strip_prefix(b"avg300=") {
            line.avg300 = hundredths(value)?;
        } else if let Some(value) = part.strip_prefix(b"total=") {
            line.total_us =
                number(value).ok_or_else(|| Malformed::new("total is no number that fits"))?;
        }
    }
    Ok(line)
}

/// `12.34` as 1234; the kernel always writes two digits.
fn hundredths(text: &[u8]) -> Result<u32, Malformed> {
    let malformed = || Malformed::new("an average is no percentage");
    let dot = text
        .iter()
        .position(|&byte| byte == b'.')
        .ok_or_else(malformed)?;
    let (whole, rest) = text.split_at(dot);
    let rest = rest.get(1..).unwrap_or_default();
    if rest.len() != 2 {
        return Err(malformed());
    }
    let whole: u32 = number(whole).ok_or_else(malformed)?;
    let rest: u32 = number(rest).ok_or_else(malformed)?;
    whole
        .checked_mul(100)
        .and_then(|whole| whole.checked_add(rest))
        .ok_or_else(malformed)
}
