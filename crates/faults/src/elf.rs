// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an ELF file of 64 bits says of itself (elf(5)): its loader, its segments, the names that it needs.
//!
//! The file is its user's, and each number in it may be any. Nothing is read but what the header points at, and no
//! more of it than the kernel takes.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Sizes of the structures: a program header, an entry of the dynamic section.
const PROGRAM_HEADER: usize = 56;
const DYNAMIC_ENTRY: usize = 16;

/// The kernel starts no program with more program headers, bytes (fs/binfmt_elf.c, load_elf_phdrs), or a longer
/// name of its loader (PATH_MAX).
const MOST_HEADERS: u64 = 64 << 10;
const MOST_LOADER: u64 = 4 << 10;
/// Of a dynamic section, and of its strings.
const MOST_STRINGS: u64 = 64 << 20;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;

/// What a file is to execve(2), if it is no script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Started by this loader.
    Dynamic(Vec<u8>),
    /// Started without a loader.
    Static,
    /// Made for another kind of processor.
    Foreign,
    /// No program that the kernel would start.
    Unknown,
}

/// Looks at a file that begins with `head`.
pub(crate) fn kind(file: &File, head: &[u8]) -> Kind {
    if !head.starts_with(b"\x7fELF") {
        return Kind::Unknown;
    }
    // Class 64-bit, little-endian, e_machine of our own.
    const MACHINE: u64 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    if head.get(4) != Some(&2) || head.get(5) != Some(&1) || number(head, 18, 2) != Some(MACHINE) {
        return Kind::Foreign;
    }
    let Some(headers) = program_headers(file, head) else {
        return Kind::Unknown;
    };
    match segments(&headers).find(|it| it.kind == PT_INTERP) {
        Some(segment) => read_at(file, segment.offset, segment.size, MOST_LOADER)
            .map_or(Kind::Unknown, Kind::Dynamic),
        None => Kind::Static,
    }
}

/// The program headers, wherever in the file they lie; `None` where the kernel would not start it.
fn program_headers(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    let (offset, size) = (number(head, 32, 8)?, number(head, 54, 2)?);
    let count = number(head, 56, 2)?;
    if size != PROGRAM_HEADER as u64 {
        return None;
    }
    read_at(file, offset, count * size, MOST_HEADERS)
}

/// What a program header says.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u64,
    /// Where it begins in the file.
    offset: u64,
    /// Where it begins in memory.
    address: u64,
    /// Its size in the file.
    size: u64,
}

fn segments(headers: &[u8]) -> impl Iterator<Item = Segment> {
    headers.chunks_exact(PROGRAM_HEADER).filter_map(|header| {
        Some(Segment {
            kind: number(header, 0, 4)?,
            offset: number(header, 8, 8)?,
            address: number(header, 16, 8)?,
            size: number(header, 32, 8)?,
        })
    })
}

/// The strings of a program's dynamic section (DT_STRTAB): the libraries it needs, the functions it takes from others
/// and those it offers.
pub(crate) fn dynamic_strings(file: &File, head: &[u8]) -> Option<Vec<u8>> {
    const DT_STRTAB: u64 = 5;
    const DT_STRSZ: u64 = 10;
    let headers = program_headers(file, head)?;
    let dynamic = segments(&headers).find(|it| it.kind == PT_DYNAMIC)?;
    let section = read_at(file, dynamic.offset, dynamic.size, MOST_STRINGS)?;
    let value = |tag| {
        let entry = section
            .chunks_exact(DYNAMIC_ENTRY)
            .find(|entry| number(entry, 0, 8) == Some(tag))?;
        number(entry, 8, 8)
    };
    let (address, size) = (value(DT_STRTAB)?, value(DT_STRSZ)?);
    // An address in memory: where in the file, says the segment that it lies in.
    let mut loaded = segments(&headers).filter(|it| it.kind == PT_LOAD);
    let at = loaded.find_map(|segment| {
        let inside = address.checked_sub(segment.address)?;
        (inside < segment.size).then(|| segment.offset.checked_add(inside))?
    })?;
    read_at(file, at, size, MOST_STRINGS)
}

