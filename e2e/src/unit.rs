// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the unit that is shipped leaves a bursard, as far as that takes no systemd: its capabilities, no new ones, and
//! whether its runtime directory survives it. Not its mount namespace, its devices and its system calls.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

const SHIPPED: &str = include_str!("../../dist/bursard.service");

/// What the unit says about it.
#[derive(Debug, Clone, Copy)]
struct Unit {
    bounding_set: CapabilitySet,
    no_new_privileges: bool,
    keeps_runtime: bool,
}

/// Makes the program start as systemd would start it. For the last thing before the start: it takes away what
/// else may be done between fork and exec.
///
/// # Errors
/// When the unit says something that is not understood here.
pub(crate) fn confine(command: &mut Command) -> Result<()> {
    let unit = Unit::parse(SHIPPED)?;
    // SAFETY: system calls only, before exec.
    unsafe { command.pre_exec(move || unit.confine_us()) };
    Ok(())
}

/// What systemd does once the unit's process has ended, however it ended: the runtime directory goes, unless the unit
/// keeps it.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn tidy_up(runtime: &Path) -> Result<()> {
    if Unit::parse(SHIPPED)?.keeps_runtime {
        return Ok(());
    }
    fs::remove_dir_all(runtime).with_context(|| format!("remove {runtime:?}"))
}

impl Unit {
    fn parse(text: &str) -> Result<Self> {
        let values = |key: &str| -> Vec<&str> {
            text.lines()
                .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                .collect()
        };
        let sets = values("CapabilityBoundingSet");
        ensure!(!sets.is_empty(), "the unit has no CapabilityBoundingSet=");
        let mut bounding_set = CapabilitySet::empty();
        for name in sets.iter().flat_map(|set| set.split_whitespace()) {
            bounding_set |= name
                .strip_prefix("CAP_")
                .and_then(CapabilitySet::from_name)
                .with_context(|| format!("the unit names a capability {name:?}"))?;
        }
        Ok(Self {
            bounding_set,
            no_new_privileges: values("NoNewPrivileges").contains(&"yes"),
            keeps_runtime: values("RuntimeDirectoryPreserve").contains(&"yes"),
        })
    }

    fn confine_us(self) -> io::Result<()> {
        for (_, one) in CapabilitySet::all().iter_names() {
            // An error: this kernel does not know it.
            let is_there = capability_is_in_bounding_set(one).unwrap_or(false);
            if is_there && !self.bounding_set.contains(one) {
                remove_capability_from_bounding_set(one)?;
            }
        }
        let mut own = capabilities(None)?;
        own.inheritable &= self.bounding_set;
        set_capabilities(None, own)?;
        if self.no_new_privileges {
            set_no_new_privs(true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounding_set_given_twice_is_both_together() {
        let text =
            "[Service]\nCapabilityBoundingSet=CAP_BPF CAP_KILL\nCapabilityBoundingSet=CAP_SETUID\n";
        let unit = Unit::parse(text).unwrap();
        let expected = CapabilitySet::BPF | CapabilitySet::KILL | CapabilitySet::SETUID;
        assert_eq!(unit.bounding_set, expected);
        assert!(!unit.no_new_privileges && !unit.keeps_runtime);
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in [
            "",
            "CapabilityBoundingSet=~CAP_KILL\n",
            "CapabilityBoundingSet=CAP_KIL\n",
        ] {
            assert!(Unit::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_unit_that_is_shipped_is_understood() {
        let unit = Unit::parse(SHIPPED).unwrap();
        assert!(unit.no_new_privileges && !unit.bounding_set.contains(CapabilitySet::SYS_ADMIN));
        // The daemon's oom_score.rs has its record there.
        assert!(unit.keeps_runtime);
    }
}
