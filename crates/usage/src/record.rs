// SPDX-License-Identifier: Apache-2.0 OR MIT
//! 64 bytes of a file, least significant first:
//!
//! | bytes | of a sample | of a name |
//! |---|---|---|
//! | 0–7 | checksum of the others | the same |
//! | 8–15 | account | account |
//! | 16–19 | begins, minutes since 1970 | – |
//! | 20 | kind | kind |
//! | 21–22 | – | which part of it, bytes in this one |
//! | 24–63 | mean, max, limit (8 each); notices, refusals, kills, observed ms (4 each) | 40 bytes of it |

use bursar_model::{AccountId, Bytes, UsageSample};

use crate::tier::Tier;

pub(crate) const SIZE: usize = 64;
/// Of a name, in one record.
const PART: usize = 40;
/// No name of a user or group is longer.
const LONGEST_NAME: usize = 256;
/// First in each file. Another form of records has another number.
const MAGIC: &[u8; 16] = b"bursar usage v1\n";
/// Where there is no limit.
const NO_LIMIT: u64 = u64::MAX;

const KIND_HEAD: u8 = 1;
const KIND_SAMPLE: u8 = 2;
const KIND_NAME: u8 = 3;
const KIND_COMPLETE: u8 = 4;

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    /// Which tier the file is of.
    Head(Tier),
    Sample(AccountId, UsageSample),
    /// What the account is called from here on; longer names have several parts, in order.
    Name {
        id: AccountId,
        part: u8,
        text: Vec<u8>,
    },
    /// All samples of the interval that begins there stand before this. Not of minutes.
    Complete(u64),
}

/// Whatever a crash leaves (half a record, zeros) and what bits flip by themselves is noticed. It keeps out nobody:
/// who may write here is root.
fn checksum(words: &[u8]) -> u64 {
    let (words, _) = words.as_chunks::<8>();
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        let mixed = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    })
}

fn number(tier: Tier) -> u8 {
    match tier {
        Tier::Minute => 1,
        Tier::Quarter => 2,
        Tier::Day => 3,
    }
}

fn put(bytes: &mut [u8; SIZE], at: usize, value: &[u8]) {
    let end = at.saturating_add(value.len());
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(value);
    }
}

fn minutes(moment: u64) -> [u8; 4] {
    u32::try_from(moment / 60).unwrap_or(u32::MAX).to_le_bytes()
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        match self {
            Self::Head(tier) => {
                put(&mut bytes, 20, &[KIND_HEAD, number(*tier)]);
                put(&mut bytes, 24, MAGIC);
            }
            Self::Sample(id, sample) => {
                put(&mut bytes, 8, &id.get().to_le_bytes());
                put(&mut bytes, 16, &minutes(sample.start));
                put(&mut bytes, 20, &[KIND_SAMPLE]);
                let limit = sample.limit.map_or(NO_LIMIT, Bytes::get);
                for (at, value) in [(24, sample.mean.get()), (32, sample.max.get()), (40, limit)] {
                    put(&mut bytes, at, &value.to_le_bytes());
                }
                let counts = [
                    sample.notices,
                    sample.refusals,
                    sample.kills,
                    sample.observed_ms,
                ];
                for (at, value) in [48, 52, 56, 60].into_iter().zip(counts) {
                    put(&mut bytes, at, &value.to_le_bytes());
                }
            }
            Self::Name { id, part, text } => {
                put(&mut bytes, 8, &id.get().to_le_bytes());
                let length = u8::try_from(text.len().min(PART)).unwrap_or(0);
                put(&mut bytes, 20, &[KIND_NAME, *part, length]);
                put(&mut bytes, 24, text.get(..PART).unwrap_or(text));
            }
            Self::Complete(start) => {
                put(&mut bytes, 16, &minutes(*start));
                put(&mut bytes, 20, &[KIND_COMPLETE]);
            }
        }
        let sum = checksum(bytes.get(8..).unwrap_or_default());
        put(&mut bytes, 0, &sum.to_le_bytes());
        bytes
    }

    /// `None`: it is damaged, or of a later version.
    pub(crate) fn decode(bytes: &[u8; SIZE]) -> Option<Self> {
        let long = |at: usize| {
            let word = bytes.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*word))
        };
        let short = |at: usize| {
            let word = bytes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*word))
        };
        if long(0)? != checksum(bytes.get(8..)?) {
            return None;
        }
        let (id, start) = (
            AccountId::new(long(8)?),
            u64::from(short(16)?).saturating_mul(60),
        );
        let (kind, first, second) = (*bytes.get(20)?, *bytes.get(21)?, *bytes.get(22)?);
        match kind {
            KIND_HEAD if bytes.get(24..)?.starts_with(MAGIC) => {
                let tier = Tier::ALL.into_iter().find(|it| number(*it) == first);
                tier.map(Self::Head)
            }
            KIND_SAMPLE => Some(Self::Sample(
                id,
                UsageSample {
                    start,
                    mean: Bytes::new(long(24)?),
                    max: Bytes::new(long(32)?),
                    limit: Some(long(40)?).filter(|it| *it != NO_LIMIT).map(Bytes::new),
                    notices: short(48)?,
                    refusals: short(52)?,
                    kills: short(56)?,
                    observed_ms: short(60)?,
                },
            )),
            KIND_NAME => Some(Self::Name {
                id,
                part: first,
                text: bytes.get(24..)?.get(..usize::from(second))?.to_vec(),
            }),
            KIND_COMPLETE => Some(Self::Complete(start)),
            _ => None,
        }
    }
}

/// The records of an account's name.
pub(crate) fn name_records(id: AccountId, name: &str) -> impl Iterator<Item = Record> {
    let bytes = name.as_bytes();
    let bytes = bytes.get(..LONGEST_NAME).unwrap_or(bytes);
    let parts: Vec<Vec<u8>> = match bytes {
        [] => vec![Vec::new()],
        bytes => bytes.chunks(PART).map(<[u8]>::to_vec).collect(),
    };
    parts
        .into_iter()
        .enumerate()
        .map(move |(part, text)| Record::Name {
            id,
            part: u8::try_from(part).unwrap_or(u8::MAX),
            text,
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> UsageSample {
        UsageSample {
            start: 1_795_237_200,
            observed_ms: 60_000,
            mean: Bytes::from_mib(100),
            max: Bytes::from_mib(150),
            limit: Some(Bytes::from_mib(512)),
            notices: 1,
            refusals: 2,
            kills: 3,
        }
    }

    fn all() -> Vec<Record> {
        let id = AccountId::new(1 << 32 | 60_001);
        let mut all: Vec<Record> = name_records(id, &"n".repeat(90)).collect();
        all.push(Record::Sample(id, sample()));
        all.push(Record::Sample(
            id,
            UsageSample {
                limit: None,
                ..sample()
            },
        ));
        all.push(Record::Complete(1_795_237_200));
        all.extend(Tier::ALL.map(Record::Head));
        all
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for record in all() {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn no_bit_flips_and_no_zeros_are_taken_for_a_record() {
        assert_eq!(Record::decode(&[0; SIZE]), None);
        for record in all() {
            let right = record.encode();
            for bit in 0..SIZE * 8 {
                let mut wrong = right;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&wrong), None, "{record:?} {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: [u8; 32], other: [u8; 32], kind: u8) {
            let mut all = [0; SIZE];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&other);
            all[20] = kind;
            // Also those that have the right sum.
            let sum = checksum(&all[8..]);
            all[..8].copy_from_slice(&sum.to_le_bytes());
            let _ = Record::decode(&all);
        }
    }
}
