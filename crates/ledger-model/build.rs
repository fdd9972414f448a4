// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the kernel half's own arithmetic for this machine.

fn main() {
    cc::Build::new()
        .file("src/rules_native.c")
        .include("../kernel/src/bpf/include")
        .warnings(true)
        .compile("rules_native");
    println!("cargo:rerun-if-changed=src/rules_native.c");
    println!("cargo:rerun-if-changed=../kernel/src/bpf/include/rules.h");
}
