// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sysctls that bursar may set: a closed list, each with the values that the kernel takes. Every
//! one is about how memory is reclaimed and can be put back as it was.

/// A sysctl that bursar may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sysctl {
    /// `vm.watermark_scale_factor`, ten-thousandths of a zone.
    WatermarkScaleFactor,
    /// `vm.watermark_boost_factor`, ten-thousandths of the high mark; 0 is off.
    WatermarkBoostFactor,
    /// `vm.min_free_kbytes`, KiB.
    MinFreeKbytes,
    /// `vm.compaction_proactiveness`, percent.
    CompactionProactiveness,
    /// `vm.swappiness`.
    Swappiness,
    /// `vm.vfs_cache_pressure`, percent.
    VfsCachePressure,
    /// `vm.dirty_ratio`, percent of available memory.
    DirtyRatio,
    /// `vm.dirty_background_ratio`, percent of available memory.
    DirtyBackgroundRatio,
    /// `vm.defrag_mode` (6.15).
    DefragMode,
    /// `vm.percpu_pagelist_high_fraction`; 0 is automatic.
    PercpuPagelistHighFraction,
    /// `fs.negative-dentry-limit`, thousandths of memory (Oracle's kernels).
    NegativeDentryLimit,
    /// `fs.dentry-negative` (6.18): 1 forgets a name when its file is removed.
    DentryNegative,
}

/// A sysctl that is set to 0 when another one is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counterpart {
    /// As sysctl(8) calls it.
    pub name: &'static str,
    /// Its file below /proc/sys.
    pub path: &'static str,
}

impl Counterpart {
    /// Why the other one is not written while this one has a value.
    pub fn obstacle(self, value: i64) -> String {
        let Self { name, .. } = self;
        format!("{name} is {value}, and the kernel would make that 0; keep one of the two")
    }
}

impl Sysctl {
    /// Every sysctl that bursar may set.
    pub const ALL: [Self; 12] = [
        Self::WatermarkScaleFactor,
        Self::WatermarkBoostFactor,
        Self::MinFreeKbytes,
        Self::CompactionProactiveness,
        Self::Swappiness,
        Self::VfsCachePressure,
        Self::DirtyRatio,
        Self::DirtyBackgroundRatio,
        Self::DefragMode,
        Self::PercpuPagelistHighFraction,
        Self::NegativeDentryLimit,
        Self::DentryNegative,
    ];

    /// As sysctl(8) calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WatermarkScaleFactor => "vm.watermark_scale_factor",
            Self::WatermarkBoostFactor => "vm.watermark_boost_factor",
            Self::MinFreeKbytes => "vm.min_free_kbytes",
            Self::CompactionProactiveness => "vm.compaction_proactiveness",
            Self::Swappiness => "vm.swappiness",
            Self::VfsCachePressure => "vm.vfs_cache_pressure",
            Self::DirtyRatio => "vm.dirty_ratio",
            Self::DirtyBackgroundRatio => "vm.dirty_background_ratio",
            Self::DefragMode => "vm.defrag_mode",
            Self::PercpuPagelistHighFraction => "vm.percpu_pagelist_high_fraction",
            Self::NegativeDentryLimit => "fs.negative-dentry-limit",
            Self::DentryNegative => "fs.dentry-negative",
        }
    }

    /// Its file below /proc/sys.
    pub const fn path(self) -> &'static str {
        match self {
            Self::WatermarkScaleFactor => "vm/watermark_scale_factor",
            Self::WatermarkBoostFactor => "vm/watermark_boost_factor",
            Self::MinFreeKbytes => "vm/min_free_kbytes",
            Self::CompactionProactiveness => "vm/compaction_proactiveness",
            Self::Swappiness => "vm/swappiness",
            Self::VfsCachePressure => "vm/vfs_cache_pressure",
            Self::DirtyRatio => "vm/dirty_ratio",
            Self::DirtyBackgroundRatio => "vm/dirty_background_ratio",
            Self::DefragMode => "vm/defrag_mode",
            Self::PercpuPagelistHighFraction => "vm/percpu_pagelist_high_fraction",
            Self::NegativeDentryLimit => "fs/negative-dentry-limit",
            Self::DentryNegative => "fs/dentry-negative",
        }
    }

    /// The sysctl that says the same in bytes. The kernel keeps one of the two (mm/page-writeback.c): the
    /// other reads 0, and who writes it sets this one to 0.
    pub const fn counterpart(self) -> Option<Counterpart> {
        match self {
            Self::DirtyRatio => Some(Counterpart {
                name: "vm.dirty_bytes",
                path: "vm/dirty_bytes",
            }),
            Self::DirtyBackgroundRatio => Some(Counterpart {
                name: "vm.dirty_background_bytes",
                path: "vm/dirty_background_bytes",
            }),
            _ => None,
        }
    }

    /// Whether it may be set to a value.
    pub fn takes(self, value: i64) -> bool {
        let (least, most) = self.bounds();
        let is_hole = self == Self::PercpuPagelistHighFraction && (1..8).contains(&value);
        (least..=most).contains(&value) && !is_hole
    }

    /// What it may be set to, in words.
    pub fn values(self) -> String {
        let (least, most) = self.bounds();
        match self {
            // MIN_PERCPU_PAGELIST_HIGH_FRACTION (mm/page_alloc.c)
            Self::PercpuPagelistHighFraction => {
                format!("0, or a whole number from 8 to {most}")
            }
            _ => format!("a whole number from {least} to {most}"),
        }
    }

    /// The least and the most it may be set to. `min_free_kbytes` above 4 GiB, or 0, has stopped
    /// machines; the kernel takes both.
    pub const fn bounds(self) -> (i64, i64) {
        match self {
            Self::WatermarkScaleFactor => (1, 3000),
            Self::WatermarkBoostFactor => (0, 100_000),
            Self::MinFreeKbytes => (128, 4 << 20),
            Self::CompactionProactiveness => (0, 100),
            // 0 is what is read while the counterpart is set; written, it throttles every writer.
            Self::DirtyRatio | Self::DirtyBackgroundRatio => (1, 100),
            Self::Swappiness => (0, 200),
            Self::VfsCachePressure => (1, 1000),
            Self::DefragMode | Self::DentryNegative => (0, 1),
            Self::PercpuPagelistHighFraction => (0, 65_536),
            Self::NegativeDentryLimit => (1, 100),
        }
    }

    /// The one with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_takes_is_taken() {
        use Sysctl::{DirtyBackgroundRatio, DirtyRatio, PercpuPagelistHighFraction, Swappiness};
        let table = [
            (Swappiness, -1, false),
            (Swappiness, 0, true),
            (Swappiness, 201, false),
            (PercpuPagelistHighFraction, 0, true),
            (PercpuPagelistHighFraction, 1, false),
            (PercpuPagelistHighFraction, 7, false),
            (PercpuPagelistHighFraction, 8, true),
            (DirtyRatio, 0, false),
            (DirtyRatio, 10, true),
            (DirtyBackgroundRatio, 0, false),
        ];
        for (sysctl, value, expected) in table {
            assert_eq!(sysctl.takes(value), expected, "{} {value}", sysctl.name());
        }
    }
}
