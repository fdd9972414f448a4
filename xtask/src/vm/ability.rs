// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest kernel was built with, as far as bursar's stories and measurements need it. Pure.

use serde::{Deserialize, Serialize};

use super::module::ModuleIndex;

/// One thing a kernel has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// A short name.
    pub name: String,
    /// Whether it is there.
    pub present: bool,
    /// Whether guests are of no use without it.
    pub required: bool,
}

/// Reads a kernel's `config` and module lists.
pub(super) fn abilities(config: &str, modules: &ModuleIndex) -> Vec<Ability> {
    let value = |key: &str| {
        config
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .unwrap_or("n")
    };
    let yes = |key: &str| value(key) == "y";
    // Not the same as absent: before 6.11 nobody was asked, and cgroup v1 memory was there.
    let is_off = |key: &str| {
        config
            .lines()
            .any(|line| line == format!("# {key} is not set"))
    };
    let bpf_is_listed = value("CONFIG_LSM")
        .trim_matches('"')
        .split(',')
        .any(|name| name == "bpf");
    let module = |name: &str, key: &str| yes(key) || modules.has(name);
    let required = [
        ("BTF", yes("CONFIG_DEBUG_INFO_BTF")),
        (
            "bpf in the LSM list",
            yes("CONFIG_BPF_LSM") && bpf_is_listed,
        ),
        ("memory cgroup", yes("CONFIG_MEMCG")),
        ("PSI", yes("CONFIG_PSI")),
        ("tmpfs", yes("CONFIG_TMPFS")),
        ("null_blk", module("null_blk", "CONFIG_BLK_DEV_NULL_BLK")),
        ("configfs", module("configfs", "CONFIG_CONFIGFS_FS")),
        ("virtio_pci", module("virtio_pci", "CONFIG_VIRTIO_PCI")),
        (
            "virtio_console",
            module("virtio_console", "CONFIG_VIRTIO_CONSOLE"),
        ),
        ("serial console", yes("CONFIG_SERIAL_8250_CONSOLE")),
    ];
    let useful = [
        (
            "BPF trampolines",
            yes("CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"),
        ),
        ("kprobes", yes("CONFIG_KPROBES")),
        ("module BTF", yes("CONFIG_DEBUG_INFO_BTF_MODULES")),
        ("multi-gen LRU", yes("CONFIG_LRU_GEN")),
        ("zram", module("zram", "CONFIG_ZRAM")),
        ("swap", yes("CONFIG_SWAP")),
        ("NUMA", yes("CONFIG_NUMA")),
        ("DAMON reclaim", yes("CONFIG_DAMON_RECLAIM")),
        (
            "cgroup v1 memory",
            yes("CONFIG_MEMCG") && !is_off("CONFIG_MEMCG_V1"),
        ),
        ("real-time group scheduling", yes("CONFIG_RT_GROUP_SCHED")),
    ];
    let ability = |required: bool| {
        move |(name, present): (&str, bool)| Ability {
            name: name.to_owned(),
            present,
            required,
        }
    };
    required
        .into_iter()
        .map(ability(true))
        .chain(useful.into_iter().map(ability(false)))
        .collect()
}

/// The names of what is missing, among the required or among the useful ones.
pub(super) fn missing(abilities: &[Ability], required: bool) -> Vec<&str> {
    abilities
        .iter()
        .filter(|ability| ability.required == required && !ability.present)
        .map(|ability| ability.name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
CONFIG_BPF_LSM=y
CONFIG_LSM=\"landlock,lockdown,yama,apparmor,bpf\"
CONFIG_DEBUG_INFO_BTF=y
CONFIG_DEBUG_INFO_BTF_MODULES=y
CONFIG_MEMCG=y
# CONFIG_MEMCG_V1 is not set
CONFIG_PSI=y
CONFIG_TMPFS=y
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_CONSOLE=m
CONFIG_SERIAL_8250_CONSOLE=y
";

    fn modules() -> ModuleIndex {
        ModuleIndex::parse(
            "a/null_blk.ko.xz: b/configfs.ko.xz\nb/configfs.ko.xz:\nc/virtio_console.ko:\n",
            "",
        )
    }

    #[test]
    fn a_debian_kernel_has_what_guests_need() {
        let abilities = abilities(CONFIG, &modules());
        assert_eq!(missing(&abilities, true), Vec::<&str>::new());
        assert!(missing(&abilities, false).contains(&"cgroup v1 memory"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let config = CONFIG
            .replace(",bpf", ",bpfilter")
            .replace("CONFIG_DEBUG_INFO_BTF=y\n", "");
        let abilities = abilities(&config, &ModuleIndex::default());
        assert_eq!(
            missing(&abilities, true),
            [
                "BTF",
                "bpf in the LSM list",
                "null_blk",
                "configfs",
                "virtio_console"
            ]
        );
    }
}
