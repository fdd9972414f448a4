// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/maps: which file lies where, and which symbol an instruction belongs to.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use bursar_model::{Pid, printable};

use crate::program::number;

/// A process with more mappings is looked at only so far.
const MAX_MAPS_BYTES: u64 = 8 << 20;
/// A larger program file is not searched for symbols, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Symbols kept of one file.
const MAX_SYMBOLS: usize = 1 << 18;
/// Files whose symbols are kept.
const MAX_FILES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    /// As the kernel prints it, which is harmless (`\012` for a newline), or `[heap]` and the like.
    name: String,
}

/// Where files are mapped in processes, and their symbols.
#[derive(Debug, Default)]
pub struct Symbols {
    processes: HashMap<Pid, Vec<Mapped>>,
    files: HashMap<(Pid, u64), Option<Table>>,
}

#[derive(Debug)]
struct Table {
    /// (address, size, name), by address.
    symbols: Vec<(u64, u64, String)>,
    /// Of each segment that is loaded: (offset in the file, its size there, address).
    segments: Vec<(u64, u64, u64)>,
}

fn parse(line: &str) -> Option<Mapped> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let _permissions = words.next()?;
    let offset = words.next()?;
    let _device = words.next()?;
    let inode = words.next()?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapped {
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        inode: inode.parse().ok()?,
        name: words.next().unwrap_or_default().trim_start().to_owned(),
    })
}

impl Symbols {
    /// Looks at a process's mappings; keeps what it knew when that one is gone.
    pub fn look_at(&mut self, pid: Pid) {
        let Ok(file) = File::open(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mut bytes = Vec::new();
        if file.take(MAX_MAPS_BYTES).read_to_end(&mut bytes).is_err() || bytes.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(&bytes);
        self.processes
            .insert(pid, text.lines().filter_map(parse).collect());
    }

    /// The whole path of the file with this inode in a process.
    pub fn path(&self, pid: Pid, inode: u64) -> Option<String> {
        let mapped = self
            .processes
            .get(&pid)?
            .iter()
            .find(|it| inode != 0 && it.inode == inode)?;
        Some(printable(mapped.name.as_bytes(), 4096))
    }

    /// What an address belongs to: `function+0x12 (file)`, `file+0x1234`, or only the address.
    pub fn name(&mut self, pid: Pid, address: u64) -> String {
        if address >> 63 == 1 {
            return "(the kernel, in a system call)".to_owned();
        }
        let found = self.processes.get(&pid).and_then(|maps| {
            maps.iter()
                .find(|it| it.start <= address && address < it.end)
                .cloned()
        });
        let Some(mapped) = found.filter(|mapped| !mapped.name.is_empty()) else {
            return format!("{address:#x}");
        };
        let offset = address
            .saturating_sub(mapped.start)
            .saturating_add(mapped.offset);
        let file = mapped.name.rsplit('/').next().unwrap_or_default();
        let file = printable(file.as_bytes(), 128);
        let symbol = self.table(pid, &mapped).and_then(|table| table.at(offset));
        match symbol {
            Some((name, 0)) => format!("{name} ({file})"),
            Some((name, inside)) => format!("{name}+{inside:#x} ({file})"),
            None => format!("{file}+{offset:#x}"),
        }
    }

    fn table(&mut self, pid: Pid, mapped: &Mapped) -> Option<&Table> {
        if mapped.inode == 0 {
            return None;
        }
        let key = (pid, mapped.inode);
        if self.files.len() >= MAX_FILES && !self.files.contains_key(&key) {
            return None;
        }
        self.files
            .entry(key)
            .or_insert_with(|| read(pid, mapped))
            .as_ref()
    }
}

/// The symbols of a mapped file, found in the process's own tree of files (it may be in a container).
fn read(pid: Pid, mapped: &Mapped) -> Option<Table> {
    // The name may by now be a pipe or another file: never wait, and compare the inode.
    let open = |path: PathBuf| {
        File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .ok()
    };
    let file = open(PathBuf::from(format!("/proc/{pid}/root{}", mapped.name)))
        .or_else(|| open(PathBuf::from(&mapped.name)))?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.ino() != mapped.inode || metadata.len() > MAX_FILE_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Table::parse(&bytes)
}

impl Table {
    /// Of a 64-bit little-endian ELF file (elf(5)).
    fn parse(bytes: &[u8]) -> Option<Self> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let index = |value: u64| usize::try_from(value).ok();
        let mut segments = Vec::new();
        let (offset, size, count) = (
            number(bytes, 32, 8)?,
            number(bytes, 54, 2)?,
            number(bytes, 56, 2)?,
        );
        for each in 0..count {
            let at = index(offset.checked_add(each * size)?)?;
            if number(bytes, at, 4)? == 1 {
                let (file, address) = (number(bytes, at + 8, 8)?, number(bytes, at + 16, 8)?);
                segments.push((file, number(bytes, at + 32, 8)?, address));
            }
        }
        let (offset, size, count) = (
            number(bytes, 40, 8)?,
            number(bytes, 58, 2)?,
            number(bytes, 60, 2)?,
        );
        let section = |each: u64, field: usize, length: usize| {
            let at = index(offset.checked_add(each.checked_mul(size)?)?)?;
            number(bytes, at.checked_add(field)?, length)
        };
        let mut symbols = Vec::new();
        for each in 0..count {
            // SHT_SYMTAB, SHT_DYNSYM
            if !matches!(section(each, 4, 4), Some(2 | 11)) {
                continue;
            }
            let (at, length) = (section(each, 24, 8)?, section(each, 32, 8)?);
            let names = section(section(each, 40, 4)?, 24, 8)?;
            let end = at.checked_add(length)?;
            let mut at = at;
            while at.checked_add(24)? <= end && symbols.len() < MAX_SYMBOLS {
                let entry = index(at)?;
                at += 24;
                let Some(info) = number(bytes, entry + 4, 1) else {
                    break;
                };
                let (address, size) = (number(bytes, entry + 8, 8)?, number(bytes, entry + 16, 8)?);
                // STT_FUNC that is defined here
                if info & 15 != 2 || address == 0 {
                    continue;
                }
                let name = index(names.checked_add(number(bytes, entry, 4)?)?)?;
                let name = bytes
                    .get(name..)?
                    .iter()
                    .take(256)
                    .take_while(|&&byte| byte != 0);
                let name: Vec<u8> = name.copied().collect();
                symbols.push((address, size, printable(&name, 256)));
            }
        }
        symbols.sort();
        Some(Self { symbols, segments })
    }

