// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What namespaces take of the kernel's memory.

/// One of a kind: its own, and so much more for each processor that there may be.
struct Cost {
    bytes: u64,
    per_cpu: u64,
}

/// Measured (docs/design/measured-beancounters.md). In the order of the kernel's `enum ucount_type`: user, pid, uts,
/// ipc, net, mnt, cgroup, time.
const COSTS: [Cost; 8] = [
    Cost::plain(4_000),
    Cost::plain(4_000),
    Cost::plain(500),
    Cost::plain(8_000),
    Cost {
        bytes: 208_000,
        per_cpu: 3_200,
    },
    Cost::plain(400),
    Cost::plain(300),
    Cost::plain(4_500),
];

impl Cost {
    const fn plain(bytes: u64) -> Self {
        Self { bytes, per_cpu: 0 }
    }
}

/// Bytes of kernel memory for one namespace of each kind, in the order of the kernel's `enum ucount_type`. What its
/// owner puts into it is not in it (mounts, devices, rules).
pub fn namespace_bytes(possible_cpus: u32) -> [u64; 8] {
    COSTS.map(|cost| cost.bytes + cost.per_cpu * u64::from(possible_cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_namespace_is_most_of_all_and_more_with_each_processor() {
        let few = namespace_bytes(2);
        let many = namespace_bytes(64);
        assert_eq!(few.iter().max(), few.get(4));
        assert_eq!(many[4] - few[4], 62 * 3_200);
        assert_eq!(many[0], few[0]);
    }
}
