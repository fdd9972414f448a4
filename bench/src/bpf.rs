// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench's own BPF objects, as libbpf-cargo generated them from `bpf/*.bpf.c`.

#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    dead_code,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]

macro_rules! object {
    ($name:ident) => {
        pub(crate) mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".skel.rs"));
        }
    };
}

object!(trivial);
object!(empty);
object!(observer);
object!(gate_cost);
