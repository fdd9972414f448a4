// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel says about free memory and how it is got back: /proc/buddyinfo, zoneinfo, vmstat,
//! pressure/memory, and debugfs' extfrag indices (S4 "Data sources and control knobs").
//!
//! These are read ten times a second: files are kept open and read into buffers that are kept too
//! ([`KeptFile`]), and what is parsed goes into structures that are filled again. After the first
//! reading nothing is allocated.

mod buddyinfo;
mod extfrag;
mod kept;
mod pressure;
mod vmstat;
mod zone;
mod zoneinfo;

pub use buddyinfo::{BuddyInfo, FreeBlocks, MAX_ORDERS};
pub use extfrag::{Extfrag, ExtfragZone};
pub use kept::KeptFile;
pub use pressure::{Pressure, PressureLine};
pub use vmstat::{VmStat, VmStatReader};
pub use zone::ZoneKind;
pub use zoneinfo::{Marks, NodeStats, Zone, ZoneInfo};

/// More zones than any machine has (1,024 nodes of six zones): what claims to have more is no /proc.
const MAX_ZONES: usize = 6 * 1024;
