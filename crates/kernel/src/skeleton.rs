// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled objects, as libbpf-cargo generated them from `bpf/*/*.bpf.c`.

#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
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

object!(ledger);
object!(tmpfs_count);
object!(copy_on_write);
object!(membership);
object!(dirty);
object!(gate);
object!(tmpfs_gate);
object!(resource_iterator);
object!(beancounters);
object!(network_buffers);
object!(tcp_buffers);
object!(probe);
object!(timer_probe);
object!(stall);
object!(selftest_ledger);
object!(selftest_decisions);
object!(selftest_rows);

/// Differs when any object differs: pins of another build are not ours. From build.rs.
pub(crate) const FINGERPRINT: &str = env!("BURSAR_KERNEL_FINGERPRINT");