/// Part of a file, if it is no larger than `most`.
fn read_at(file: &File, at: u64, size: u64, most: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).ok().filter(|_| size <= most)?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The sanitizer whose runtime is among these names: a library of gcc's, or in the program (clang).
pub(crate) fn sanitizer_of(names: &[u8]) -> Option<&'static str> {
    const SANITIZERS: [(&str, &[u8], &[u8]); 5] = [
        ("AddressSanitizer", b"libasan.so", b"__asan_init"),
        ("LeakSanitizer", b"liblsan.so", b"__lsan_init"),
        ("ThreadSanitizer", b"libtsan.so", b"__tsan_init"),
        ("MemorySanitizer", b"libmsan.so", b"__msan_init"),
        ("HWAddressSanitizer", b"libhwasan.so", b"__hwasan_init"),
    ];
    let mut known = names.split(|&byte| byte == 0);
    known.find_map(|name| {
        let found = SANITIZERS
            .iter()
            .find(|(_, library, start)| name.starts_with(library) || name == *start);
        found.map(|(sanitizer, ..)| *sanitizer)
    })
}

/// A little-endian number of `length` bytes.
pub(crate) fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(length)?)?;
    Some(
        part.iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte)),
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use proptest::prelude::*;

    use super::*;

    /// The first 64 bytes of our own program: its ELF header.
    fn own() -> (File, Vec<u8>) {
        let file = File::open("/proc/self/exe").unwrap();
        let head = read_at(&file, 0, 64, 64).unwrap();
        (file, head)
    }

    #[test]
    fn sanitizers_are_told_by_their_library_or_their_start() {
        let (file, head) = own();
        let names = dynamic_strings(&file, &head).unwrap();
        let has_libc = names
            .split(|&byte| byte == 0)
            .any(|name| name == b"libc.so.6");
        assert!(has_libc);
        assert_eq!(sanitizer_of(&names), None);
        let table = [
            (
                &b"\0libasan.so.8\0libc.so.6\0"[..],
                Some("AddressSanitizer"),
            ),
            (b"\0libc.so.6\0__tsan_init\0", Some("ThreadSanitizer")),
            (b"\0liblsan.so.0\0", Some("LeakSanitizer")),
            (b"\0libubsan.so.1\0__ubsan_handle_add_overflow\0", None),
            (b"", None),
        ];
        for (names, expected) in table {
            assert_eq!(sanitizer_of(names), expected);
        }
    }

    /// patchelf(1) and other tools put the program headers at the end of the file.
    #[test]
    fn program_headers_are_found_wherever_they_lie() {
        let (file, mut head) = own();
        let expected = kind(&file, &head);
        assert!(matches!(expected, Kind::Dynamic(_)), "{expected:?}");
        let names = dynamic_strings(&file, &head);
        let headers = program_headers(&file, &head).unwrap();
        let mut copy = tempfile::tempfile().unwrap();
        std::io::copy(&mut &file, &mut copy).unwrap();
        let at = copy.seek(SeekFrom::End(1 << 20)).unwrap();
        copy.write_all(&headers).unwrap();
        head[32..40].copy_from_slice(&at.to_le_bytes());

        assert_eq!(kind(&copy, &head), expected);
        assert_eq!(dynamic_strings(&copy, &head), names);
        // Beyond the file.
        head[32..40].copy_from_slice(&(at + 1).to_le_bytes());
        assert_eq!(kind(&copy, &head), Kind::Unknown);
        head[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(kind(&copy, &head), Kind::Unknown);
    }

    #[test]
    fn what_the_kernel_does_not_start_is_not_read() {
        let (file, head) = own();
        // (bytes of a header, headers)
        for (size, count) in [(55_u16, 9_u16), (57, 9), (0, 9), (56, u16::MAX)] {
            let mut head = head.clone();
            head[54..56].copy_from_slice(&size.to_le_bytes());
            head[56..58].copy_from_slice(&count.to_le_bytes());
            assert_eq!(kind(&file, &head), Kind::Unknown, "{size} {count}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(tail: Vec<u8>) {
            let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
            elf.extend(tail);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&elf).unwrap();
            let _ = kind(&file, &elf);
            let _ = dynamic_strings(&file, &elf);
        }
    }
}
