// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plain C data as bytes and back: what BPF maps, ring buffers and calls carry.

use std::mem::{MaybeUninit, size_of};

/// Plain C data: every bit pattern is a value.
///
/// # Safety
/// Implement it for `repr(C)` types of integers without implicit padding only.
pub unsafe trait Pod: Copy {}

/// A copy of the value that `bytes` begin with; `None` when they are too few.
pub fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `bytes` has at least that many bytes, and the two do not overlap.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), size_of::<T>());
    }
    // SAFETY: all of it was written, and T: Pod.
    Some(unsafe { value.assume_init() })
}

/// The bytes of a value.
pub fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: T: Pod, so it has no implicit padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// The bytes of a value, to be written.
pub fn bytes_of_mut<T: Pod>(value: &mut T) -> &mut [u8] {
    // SAFETY: T: Pod, so it has no implicit padding and whatever is written is a value.
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast::<u8>(), size_of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    #[repr(C)]
    struct Pair {
        first: u32,
        second: [u16; 2],
    }
    // SAFETY: integers, and as long as the largest wants.
    unsafe impl Pod for Pair {}

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let mut pair = Pair {
            first: 7,
            second: [1, 2],
        };
        let bytes = [bytes_of(&pair), &[0xff; 3]].concat();
        assert_eq!(read(&bytes), Some(pair));
        assert_eq!(read(bytes.get(1..).unwrap()).map(|_: Pair| ()), Some(()));
        bytes_of_mut(&mut pair).fill(0xff);
        assert_eq!((pair.first, pair.second), (u32::MAX, [u16::MAX; 2]));
    }

    #[test]
    fn too_few_bytes_are_no_value() {
        assert_eq!(read::<Pair>(&[0; 7]), None);
        assert_eq!(read::<Pair>(&[]), None);
    }
}
