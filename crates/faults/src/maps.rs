// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/maps: which file lies where, and which symbol an instruction belongs to.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use bursar_model::{Pid, printable};

use crate::elf::number;
use crate::mapped::Mapped;
use crate::mapped_file;
use crate::signals;
use crate::snapshot::Mapping;

/// A process with more mappings is looked at only so far.
const MAX_MAPS_BYTES: u64 = 8 << 20;
/// Symbols kept of one file.
const MAX_SYMBOLS: usize = 1 << 18;
/// Entries of symbol tables looked at in one file, whether they are kept or not: the file is the user's,
/// and all its sections may be the same hundreds of megabytes.
const MAX_ENTRIES: u64 = 1 << 22;
/// Entries between two looks at whether somebody wants an end.
const STEP: u64 = 1 << 14;
/// Files whose symbols are kept.
const MAX_FILES: usize = 64;

/// Where files are mapped in processes, and their symbols.
#[derive(Debug, Default)]
pub struct Symbols {
    processes: HashMap<Pid, Vec<Mapped>>,
    files: HashMap<FileKey, Option<Table>>,
    /// Somebody did not want to wait for what a file says: none is read any more.
    is_stopped: bool,
}

/// A process, in whose tree its files are found, and a file's device and inode.
type FileKey = (Pid, String, u64);

#[derive(Debug)]
struct Table {
    /// (address, size, name), by address.
    symbols: Vec<(u64, u64, String)>,
    /// Of each segment that is loaded: (offset in the file, its size there, address).
    segments: Vec<(u64, u64, u64)>,
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
            .insert(pid, text.lines().filter_map(Mapped::parse).collect());
    }

    /// The whole path of the file that a mapping of a process is of.
    ///
    /// From 6.7 on maps says an overlay's device, and the mapping that of the file system below, so there the inode and
    /// the name have to do.
    pub fn path(&self, pid: Pid, mapping: &Mapping) -> Option<String> {
        let maps = self.processes.get(&pid)?.iter();
        let alike = maps.filter(|it| mapping.inode != 0 && it.inode == mapping.inode);
        let is_named_so = |it: &&Mapped| {
            let file = printable(it.file().as_bytes(), 256);
            mapping.file.as_ref() == Some(&file)
        };
        let mapped = alike
            .clone()
            .find(|it| it.device == mapping.device)
            .or_else(|| alike.clone().find(is_named_so))?;
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
        let key = (pid, mapped.device.clone(), mapped.inode);
        if !self.files.contains_key(&key) {
            if self.files.len() >= MAX_FILES || self.is_stopped {
                return None;
            }
            // A signal that came before has ended the watch, and its last report wants names.
            let before = signals::interruptions();
            let stops = || signals::interruptions() != before;
            let table =
                mapped_file::read(pid, mapped, &stops).and_then(|it| Table::parse(&it, &stops));
            self.is_stopped = stops();
            self.files.insert(key.clone(), table);
        }
        self.files.get(&key)?.as_ref()
    }
}

impl Table {
    /// Of a 64-bit little-endian ELF file (elf(5)), unless `stops` says so meanwhile.
    fn parse(bytes: &[u8], stops: &dyn Fn() -> bool) -> Option<Self> {
        /// e_phentsize and e_shentsize of such files; others no program is started from.
        const SEGMENT: u64 = 56;
        const SECTION: u64 = 64;
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
        if count > 0 && size != SEGMENT {
            return None;
        }
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
        if count > 0 && size != SECTION {
            return None;
        }
        let section = |each: u64, field: usize, length: usize| {
            let at = index(offset.checked_add(each.checked_mul(size)?)?)?;
            number(bytes, at.checked_add(field)?, length)
        };
        let mut symbols = Vec::new();
        let mut looked_at = 0;
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
                if looked_at % STEP == 0 && stops() {
                    return None;
                }
                if looked_at == MAX_ENTRIES {
                    break;
                }
                looked_at += 1;
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
    use std::cell::Cell;
    use std::os::unix::fs::MetadataExt;
    use std::path::{Path, PathBuf};

    use proptest::prelude::*;

    use super::*;
    use crate::MappingKind;

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
        let mapped = Mapped::parse(line).unwrap();
        assert_eq!(
            (mapped.start, mapped.end, mapped.offset, mapped.inode),
            (0x7f1c_2000, 0x7f1c_4000, 0x26000, 1311)
        );
        assert_eq!(mapped.name, "/lib/x y.so (deleted)");
        assert_eq!(mapped.device, "253:1");
        assert_eq!(mapped.file(), "x y.so");
        assert_eq!(
            Mapped::parse("7ffc1-7ffc2 rw-p 0 00:00 0 [stack]")
                .unwrap()
                .name,
            "[stack]"
        );
    }

    #[test]
    fn files_with_one_inode_number_on_two_file_systems_are_told_apart() {
        let maps = [
            "1000-2000 r-xp 0 fd:01 77 /usr/lib/first.so",
            "2000-3000 r-xp 0 fd:02 77 /mnt/second.so",
            "3000-4000 r-xp 0 00:30 78 /usr/lib/overlay.so (deleted)",
        ];
        let pid = Pid::new(1);
        let mut symbols = Symbols::default();
        let maps = maps.iter().filter_map(|line| Mapped::parse(line));
        symbols.processes.insert(pid, maps.collect());
        let path = |device: &str, inode, file: &str| {
            let mapping = Mapping {
                index: 1,
                process: 1,
                kind: MappingKind::File,
                start: 0,
                end: 0,
                permissions: String::new(),
                file: Some(file.to_owned()),
                inode,
                device: device.to_owned(),
                is_written_back: true,
                minor: 0,
                major: 0,
                timed: 0,
                timed_protected: 0,
            };
            symbols.path(pid, &mapping)
        };
        let table = [
            ("253:1", 77, "first.so", Some("/usr/lib/first.so")),
            ("253:2", 77, "second.so", Some("/mnt/second.so")),
            ("253:3", 77, "third.so", None),
            // Of an overlay, whose device is another one.
            (
                "253:1",
                78,
                "overlay.so",
                Some("/usr/lib/overlay.so (deleted)"),
            ),
            ("253:1", 0, "first.so", None),
        ];
        for (device, inode, file, expected) in table {
            assert_eq!(path(device, inode, file).as_deref(), expected, "{file}");
        }
    }

