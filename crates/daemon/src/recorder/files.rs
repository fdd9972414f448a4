// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files in memory, as events and messages have them.

use bursar_host::MemoryFiles;
use bursar_model::{HeldFile, printable};

/// Of a file's place.
const PLACE_WIDTH: usize = 256;
/// Files named in a sentence.
const FILES_IN_WORDS: usize = 3;

pub(super) fn held_files(files: &MemoryFiles) -> Vec<HeldFile> {
    let largest = files.largest.iter();
    largest
        .map(|it| HeldFile {
            place: printable(&it.place, PLACE_WIDTH),
            bytes: it.bytes,
        })
        .collect()
}

/// The largest of them, for a sentence.
pub(super) fn in_words(files: &[HeldFile], is_partial: bool) -> String {
    let named: Vec<String> = files
        .iter()
        .take(FILES_IN_WORDS)
        .map(|it| format!("{} ({})", it.place, it.bytes))
        .collect();
    let mut largest = match named.as_slice() {
        [] => "none of them was found by name".to_owned(),
        named => format!("the largest: {}", named.join(", ")),
    };
    if is_partial {
        largest.push_str("; not all could be looked at");
    }
    largest
}
