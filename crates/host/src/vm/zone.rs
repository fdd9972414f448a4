// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which zone of a node (include/linux/mmzone.h).

use std::fmt;

use crate::Malformed;
use crate::bytes::{number, words};

/// Which zone of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneKind {
    /// The first 16 MiB of x86, for old devices.
    Dma,
    /// Below 4 GiB.
    Dma32,
    /// What most allocations come from.
    Normal,
    /// Memory of 32-bit kernels that is not mapped.
    HighMem,
    /// Only what can be moved.
    Movable,
    /// Memory that a device brings; never given out by the page allocator.
    Device,
    /// A name that is newer than we are.
    Other,
}

impl ZoneKind {
    fn of_name(name: &[u8]) -> Self {
        match name {
            b"DMA" => Self::Dma,
            b"DMA32" => Self::Dma32,
            b"Normal" => Self::Normal,
            b"HighMem" => Self::HighMem,
            b"Movable" => Self::Movable,
            b"Device" => Self::Device,
            _ => Self::Other,
        }
    }

    /// As the kernel writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::HighMem => "HighMem",
            Self::Movable => "Movable",
            Self::Device => "Device",
            Self::Other => "another zone",
        }
    }
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Node, zone, and the rest of the line.
type Header<'a> = (u16, ZoneKind, &'a [u8]);

/// The lines of a file in which each line is a zone.
pub(super) fn zone_lines(text: &[u8]) -> impl Iterator<Item = Result<Header<'_>, Malformed>> {
    text.split(|&byte| byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .map(|line| header(line)?.ok_or_else(|| Malformed::new("a line does not begin with Node")))
}

/// The beginning `Node 0, zone   Normal` of a line, and what comes after it; `None` when the line does
/// not begin with `Node`.
pub(super) fn header(line: &[u8]) -> Result<Option<Header<'_>>, Malformed> {
    let Some(rest) = line.strip_prefix(b"Node ") else {
        return Ok(None);
    };
    let malformed = || Malformed::new("a line begins with \"Node\" and names no node and zone");
    let comma = rest
        .iter()
        .position(|&byte| byte == b',')
        .ok_or_else(malformed)?;
    let (node, rest) = rest.split_at(comma);
    let node = number::<u16>(node).ok_or_else(malformed)?;
    let rest = rest.get(1..).unwrap_or_default().trim_ascii_start();
    let rest = rest.strip_prefix(b"zone").ok_or_else(malformed)?;
    let name = words(rest).next().ok_or_else(malformed)?;
    let after = rest
        .trim_ascii_start()
        .get(name.len()..)
        .unwrap_or_default();
    Ok(Some((node, ZoneKind::of_name(name), after)))
}