    /// The function at an offset in the file, and how far inside.
    fn at(&self, offset: u64) -> Option<(&str, u64)> {
        let (file, _, start) = self.segments.iter().find(|(file, size, _)| {
            offset
                .checked_sub(*file)
                .is_some_and(|inside| inside < *size)
        })?;
        let address = offset.checked_sub(*file)?.checked_add(*start)?;
        let next = self.symbols.partition_point(|(at, _, _)| *at <= address);
        let (at, size, name) = self.symbols.get(next.checked_sub(1)?)?;
        let inside = address.checked_sub(*at)?;
        (inside < (*size).max(1)).then_some((name.as_str(), inside))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[inline(never)]
    fn a_function_to_be_found() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_ours_is_found_by_its_address() {
        assert_eq!(a_function_to_be_found(), 7);
        let mut symbols = Symbols::default();
        let pid = Pid::new(std::process::id());
        symbols.look_at(pid);
        let name = symbols.name(pid, a_function_to_be_found as fn() -> u64 as usize as u64);
        assert!(name.contains("a_function_to_be_found"), "{name}");
    }

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f1c2000-7f1c4000 r-xp 00026000 fd:01 1311 /lib/x y.so (deleted)";
        let mapped = parse(line).unwrap();
        assert_eq!(
            (mapped.start, mapped.end, mapped.offset, mapped.inode),
            (0x7f1c_2000, 0x7f1c_4000, 0x26000, 1311)
        );
        assert_eq!(mapped.name, "/lib/x y.so (deleted)");
        assert_eq!(
            parse("7ffc1-7ffc2 rw-p 0 00:00 0 [stack]").unwrap().name,
            "[stack]"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line: String) {
            let _ = parse(&line);
            let mut elf = b"\x7fELF\x02\x01".to_vec();
            elf.extend(bytes);
            if let Some(table) = Table::parse(&elf) {
                let _ = table.at(0);
            }
        }
    }
}
