// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the programs are told while a watch goes on.

use bursar_pod::{Pod, bytes_of};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::Error;
use crate::skeleton::types::switches;

/// The programs' switches, and how they stand.
#[derive(Debug)]
pub(crate) struct Switches {
    map: MapHandle,
    now: switches,
}

impl Switches {
    /// All off, as the programs are loaded.
    pub(crate) fn new(map: MapHandle) -> Self {
        Self {
            map,
            now: switches::default(),
        }
    }

    /// Begins another window; no fault is timed in it yet.
    pub(crate) fn next_window(&mut self) -> Result<(), Error> {
        self.now.window = self.now.window.wrapping_add(1);
        self.set_timing(false)
    }

    /// Faults that begin from now on are timed and booked where they end, or booked where they begin.
    pub(crate) fn set_timing(&mut self, is_timing: bool) -> Result<(), Error> {
        self.now.is_timing = u32::from(is_timing);
        self.write()
    }

    /// Whether nobody sees where faults begin.
    pub(crate) const fn is_away(&self) -> bool {
        self.now.is_away != 0
    }

    /// From now on nobody does, or somebody again.
    pub(crate) fn set_away(&mut self, is_away: bool) -> Result<(), Error> {
        let was = self.now;
        self.now.is_away = u32::from(is_away);
        self.write().inspect_err(|_| self.now = was)
    }

    /// Faults that are timed are recorded whole from now on.
    pub(crate) fn record(&mut self) -> Result<(), Error> {
        self.now.is_recording = 1;
        self.write()
    }

    fn write(&self) -> Result<(), Error> {
        self.map
            .update(&0u32.to_ne_bytes(), bytes_of(&self.now), MapFlags::ANY)
            .map_err(|error| Error::io("switch the programs")(std::io::Error::other(error)))
    }
}

// SAFETY: integers, see faults.h.
unsafe impl Pod for switches {}
