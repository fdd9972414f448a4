// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An array map seen through memory: reading a thousand accounts costs no system call.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapHandle};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;
use crate::abi::Pod;

/// A BPF_F_MMAPABLE array map of `T`, mapped read-only.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    base: NonNull<T>,
    entries: usize,
    length: usize,
    _values: PhantomData<T>,
}

impl<T: Pod> Mapped<T> {
    /// Maps all values of `map`.
    pub(crate) fn new(map: &MapHandle) -> Result<Self, Error> {
        // kernel/bpf/arraymap.c: elements lie at multiples of their size rounded up to 8.
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        const WHAT: &str = "map the ledger into memory";
        if map.value_size() as usize != size_of::<T>() {
            return Err(Error::Io {
                what: WHAT,
                source: io::ErrorKind::InvalidData.into(),
            });
        }
        let entries = map.max_entries() as usize;
        let length = (entries * size_of::<T>()).next_multiple_of(rustix::param::page_size());
        // SAFETY: a fresh mapping chosen by the kernel; nothing of ours lies there.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                map,
                0,
            )
        }
        .map_err(|source| Error::Io {
            what: WHAT,
            source: source.into(),
        })?;
        let base = NonNull::new(base.cast::<T>()).ok_or(Error::Io {
            what: WHAT,
            source: io::ErrorKind::AddrNotAvailable.into(),
        })?;
        Ok(Self {
            base,
            entries,
            length,
            _values: PhantomData,
        })
    }

    /// How many values there are.
    pub(crate) const fn len(&self) -> usize {
        self.entries
    }

    /// A copy of a value. The kernel half writes meanwhile: each field is whole, the value as a
    /// whole may be from two moments.
    pub(crate) fn get(&self, index: usize) -> Option<T> {
        if index >= self.entries {
            return None;
        }
        // SAFETY: within the mapping, aligned (checked in `new`), and T: Pod. Volatile because
        // another writer exists; a torn read mixes two valid values of integers.
        Some(unsafe { self.base.as_ptr().add(index).read_volatile() })
    }
}

/// Adds to a 64-bit counter `at` so many bytes into a BPF_F_MMAPABLE array map that the kernel half
/// counts in as well.
pub(crate) fn add(map: &MapHandle, at: usize, count: u64) -> Result<(), Error> {
    with_word(map, at, |word| {
        word.fetch_add(count, Ordering::Relaxed);
    })
}

/// Writes a 64-bit word there that the kernel half only reads.
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

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, and no reference into it is ever given out.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: read-only shared memory without thread affinity.
unsafe impl<T: Pod + Send> Send for Mapped<T> {}
// SAFETY: values are copied out, and nobody writes through it.
unsafe impl<T: Pod + Send> Sync for Mapped<T> {}
