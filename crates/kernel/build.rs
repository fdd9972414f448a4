// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compiles each BPF object and generates its skeleton.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

/// Each is one object, `FOLDER/NAME.bpf.c`.
const OBJECTS: [(&str, &str); 14] = [
    ("ledger", "ledger"),
    ("ledger", "copy_on_write"),
    ("ledger", "membership"),
    ("ledger", "timer_probe"),
    ("tmpfs", "tmpfs_count"),
    ("tmpfs", "tmpfs_gate"),
    ("gate", "gate"),
    ("gate", "probe"),
    ("beancounters", "beancounters"),
    ("beancounters", "network_buffers"),
    ("beancounters", "tcp_buffers"),
    ("beancounters", "resource_iterator"),
    ("pagecache", "dirty"),
    ("stall", "stall"),
];

/// Units of their logic, for tests: no kernel half differs by them.
const UNITS: [(&str, &str); 3] = [
    ("selftest", "selftest_ledger"),
    ("selftest", "selftest_decisions"),
    ("selftest", "selftest_rows"),
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let manifest = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    // The same objects wherever the sources lie: another place is no other kernel half.
    let no_place = format!("-ffile-prefix-map={manifest}=.");
    let mut fingerprint = DefaultHasher::new();
    for (folder, object) in OBJECTS.into_iter().chain(UNITS) {
        let skeleton = out.join(format!("{object}.skel.rs"));
        SkeletonBuilder::new()
            .source(format!("src/bpf/{folder}/{object}.bpf.c"))
            .clang(&clang)
            .clang_args([
                "-O2",
                "-mcpu=v3",
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Werror",
                "-Isrc/bpf",
                "-Isrc/bpf/include",
                "-Isrc/bpf/lib",
                &no_place,
            ])
            .build_and_generate(&skeleton)
            .unwrap_or_else(|error| {
                panic!("cannot build src/bpf/{folder}/{object}.bpf.c: {error:#}")
            });
        if !UNITS.contains(&(folder, object)) {
            fs::read(&skeleton)
                .expect("it was just written")
                .hash(&mut fingerprint);
        }
    }
    println!(
        "cargo:rustc-env=BURSAR_KERNEL_FINGERPRINT={:016x}",
        fingerprint.finish()
    );
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
}
