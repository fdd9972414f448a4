// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the stories' own BPF object against the kernel half's headers.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/floor.bpf.c";
const HEADERS: &str = "../crates/kernel/src/bpf/include";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    SkeletonBuilder::new()
        .source(SOURCE)
        .clang(&clang)
        .clang_args([
            "-O2",
            "-mcpu=v3",
            "-Wall",
            "-Werror",
            &format!("-I{HEADERS}"),
        ])
        .build_and_generate(out.join("floor.skel.rs"))
        .unwrap_or_else(|error| panic!("cannot build {SOURCE}: {error:#}"));
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed={HEADERS}");
    println!("cargo:rerun-if-env-changed=CLANG");
}
