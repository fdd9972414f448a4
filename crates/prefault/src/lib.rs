// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libprefault: S3's three conditions, met inside the program. `include/prefault.h` is the contract.
//!
//! Two ways in: the functions of prefault.h, and [`preload`], which runs before main() where
//! `bursar run --lock` put this library into LD_PRELOAD. Before main() little may be relied on, so only
//! libc and bursar-reserve are called here, nothing of Rust's standard library that keeps state.

mod account;
mod act;
mod group;
mod machine;
mod preload;
mod range;
mod say;

use std::ffi::c_int;

use act::Options;

/// `struct prefault_options`.
#[derive(Debug)]
#[repr(C)]
pub struct PrefaultOptions {
    size: u32,
    flags: u32,
    heap_bytes: usize,
    stack_bytes: usize,
}

/// `struct prefault_counts`.
#[derive(Debug)]
#[repr(C)]
pub struct PrefaultCounts {
    minor: u64,
    major: u64,
}

fn answer(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the calling thread's errno is always there.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// See prefault.h.
///
/// # Safety
/// `options` is NULL or points to a `struct prefault_options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prefault_lock(options: *const PrefaultOptions) -> c_int {
    // SAFETY: as the caller promises.
    let Some(options) = (unsafe { options.as_ref() }) else {
        return answer(Err(libc::EINVAL));
    };
    let known = act::ONFAULT | act::KEEP_MALLOC;
    if options.size as usize != size_of::<PrefaultOptions>() || options.flags & !known != 0 {
        return answer(Err(libc::EINVAL));
    }
    let options = Options {
        flags: options.flags,
        heap_bytes: options.heap_bytes,
        stack_bytes: options.stack_bytes,
    };
    if options.is_contradictory() {
        return answer(Err(libc::EINVAL));
    }
    answer(act::lock(&options).map_err(|refusal| refusal.errno))
}

/// See prefault.h.
#[unsafe(no_mangle)]
pub extern "C" fn prefault_stack(bytes: usize) -> c_int {
    answer(act::stack(bytes).map_err(|refusal| refusal.errno))
}

/// See prefault.h.
///
/// # Safety
/// `bytes` from `address` are writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prefault_range(address: *mut u8, bytes: usize) -> c_int {
    if address.is_null() || address.addr().checked_add(bytes).is_none() {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    unsafe { act::touch(address, bytes) };
    answer(Ok(()))
}

/// See prefault.h.
///
/// # Safety
/// `bytes` from `address` are writable memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prefault_lock_range(address: *mut u8, bytes: usize) -> c_int {
    if address.is_null() || address.addr().checked_add(bytes).is_none() {
        return answer(Err(libc::EINVAL));
    }
    // SAFETY: as the caller promises.
    answer(unsafe { range::lock(address, bytes) })
}

/// See prefault.h.
#[unsafe(no_mangle)]
pub extern "C" fn prefault_unlock_range(address: *mut u8, bytes: usize) -> c_int {
    if address.is_null() || address.addr().checked_add(bytes).is_none() {
        return answer(Err(libc::EINVAL));
    }
    answer(range::unlock(address, bytes))
}

/// See prefault.h.
#[unsafe(no_mangle)]
pub extern "C" fn prefault_lock_stack(bytes: usize) -> c_int {
    answer(range::lock_stack(bytes))
}

/// See prefault.h.
///
/// # Safety
/// `counts` is NULL or points to a `struct prefault_counts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prefault_count(counts: *mut PrefaultCounts) -> c_int {
    // SAFETY: as the caller promises.
    let Some(counts) = (unsafe { counts.as_mut() }) else {
        return answer(Err(libc::EINVAL));
    };
    let (minor, major) = machine::faults();
    *counts = PrefaultCounts { minor, major };
    answer(Ok(()))
}

/// See prefault.h.
#[unsafe(no_mangle)]
pub extern "C" fn prefault_started() -> c_int {
    answer(preload::tell_verifier())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_that_malloc_would_not_keep_is_refused() {
        let options = PrefaultOptions {
            size: u32::try_from(size_of::<PrefaultOptions>()).unwrap(),
            flags: act::KEEP_MALLOC | act::ONFAULT,
            heap_bytes: 1,
            stack_bytes: 0,
        };
        // SAFETY: a live local.
        assert_eq!(unsafe { prefault_lock(&raw const options) }, -1);
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(errno, Some(libc::EINVAL));
    }
}
