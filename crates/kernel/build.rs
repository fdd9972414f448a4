// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles each BPF object and generates its skeleton.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const OBJECTS: [&str; 11] = [
    "ledger", "tmpfs", "watch", "entered", "dirty", "gate", "blocks", "look", "bills", "probe",
    "stall",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let mut fingerprint = DefaultHasher::new();
    for object in OBJECTS {
        let skeleton = out.join(format!("{object}.skel.rs"));
        SkeletonBuilder::new()
            .source(format!("src/bpf/{object}.bpf.c"))
            .clang(&clang)
            .clang_args([
                "-O2",
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Werror",
            ])
            .build_and_generate(&skeleton)
            .unwrap_or_else(|error| panic!("cannot build src/bpf/{object}.bpf.c: {error:#}"));
        fs::read(&skeleton)
            .expect("it was just written")
            .hash(&mut fingerprint);
    }
    println!(
        "cargo:rustc-env=BURSAR_KERNEL_FINGERPRINT={:016x}",
        fingerprint.finish()
    );
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
}
