// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles the bench's own BPF objects against the kernel half's headers.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const HEADERS: &str = "../crates/kernel/src/bpf";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    for object in ["trivial", "empty", "observer", "gate_cost"] {
        SkeletonBuilder::new()
            .source(format!("src/bpf/{object}.bpf.c"))
            .clang(&clang)
            .clang_args([
                "-O2",
                "-mcpu=v3",
                "-Wall",
                "-Werror",
                "-I../crates/kernel/src/bpf",
                "-I../crates/kernel/src/bpf/include",
                "-I../crates/kernel/src/bpf/lib",
            ])
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .unwrap_or_else(|error| panic!("cannot build src/bpf/{object}.bpf.c: {error:#}"));
    }
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed={HEADERS}");
    println!("cargo:rerun-if-env-changed=CLANG");
}
