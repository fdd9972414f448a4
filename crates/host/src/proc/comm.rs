// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The name of a process (/proc/PID/comm).

use std::fmt;

use bursar_model::printable;

/// A command name: at most 64 bytes that a process chose for itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Comm(Vec<u8>);

impl Comm {
    /// These bytes as a name; more than 64, the most that any kernel shows, are cut off.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.get(..64).unwrap_or(bytes).to_vec())
    }

    /// The content of /proc/PID/comm: the name as it is, and one newline.
    pub(super) fn from_file(bytes: &[u8]) -> Self {
        Self::new(bytes.strip_suffix(b"\n").unwrap_or(bytes))
    }

    /// As the process chose it: anything but NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As one line of harmless text (the model's one door).
    pub fn to_printable(&self) -> String {
        printable(&self.0, 64)
    }
}

/// Harmless also in logs that show a whole struct.
impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm({})", self.to_printable())
    }
}
