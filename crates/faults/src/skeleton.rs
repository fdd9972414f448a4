// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled object, as libbpf-cargo generated it from `bpf/faults.bpf.c`.

#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/faults.skel.rs"));
