// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of faults.h as bytes and back.

use std::mem::{MaybeUninit, size_of};

/// Plain C data: every bit pattern is a value.
///
/// # Safety
/// Implement it for `repr(C)` types of integers without implicit padding only.
pub(crate) unsafe trait Plain: Copy {}

/// A copy of the value that `bytes` holds; `None` when they are too few.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `bytes` has at least that many bytes, the two do not overlap, and T: Plain.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), size_of::<T>());
        Some(value.assume_init())
    }
}

/// The bytes of a value.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T: Plain, so it has no implicit padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}