    /// An ELF file whose sections are all the same symbol table of empty entries.
    fn elf_of_the_same(sections: u16, section_size: u16, entries: u64) -> Vec<u8> {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(64, 0);
        elf[40..48].copy_from_slice(&64_u64.to_le_bytes());
        elf[58..60].copy_from_slice(&section_size.to_le_bytes());
        elf[60..62].copy_from_slice(&sections.to_le_bytes());
        let headers = usize::from(sections) * usize::from(section_size);
        let table = 64 + headers.max(64) as u64;
        let mut header = [0_u8; 64];
        header[4] = 2;
        header[24..32].copy_from_slice(&table.to_le_bytes());
        header[32..40].copy_from_slice(&(entries * 24).to_le_bytes());
        let count = (headers / 64).max(1);
        (0..count).for_each(|_| elf.extend(header));
        elf.resize((table + entries * 24) as usize, 0);
        elf
    }

    #[test]
    fn a_file_whose_sections_are_all_the_same_is_looked_at_only_so_far() {
        let asked = Cell::new(0);
        let stops = || {
            asked.set(asked.get() + 1);
            false
        };
        let elf = elf_of_the_same(u16::MAX, 64, 1 << 12);
        assert!(Table::parse(&elf, &stops).unwrap().symbols.is_empty());
        // One look a section is left once the bound is reached: each begins and is given up.
        let bound = MAX_ENTRIES / STEP + u64::from(u16::MAX);
        assert!((1..=bound).contains(&asked.get()), "{}", asked.get());
    }

    #[test]
    fn headers_of_another_size_are_no_elf_file() {
        let elf = elf_of_the_same(u16::MAX, 0, 1 << 12);
        assert!(Table::parse(&elf, &|| false).is_none());
    }

    #[test]
    fn who_wants_an_end_need_not_wait_for_a_file() {
        let elf = elf_of_the_same(1, 64, MAX_ENTRIES);
        let asked = Cell::new(0);
        let stops = || {
            asked.set(asked.get() + 1);
            asked.get() == 2
        };
        assert!(Table::parse(&elf, &stops).is_none());
        assert_eq!(asked.get(), 2);
    }

    /// A copy of this program, mapped executable into us; its name, where it lies, and its length.
    fn mapped_copy(folder: &Path) -> (PathBuf, usize, usize) {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let program = folder.join("prog");
        std::fs::copy("/proc/self/exe", &program).unwrap();
        let file = File::open(&program).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        let (rights, flags) = (ProtFlags::READ | ProtFlags::EXEC, MapFlags::PRIVATE);
        // SAFETY: a new mapping where the kernel likes; nothing of it is used but its address.
        let at = unsafe { mmap(std::ptr::null_mut(), length, rights, flags, &file, 0) };
        (program, at.unwrap() as usize, length)
    }

    #[test]
    fn a_link_in_place_of_a_deleted_program_is_not_opened() {
        use rustix::fs::inotify;
        let folder = tempfile::tempdir().unwrap();
        let (program, start, length) = mapped_copy(folder.path());
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "of nobody's business").unwrap();
        std::fs::remove_file(&program).unwrap();
        std::os::unix::fs::symlink(&secret, folder.path().join("prog (deleted)")).unwrap();
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, &secret, inotify::WatchFlags::OPEN).unwrap();

        let mut symbols = Symbols::default();
        let pid = Pid::new(std::process::id());
        symbols.look_at(pid);
        symbols.name(pid, start as u64 + 0x1000);

        let opened = rustix::io::read(&watch, &mut [0_u8; 512]);
        assert_eq!(opened, Err(rustix::io::Errno::AGAIN), "it was opened");
        // The mapping itself still leads to the deleted program, for whom the kernel lets follow it.
        let end = start + length.next_multiple_of(rustix::param::page_size());
        let may = File::open(format!("/proc/self/map_files/{start:x}-{end:x}")).is_ok();
        let is_read = symbols.files.values().any(Option::is_some);
        assert_eq!(is_read, may);
    }

    #[test]
    fn what_has_another_device_is_not_the_file_of_that_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prog");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let proc = bursar_host::Proc::host().unwrap();
        let mounts = bursar_host::Mounts::read(&proc).unwrap();
        let real = folder.path().canonicalize().unwrap();
        let mut mapped = Mapped {
            start: 0,
            end: 0,
            offset: 0,
            device: mounts.containing(&real).unwrap().device.clone(),
            inode: path.metadata().unwrap().ino(),
            name: real.join("prog").to_str().unwrap().to_owned(),
        };
        // Of a process that has ended: its name in our own tree is all there is.
        let gone = Pid::new(u32::MAX >> 2);
        assert!(mapped_file::read(gone, &mapped, &|| false).is_some());
        mapped.device = "7:77".to_owned();
        assert!(mapped_file::read(gone, &mapped, &|| false).is_none());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, line: String) {
            let _ = Mapped::parse(&line);
            let mut elf = b"\x7fELF\x02\x01".to_vec();
            elf.extend(bytes);
            if let Some(table) = Table::parse(&elf, &|| false) {
                let _ = table.at(0);
            }
        }
    }
}
