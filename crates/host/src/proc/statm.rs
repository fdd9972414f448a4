// SPDX-License-Identifier: Apache-2.0 OR MIT
//! /proc/PID/statm (proc_pid_statm(5)): how much a process has in memory and may write to. The kernel
//! reads counters for this and takes no lock of the process's.

use bursar_model::Pages;

use crate::Malformed;
use crate::bytes::number;

/// Amounts of memory, from counters that may be behind by a batch for each CPU (before 6.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statm {
    /// Pages of its address space.
    pub size: Pages,
    /// Resident anonymous pages.
    pub anonymous: Pages,
    /// Private pages that it may write to, resident or not, its stacks included.
    pub data: Pages,
}

impl Statm {
    /// Reads the content of the file.
    ///
    /// # Errors
    /// When it has no six numbers.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        // size resident shared text lib data dt
        let mut fields = bytes.trim_ascii().split(|&byte| byte == b' ');
        let mut at = |index: usize| {
            let field = fields.nth(index).and_then(number::<u64>);
            field.ok_or_else(|| Malformed::new("statm has no six numbers"))
        };
        let (size, resident, shared, data) = (at(0)?, at(0)?, at(0)?, at(2)?);
        Ok(Self {
            size: Pages::new(size),
            anonymous: Pages::new(resident.saturating_sub(shared)),
            data: Pages::new(data),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_from_their_places() {
        let statm = Statm::parse(b"4096 700 300 12 0 1500 0\n").unwrap();
        assert_eq!((statm.anonymous.get(), statm.data.get()), (400, 1500));
        assert_eq!(statm.size.get(), 4096);
        for text in [&b""[..], b"1 2 3 4 5", b"1 2 x 4 5 6 7", b"1 2 3 4 5 -6 7"] {
            assert!(Statm::parse(text).is_err(), "{text:?}");
        }
    }
}
