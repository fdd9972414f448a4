// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An array map seen through memory: reading a thousand accounts costs no system call.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;
use crate::abi::Pod;

const WHAT: &str = "map the ledger into memory";

/// So many bytes are mapped in one piece, or as many more as it takes for a piece to end with a value and a page.
const PIECE: usize = 64 << 10;

/// A BPF_F_MMAPABLE array map of `T`, mapped read-only: in pieces, each when one of its values is first wanted. The kernel
/// makes all of what is mapped resident at once, and of the room for thousands of accounts most is empty.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    map: MapHandle,
    entries: usize,
    entries_each: usize,
    pieces: Box<[OnceLock<Piece>]>,
    _values: PhantomData<T>,
}

/// Some pages of a map.
#[derive(Debug)]
struct Piece {
    base: NonNull<u8>,
    length: usize,
}

impl Piece {
    fn new(map: &MapHandle, at: usize, length: usize) -> Result<Self, Error> {
        // SAFETY: a fresh mapping chosen by the kernel; nothing of ours lies there.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                map,
                at as u64,
            )
        }
        .map_err(|source| Error::Io {
            what: WHAT,
            source: source.into(),
        })?;
        let base = NonNull::new(base.cast()).ok_or(Error::Io {
            what: WHAT,
            source: io::ErrorKind::AddrNotAvailable.into(),
        })?;
        Ok(Self { base, length })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, and no reference into it is ever given out.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: read-only shared memory without thread affinity.
unsafe impl Send for Piece {}
// SAFETY: values are copied out, and nobody writes through it.
unsafe impl Sync for Piece {}

/// How many values of `size` bytes one piece has: it ends where a page ends.
fn entries_each(size: usize, page: usize) -> usize {
    // Pages are powers of two: so many values end with a page for the first time.
    let to_page_end = page >> size.trailing_zeros().min(page.trailing_zeros());
    to_page_end * PIECE.div_ceil(to_page_end * size)
}

impl<T: Pod> Mapped<T> {
    /// Maps the first values of `map`.
    pub(crate) fn new(map: &MapHandle) -> Result<Self, Error> {
        // kernel/bpf/arraymap.c: elements lie at multiples of their size rounded up to 8.
        const { assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(8)) };
        if map.value_size() as usize != size_of::<T>() {
            return Err(Error::Io {
                what: WHAT,
                source: io::ErrorKind::InvalidData.into(),
            });
        }
        let entries = map.max_entries() as usize;
        let entries_each = entries_each(size_of::<T>(), rustix::param::page_size());
        let count = entries.div_ceil(entries_each);
        let mapped = Self {
            map: MapHandle::try_from(map).map_err(Error::io(WHAT))?,
            entries,
            entries_each,
            pieces: (0..count).map(|_| OnceLock::new()).collect(),
            _values: PhantomData,
        };
        if let Some(first) = mapped.pieces.first() {
            let _ = first.set(mapped.piece(0)?);
        }
        Ok(mapped)
    }

    fn piece(&self, number: usize) -> Result<Piece, Error> {
        let at = number * self.entries_each * size_of::<T>();
        let all = self.entries * size_of::<T>();
        let length = (all - at).min(self.entries_each * size_of::<T>());
        Piece::new(
            &self.map,
            at,
            length.next_multiple_of(rustix::param::page_size()),
        )
    }

    /// How many values there are.
    pub(crate) const fn len(&self) -> usize {
        self.entries
    }

    /// A copy of a value; `None` too where it cannot be mapped. The kernel half writes meanwhile: each field is whole, the
    /// value as a whole may be from two moments.
    pub(crate) fn get(&self, index: usize) -> Option<T> {
        if index >= self.entries {
            return None;
        }
        let number = index / self.entries_each;
        let place = self.pieces.get(number)?;
        let piece = match place.get() {
            Some(piece) => piece,
            None => {
                let made = self.piece(number);
                let made = made
                    .inspect_err(|error| tracing::error!(%error, "accounts cannot be read"))
                    .ok()?;
                // Another thread may have been faster; then ours goes.
                place.get_or_init(|| made)
            }
        };
        let within = index % self.entries_each;
        // SAFETY: within the piece, aligned (checked in `new`), and T: Pod. Volatile because
        // another writer exists; a torn read mixes two valid values of integers.
        Some(unsafe { piece.base.as_ptr().cast::<T>().add(within).read_volatile() })
    }
}

/// Adds to a 64-bit counter `at` so many bytes into a BPF_F_MMAPABLE array map that the kernel half
/// counts in as well.
pub(crate) fn add(map: &MapHandle, at: usize, count: u64) -> Result<(), Error> {
    with_word(map, at, |word| {
        word.fetch_add(count, Ordering::Relaxed);
    })
}

/// Writes a 64-bit word there that the kernel half does not write.
pub(crate) fn store(map: &MapHandle, at: usize, value: u64) -> Result<(), Error> {
    with_word(map, at, |word| word.store(value, Ordering::Relaxed))
}

/// Mapped for this moment only: nothing else of ours can write there.
fn with_word(map: &MapHandle, at: usize, write: impl FnOnce(&AtomicU64)) -> Result<(), Error> {
    const { assert!(size_of::<AtomicU64>() == 8) };
    let failed = |source: io::Error| Error::Io {
        what: "write to the ledger",
        source,
    };
    let page = rustix::param::page_size();
    let size = map.value_size().next_multiple_of(8) as usize * map.max_entries() as usize;
    if !at.is_multiple_of(8) || at >= size {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    // SAFETY: a fresh mapping chosen by the kernel; nothing of ours lies there.
    let base = unsafe {
        mmap(
            std::ptr::null_mut(),
            page,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            map,
            (at - at % page) as u64,
        )
    }
    .map_err(|source| failed(source.into()))?;
    // SAFETY: within the page, aligned, and written atomically by all: the kernel half by
    // __sync_fetch_and_add, which is the same instruction.
    write(unsafe { AtomicU64::from_ptr(base.byte_add(at % page).cast()) });
    // SAFETY: the mapping made above; the word is not used any more.
    unsafe { munmap(base, page) }.map_err(|source| failed(source.into()))
}

#[cfg(test)]
mod tests {
    use super::entries_each;

    #[test]
    fn a_piece_ends_with_a_value_and_a_page() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            for size in [8, 24, 64, 832, 1000, 4096, 5000, 70_000] {
                let length = entries_each(size, page) * size;
                assert!(length.is_multiple_of(page), "{size} in {page}");
                assert!(length >= 64 << 10, "{size} in {page}: {length}");
            }
        }
        // An account's.
        assert_eq!(entries_each(832, 4096), 128);
    }
}
