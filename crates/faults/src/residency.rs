// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much of each mapping is resident and locked: /proc/PID/smaps, what `pmap -X` shows (S3
//! "Preventing pagefaults").

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use bursar_model::Pid;
use serde::Serialize;

/// A process with more mappings is read only so far, bytes.
const MAX_SMAPS_BYTES: u64 = 16 << 20;

/// Of one mapping, or of several that belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Resident {
    /// The length of the mapping.
    pub size_bytes: u64,
    /// What has a page: touching it does not fault.
    pub resident_bytes: u64,
    /// What of that cannot be taken away.
    pub locked_bytes: u64,
    /// What has to come back from swap.
    pub swapped_bytes: u64,
}

impl Resident {
    const fn add(&mut self, other: &Self) {
        self.size_bytes = self.size_bytes.saturating_add(other.size_bytes);
        self.resident_bytes = self.resident_bytes.saturating_add(other.resident_bytes);
        self.locked_bytes = self.locked_bytes.saturating_add(other.locked_bytes);
        self.swapped_bytes = self.swapped_bytes.saturating_add(other.swapped_bytes);
    }
}

#[derive(Debug)]
struct Entry {
    start: u64,
    end: u64,
    resident: Resident,
}

/// What was last read of each process.
#[derive(Debug, Default)]
pub struct Residency {
    processes: HashMap<Pid, Vec<Entry>>,
}

impl Residency {
    /// Reads a process's; keeps the last when it is gone, or not ours to read.
    pub fn look_at(&mut self, pid: Pid) {
        let mut bytes = Vec::new();
        let read = File::open(format!("/proc/{pid}/smaps"))
            .and_then(|file| file.take(MAX_SMAPS_BYTES).read_to_end(&mut bytes));
        if read.is_ok() && !bytes.is_empty() {
            let entries = parse(&String::from_utf8_lossy(&bytes));
            self.processes.insert(pid, entries);
        }
    }

    /// Of what lies at these addresses now; `None` where nothing does.
    pub fn of(&self, pid: Pid, (start, end): (u64, u64)) -> Option<Resident> {
        let entries = self.processes.get(&pid)?;
        let mut there = entries
            .iter()
            .filter(|it| it.start < end && start < it.end)
            .peekable();
        there.peek()?;
        let mut sum = Resident::default();
        there.for_each(|it| sum.add(&it.resident));
        Some(sum)
    }
}

fn parse(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(key), value) = (words.next(), words.next()) else {
            continue;
        };
        let Some(key) = key.strip_suffix(':') else {
            let hex = |text| u64::from_str_radix(text, 16).ok();
            if let Some((start, end)) = key.split_once('-')
                && let (Some(start), Some(end)) = (hex(start), hex(end))
            {
                let resident = Resident {
                    size_bytes: end.saturating_sub(start),
                    ..Resident::default()
                };
                entries.push(Entry {
                    start,
                    end,
                    resident,
                });
            }
            continue;
        };
        let Some(last) = entries.last_mut() else {
            continue;
        };
        let field = match key {
            "Rss" => &mut last.resident.resident_bytes,
            "Locked" => &mut last.resident.locked_bytes,
            "Swap" => &mut last.resident.swapped_bytes,
            _ => continue,
        };
        *field = value
            .and_then(|kib| kib.parse::<u64>().ok())
            .unwrap_or(0)
            .saturating_mul(1024);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_overlap_are_added_up_and_others_are_not() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nSize:      8 kB\nRss:       4 kB\nLocked:    4 kB\n\
                    Swap:      4 kB\nVmFlags: rd wr\n\
                    3000-4000 r--p 00000000 08:01 7   /a b: c\nRss:       4 kB\nLocked:    0 kB\n";
        let pid = Pid::new(7);
        let residency = Residency {
            processes: HashMap::from([(pid, parse(text))]),
        };
        let both = Resident {
            size_bytes: 0x3000,
            resident_bytes: 8 << 10,
            locked_bytes: 4 << 10,
            swapped_bytes: 4 << 10,
        };
        assert_eq!(residency.of(pid, (0x2000, 0x3001)), Some(both));
        let first = residency.of(pid, (0x1000, 0x3000)).unwrap();
        assert_eq!((first.size_bytes, first.resident_bytes), (0x2000, 4 << 10));
        assert_eq!(residency.of(pid, (0x4000, 0x5000)), None);
        assert_eq!(residency.of(Pid::new(8), (0x1000, 0x3000)), None);
    }

    #[test]
    fn touched_pages_of_ours_are_resident() {
        let block = vec![1_u8; 8 << 20];
        let start = block.as_ptr() as u64;
        let mut residency = Residency::default();
        let pid = Pid::new(std::process::id());
        residency.look_at(pid);
        let found = residency.of(pid, (start, start + (8 << 20))).unwrap();
        assert!(found.resident_bytes >= 8 << 20, "{found:?}");
        drop(block);
    }
}
