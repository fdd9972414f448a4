// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel modules of a guest: which are there, and in which order they go in. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

/// What `modules.dep` and `modules.builtin` say.
#[derive(Clone, Debug, Default)]
pub struct ModuleIndex {
    /// By name: the file, and the files it needs.
    loadable: BTreeMap<String, (String, Vec<String>)>,
    builtin: BTreeSet<String>,
}

impl ModuleIndex {
    /// Reads the two lists.
    pub fn parse(dep: &str, builtin: &str) -> ModuleIndex {
        let mut index = ModuleIndex::default();
        for line in dep.lines() {
            let Some((file, needs)) = line.split_once(':') else {
                continue;
            };
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            index
                .loadable
                .insert(module_name(file), (file.to_owned(), needs));
        }
        index.builtin.extend(builtin.lines().map(module_name));
        index
    }

    /// Whether the kernel can have this module, as a file or built in.
    pub fn has(&self, module: &str) -> bool {
        let name = module_name(module);
        self.builtin.contains(&name) || self.loadable.contains_key(&name)
    }

    /// The files to insert for these modules, each after what it needs, each once, relative to
    /// the modules directory. What is built in needs none.
    pub fn load_order(&self, modules: &[&str]) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for module in modules {
            if !self.has(module) {
                bail!("this kernel has no module {module:?}");
            }
            self.visit(&module_name(module), &mut order, &mut Vec::new())?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, order: &mut Vec<String>, path: &mut Vec<String>) -> Result<()> {
        let Some((file, needs)) = self.loadable.get(name) else {
            return Ok(()); // built in
        };
        if order.contains(file) {
            return Ok(());
        }
        if path.iter().any(|above| above == name) {
            bail!(
                "modules need each other in a circle: {} {name}",
                path.join(" ")
            );
        }
        path.push(name.to_owned());
        for need in needs {
            self.visit(&module_name(need), order, path)?;
        }
        path.pop();
        order.push(file.clone());
        Ok(())
    }
}

/// `kernel/drivers/block/null_blk/null-blk.ko.xz` → `null_blk`. The kernel takes - and _ for one.
pub(super) fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/block/null_blk/null_blk.ko.xz: kernel/fs/configfs/configfs.ko.xz
kernel/fs/configfs/configfs.ko.xz:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_legacy_dev.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_pci_legacy_dev.ko:
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
";

    fn index() -> ModuleIndex {
        ModuleIndex::parse(
            DEP,
            "kernel/drivers/char/virtio_console.ko\nkernel/fs/ext4/ext4.ko\n",
        )
    }

    #[test]
    fn a_module_goes_in_after_what_it_needs() {
        let order = index().load_order(&["null-blk"]).unwrap();
        assert_eq!(
            order,
            [
                "kernel/fs/configfs/configfs.ko.xz",
                "kernel/drivers/block/null_blk/null_blk.ko.xz"
            ]
        );
    }

    #[test]
    fn needs_of_needs_come_first_and_nothing_comes_twice() {
        let order = index()
            .load_order(&["virtio_pci", "virtio_console", "virtio"])
            .unwrap();
        let names: Vec<_> = order.iter().map(|file| module_name(file)).collect();
        assert_eq!(
            names,
            [
                "virtio_pci_legacy_dev",
                "virtio_ring",
                "virtio",
                "virtio_pci"
            ]
        );
    }

    #[test]
    fn a_built_in_module_is_there_without_a_file() {
        assert!(index().has("ext4"));
        assert!(index().load_order(&["ext4"]).unwrap().is_empty());
    }

    #[test]
    fn an_unknown_module_is_refused_by_name() {
        let error = index().load_order(&["nonesuch"]).unwrap_err().to_string();
        assert_eq!(error, "this kernel has no module \"nonesuch\"");
    }

    #[test]
    fn a_circle_is_refused_rather_than_followed() {
        let index = ModuleIndex::parse("a.ko: b.ko\nb.ko: a.ko\n", "");
        assert!(
            index
                .load_order(&["a"])
                .unwrap_err()
                .to_string()
                .contains("circle")
        );
    }
}
