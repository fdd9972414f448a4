// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the BPF object and generates its skeleton.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    // The same object wherever the sources lie.
    let no_place = format!("-ffile-prefix-map={manifest}=.");
    SkeletonBuilder::new()
        .source("src/bpf/faults.bpf.c")
        .clang(&clang)
        .clang_args([
            "-O2",
            "-mcpu=v3",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Werror",
            // The kernel half's vmlinux.h; what it lacks is in types.bpf.h.
            "-I../kernel/src/bpf/include",
            &no_place,
        ])
        .build_and_generate(out.join("faults.skel.rs"))
        .unwrap_or_else(|error| panic!("cannot build src/bpf/faults.bpf.c: {error:#}"));
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=../kernel/src/bpf/include");
    println!("cargo:rerun-if-env-changed=CLANG");
}
