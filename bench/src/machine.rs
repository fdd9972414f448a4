// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the figures were measured on. They mean nothing without it.

use std::fs;
use std::path::Path;

use bursar_host::machine;
use serde::{Deserialize, Serialize};

use crate::load;

/// The machine's facts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) version: String,
    pub(crate) processor: String,
    pub(crate) hypervisor: String,
    pub(crate) cpus_online: u32,
    pub(crate) cpus_possible: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) swap_bytes: u64,
    pub(crate) page_bytes: u64,
    pub(crate) huge_pages: String,
    pub(crate) cgroups: String,
    pub(crate) bpf_jit: String,
    pub(crate) governor: String,
    pub(crate) load: String,
    pub(crate) processes: usize,
    /// Programs of others on the RSS event: "nothing loaded" has them too.
    pub(crate) foreign_programs: usize,
    pub(crate) began: String,
}

fn text(path: &str) -> String {
    fs::read_to_string(path)
        .map(|it| it.trim().to_owned())
        .unwrap_or_default()
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    })
}

fn kibibytes(text: &str, key: &str) -> u64 {
    field(text, key)
        .and_then(|it| it.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |it| it * 1024)
}

impl Machine {
    /// As it is now.
    pub(crate) fn observe() -> Self {
        let cpuinfo = text("/proc/cpuinfo");
        let meminfo = text("/proc/meminfo");
        let or_unknown = |it: String| {
            if it.is_empty() {
                "not told".to_owned()
            } else {
                it
            }
        };
        let is_guest = cpuinfo.split_whitespace().any(|it| it == "hypervisor");
        let product = text("/sys/class/dmi/id/product_name");
        Self {
            kernel: machine::kernel_release(),
            version: text("/proc/sys/kernel/version"),
            processor: field(&cpuinfo, "model name").unwrap_or_else(|| "not told".to_owned()),
            hypervisor: match (is_guest, product.is_empty()) {
                (false, _) => "none".to_owned(),
                (true, true) => "a virtual machine".to_owned(),
                (true, false) => format!("a virtual machine ({product})"),
            },
            cpus_online: std::thread::available_parallelism()
                .map_or(0, |it| u32::try_from(it.get()).unwrap_or(u32::MAX)),
            cpus_possible: machine::possible_cpus(Path::new("/sys")).unwrap_or(0),
            memory_bytes: kibibytes(&meminfo, "MemTotal"),
            swap_bytes: kibibytes(&meminfo, "SwapTotal"),
            page_bytes: 1 << machine::page_size().shift(),
            huge_pages: or_unknown(text("/sys/kernel/mm/transparent_hugepage/enabled")),
            cgroups: load::cgroup_version(),
            bpf_jit: or_unknown(text("/proc/sys/net/core/bpf_jit_enable")),
            governor: or_unknown(text(
                "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            )),
            load: text("/proc/loadavg")
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" "),
            processes: fs::read_dir("/proc").map_or(0, |entries| {
                entries
                    .filter_map(Result::ok)
                    .filter(|it| it.file_name().to_string_lossy().parse::<u32>().is_ok())
                    .count()
            }),
            foreign_programs: load::programs_on_rss_stat().len(),
            began: bursar_host::clock::rfc3339(std::time::SystemTime::now()),
        }
    }

    /// Name and value, for people.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        vec![
            ("kernel", format!("{} {}", self.kernel, self.version)),
            (
                "processor",
                format!(
                    "{}, {} online, {} possible",
                    self.processor, self.cpus_online, self.cpus_possible
                ),
            ),
            ("runs in", self.hypervisor.clone()),
            (
                "memory",
                format!(
                    "{}, swap {}, pages of {} bytes",
                    gib(self.memory_bytes),
                    gib(self.swap_bytes),
                    self.page_bytes
                ),
            ),
            ("transparent huge pages", self.huge_pages.clone()),
            ("memory cgroups", self.cgroups.clone()),
            ("bpf_jit_enable", self.bpf_jit.clone()),
            ("frequency governor", self.governor.clone()),
            (
                "load when it began",
                format!("{}; {} processes", self.load, self.processes),
            ),
            (
                "others' programs on kmem:rss_stat",
                self.foreign_programs.to_string(),
            ),
            ("began", self.began.clone()),
        ]
    }
}
