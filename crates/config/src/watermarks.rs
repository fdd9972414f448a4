// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of the table `[watermarks]`.

use crate::{Sysctl, SysctlRule};

/// How watermarks are watched and moved (S4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watermarks {
    /// Whether anything is done. Default: [`WatermarkMode::Observe`].
    pub mode: WatermarkMode,
    /// Who decides. Default: [`WatermarkModel::Bursar`].
    pub model: WatermarkModel,
    /// The largest `vm.watermark_scale_factor`, ten-thousandths of a zone, 1 to 3,000. Default: 1,000.
    pub max_scale: u32,
    /// Whether nodes are compacted when large blocks run out. Default: true.
    pub compact: bool,
    /// Whether memory is reclaimed ahead of demand. Default: true.
    pub reclaim: bool,
    /// Whether memory is kept free for the time of the slowest reap (S2). Default: false.
    pub keep_reap_margin: bool,
    /// Whether stalls are timed by BPF programs. Default: true.
    pub stall_time: bool,
    /// What is set once, when acting begins. Default: nothing.
    pub sysctls: Vec<(Sysctl, i64)>,
    /// What is set while a condition holds; the first that does counts. Default: nothing.
    pub sysctls_while: Vec<SysctlRule>,
    /// The most memory that names of files that are not there may take, thousandths of memory that is
    /// not huge pages, 0 to 100; 0 is no cap. Default: 0.
    pub negative_dentries_permille: u32,
}

/// Whether watermarks are moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WatermarkMode {
    /// Nothing is read and nothing written.
    Off,
    /// All is read and said, nothing written.
    #[default]
    Observe,
    /// What is decided is done.
    Act,
}

/// Who decides about watermarks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WatermarkModel {
    /// bursar's own model: demand, supply and a safety stock.
    #[default]
    Bursar,
    /// S4's rule: a line of least squares through free memory.
    Trend,
    /// A feedback loop of ten lines.
    Loop,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self {
            mode: WatermarkMode::default(),
            model: WatermarkModel::default(),
            max_scale: 1000,
            compact: true,
            reclaim: true,
            keep_reap_margin: false,
            stall_time: true,
            sysctls: Vec::new(),
            sysctls_while: Vec::new(),
            negative_dentries_permille: 0,
        }
    }
}
