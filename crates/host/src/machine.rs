// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What does not change while the machine runs: kernel, CPUs, pages.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use bursar_model::PageSize;

use crate::bytes::number;
use crate::{HostError, Malformed};

/// No kernel is built for more CPUs.
const MAX_CPUS: u32 = 65_536;

/// The kernel's release, `6.18.44`; for people, never for a decision.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// The size of a page.
pub fn page_size() -> PageSize {
    let size = u64::try_from(rustix::param::page_size())
        .ok()
        .and_then(PageSize::new);
    size.unwrap_or(const { PageSize::new(4096).unwrap() })
}

/// How many CPUs there can ever be, those that are off or not plugged in included: as many values has
/// each per-CPU counter. Under `sys`, usually `/sys`.
///
/// # Errors
/// When the file cannot be read or understood.
pub fn possible_cpus(sys: &Path) -> Result<u32, HostError> {
    let path = sys.join("devices/system/cpu/possible");
    let bytes = fs::read(&path).map_err(|error| HostError::from_io("read", &path, &error))?;
    count_cpus(&bytes).map_err(|malformed| malformed.at(&path))
}

/// The CPUs that are on. Under `sys`, usually `/sys`.
///
/// # Errors
/// When the file cannot be read or understood.
pub fn online_cpus(sys: &Path) -> Result<Vec<u32>, HostError> {
    let path = sys.join("devices/system/cpu/online");
    let bytes = fs::read(&path).map_err(|error| HostError::from_io("read", &path, &error))?;
    let ranges = cpu_ranges(&bytes).map_err(|malformed| malformed.at(&path))?;
    Ok(ranges.into_iter().flatten().collect())
}

/// How many CPUs are in a list like `0-3,8,10-11`.
pub(crate) fn count_cpus(list: &[u8]) -> Result<u32, Malformed> {
    let ranges = cpu_ranges(list)?.into_iter();
    Ok(ranges.fold(0, |count: u32, range| {
        let length = range.end().saturating_sub(*range.start());
        count.saturating_add(length.saturating_add(1))
    }))
}

/// The CPUs in a list like `0-3,8,10-11`.
fn cpu_ranges(list: &[u8]) -> Result<Vec<RangeInclusive<u32>>, Malformed> {
    let malformed = || Malformed::new("no list of CPUs");
    let mut found = Vec::new();
    for range in list.trim_ascii().split(|&byte| byte == b',') {
        let mut ends = range.splitn(2, |&byte| byte == b'-');
        let first: u32 = ends.next().and_then(number).ok_or_else(malformed)?;
        let last = ends
            .next()
            .map_or(Some(first), number)
            .ok_or_else(malformed)?;
        if first > last || last >= MAX_CPUS {
            return Err(malformed());
        }
        found.push(first..=last);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpus_are_counted_in_ranges() {
        let table: [(&[u8], Option<u32>); 9] = [
            (b"0-1\n", Some(2)),
            (b"0\n", Some(1)),
            (b"0-3,8,10-11\n", Some(7)),
            (b"0-65535\n", Some(65_536)),
            (b"0-65536\n", None),
            (b"3-1", None),
            (b"\n", None),
            (b"0-", None),
            (b"a", None),
        ];
        for (list, count) in table {
            assert_eq!(count_cpus(list).ok(), count, "{list:?}");
        }
    }

    #[test]
    fn this_machine_is_known() {
        assert!(possible_cpus(Path::new("/sys")).unwrap() >= 1);
        assert!(page_size().shift() >= 12);
        assert!(!kernel_release().is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = count_cpus(&bytes);
        }
    }
}
