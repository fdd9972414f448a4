// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The library stays once it is loaded: blocks, fork handlers and ending threads refer to it. Its own
//! `rust_eh_personality` goes before the standard library's (src/lib.rs).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtmalloc.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--allow-multiple-definition");
}
