// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library as it was built.

#![cfg(not(debug_assertions))]

use std::path::PathBuf;

/// Beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.ancestors().nth(2).unwrap();
    folder.join("libtmalloc.so")
}

/// Each program that is started with it would load both: 290 KB, and half of the time that the library takes. A
/// debug build checks its arithmetic, so it can panic.
#[test]
fn nothing_in_it_can_panic_so_that_libgcc_is_not_loaded() {
    let library = library();
    let bytes = std::fs::read(&library).unwrap();
    let has = |name: &[u8]| bytes.windows(name.len()).any(|part| part == name);
    assert!(has(b"libc.so.6"), "{} is no library", library.display());
    assert!(!has(b"libgcc_s.so"), "{} needs libgcc", library.display());
}
