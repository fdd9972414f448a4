// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file: a head, then names and samples as they came. Read in pieces, never mapped: who reads may have locked its
//! memory.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bursar_model::{AccountId, UsageSample};

use crate::record::{Record, SIZE};
use crate::tier::Tier;

/// Read at once, bytes; whole records.
const PIECE: usize = 1024 * SIZE;

/// A sample, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) id: AccountId,
    name: usize,
    pub(crate) sample: UsageSample,
}

/// What a file says.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) samples: Vec<Owned>,
    names: Vec<String>,
    /// Intervals that are there as a whole.
    pub(crate) complete: BTreeSet<u64>,
    /// Records that could not be read.
    pub(crate) damaged: u64,
}

/// Why a file says nothing.
#[derive(Debug)]
pub(crate) enum Unreadable {
    Io(io::Error),
    /// It does not begin as ours do.
    Foreign,
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Names while a file is read.
#[derive(Default)]
struct Names {
    /// By account: the latest name's place.
    places: HashMap<AccountId, usize>,
    /// Parts read so far.
    parts: HashMap<AccountId, Vec<u8>>,
}

impl Contents {
    /// All of a file, each account's interval once.
    pub(crate) fn read(path: &Path, tier: Tier) -> Result<Self, Unreadable> {
        let mut file = File::open(path)?;
        let mut contents = Self::default();
        let mut names = Names::default();
        let mut piece = vec![0; PIECE];
        let mut is_first = true;
        loop {
            let length = fill(&mut file, &mut piece)?;
            let read = piece.get(..length).unwrap_or_default();
            let (records, rest) = read.as_chunks::<SIZE>();
            for bytes in records {
                let record = Record::decode(bytes);
                if std::mem::take(&mut is_first) && record != Some(Record::Head(tier)) {
                    return Err(Unreadable::Foreign);
                }
                contents.take(record, &mut names);
            }
            if !rest.is_empty() {
                contents.damaged = contents.damaged.saturating_add(1);
            }
            if length < PIECE {
                break;
            }
        }
        if is_first && contents.damaged > 0 {
            return Err(Unreadable::Foreign);
        }
        contents.settle(tier);
        Ok(contents)
    }

    fn take(&mut self, record: Option<Record>, names: &mut Names) {
        match record {
            Some(Record::Head(_)) => {}
            Some(Record::Sample(id, sample)) => {
                let name = *names.places.entry(id).or_insert_with(|| {
                    // Its name was damaged.
                    self.names.push(id.number().to_string());
                    self.names.len().saturating_sub(1)
                });
                self.samples.push(Owned { id, name, sample });
            }
            Some(Record::Name { id, part, text }) => {
                let parts = names.parts.entry(id).or_default();
                if part == 0 {
                    parts.clear();
                }
                parts.extend(text);
                let name = String::from_utf8_lossy(parts).into_owned();
                let place = self.names.iter().rposition(|it| *it == name && part == 0);
                let place = place.filter(|place| names.places.get(&id) == Some(place));
                let place = place.unwrap_or(self.names.len());
                if place == self.names.len() {
                    self.names.push(name);
                }
                names.places.insert(id, place);
            }
            Some(Record::Complete(start)) => {
                self.complete.insert(start);
            }
            None => self.damaged = self.damaged.saturating_add(1),
        }
    }

    /// The parts of a minute (bursard was started anew within it, a clock was set back) are added; of coarser
    /// intervals the later one was made of all that the earlier one was made of, and takes its place.
    fn settle(&mut self, tier: Tier) {
        let names = std::mem::take(&mut self.names);
        let key = |it: &Owned| (it.sample.start, it.id, names.get(it.name));
        if !self
            .samples
            .is_sorted_by(|one, other| key(one) < key(other))
        {
            self.samples.sort_by(|one, other| key(one).cmp(&key(other)));
            let mut settled: Vec<Owned> = Vec::with_capacity(self.samples.len());
            for owned in &self.samples {
                match settled.last_mut() {
                    Some(last) if key(last) == key(owned) => match tier {
                        Tier::Minute => last.sample.merge(&owned.sample),
                        Tier::Quarter | Tier::Day => last.sample = owned.sample,
                    },
                    _ => settled.push(*owned),
                }
            }
            self.samples = settled;
        }
        self.names = names;
    }

    pub(crate) fn name_of(&self, owned: &Owned) -> &str {
        self.names.get(owned.name).map_or("", String::as_str)
    }
}

/// Reads until `piece` is full or the file ends.
fn fill(file: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = piece.get_mut(length..).filter(|it| !it.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => length = length.saturating_add(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}
