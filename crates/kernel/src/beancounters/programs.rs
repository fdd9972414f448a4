// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of beancounters: loaded, attached and pinned as rows need them, and taken away.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::Duration;

use bursar_model::namespace_bytes;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use super::row::{Enforcement, ROWS, Row};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::beancounters;
use crate::{Error, Options, call};

/// What all rows need: maps, programs that are run by us, and walks.
const MAPS: [&str; 4] = ["bills", "charges", "locked_files", "bill_facts"];
const CALLS: [&str; 4] = [
    "set_bill",
    "forget_bill",
    "recount_bill",
    "note_kernel_memory",
];
const WALKS: [&str; 3] = ["meet_tasks", "meet_locks", "meet_files"];

/// What one walk may take; bursard waits for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of so many objects one may be a file that is locked.
const OBJECTS_A_LOCKED_FILE: u32 = 8;

/// Those of one kernel half.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) pins: Pins,
    pub(super) options: Options,
}

fn link(program: &str) -> String {
    format!("link_{program}")
}

impl Programs {
    /// Whether what all rows need is there.
    pub(super) fn has_core(&self) -> bool {
        // What is pinned last.
        self.is_up("meet_files")
    }

    pub(super) fn provide_core(&self) -> Result<(), Error> {
        if self.has_core() {
            return Ok(());
        }
        // Half of it, left by a crash.
        self.pins.unlink(MAPS.iter().chain(&CALLS));
        self.pins.unlink(WALKS.map(link));
        let names: Vec<&str> = CALLS.into_iter().chain(WALKS).collect();
        self.load(&names)
    }

    /// Has the walks meet everything there is, each by itself.
    pub(super) fn walk(&self) -> Result<(), Error> {
        let meet = |walk: &str| {
            let link = self.pins.link(&link(walk))?;
            call::walk(&link, "charge what is there already", PATIENCE)
        };
        let ends: Vec<_> = WALKS.into_iter().map(meet).collect();
        ends.into_iter().collect()
    }

    /// The best that this kernel allows for a row; `needed` grows by its programs.
    pub(super) fn provide(&self, row: &Row, needed: &mut BTreeSet<&'static str>) -> Enforcement {
        let mut reasons = Vec::new();
        // What a bursard before us has put up is as good as what we would.
        let mut sets = row.sets.iter();
        let up = sets.find(|(names, _)| names.iter().all(|name| self.is_up(name)));
        for (names, enforcement) in up.into_iter().chain(row.sets) {
            let missing = self.missing(names);
            match self.load(&missing) {
                Ok(()) => {
                    needed.extend(*names);
                    return enforcement.clone();
                }
                Err(error) => {
                    self.pins.unlink(missing.into_iter().map(link));
                    reasons.push(error.to_string());
                }
            }
        }
        reasons.dedup();
        Enforcement::None(reasons.join("; "))
    }

    pub(super) fn detach_all_but(&self, needed: &BTreeSet<&'static str>) {
        let all = ROWS.iter().flat_map(|row| row.sets);
        let all = all.flat_map(|(names, _)| names.iter().copied());
        // What makes charges goes first: the lists have it last.
        let unneeded: Vec<&str> = all.filter(|name| !needed.contains(name)).collect();
        self.pins.unlink(unneeded.into_iter().rev().map(link));
    }

    /// Has these up for as long as `act` lasts.
    pub(super) fn with<T>(
        &self,
        names: &[&'static str],
        act: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let missing = self.missing(names);
        let done = self.load(&missing).and_then(|()| act());
        self.pins.unlink(missing.into_iter().rev().map(link));
        done
    }

    fn is_up(&self, name: &str) -> bool {
        self.pins.has_all([link(name)])
    }

    fn missing(&self, names: &[&'static str]) -> Vec<&'static str> {
        let missing = names.iter().copied();
        missing.filter(|name| !self.is_up(name)).collect()
    }

    /// Loads these programs, attaches and pins them; with those of the core come the maps.
    fn load(&self, names: &[&str]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let unsupported = Error::unsupported("beancounters (LSM programs)");
        let pinning = || Error::io("pin a beancounter");
        let has_maps = self.has_core();
        let mut storage = MaybeUninit::uninit();
        let mut open = beancounters::BeancountersSkelBuilder::default()
            .open(&mut storage)
            .map_err(unsupported)?;
        set_knobs!(open, "beancounters", self.options, {
            namespace_bytes: namespace_bytes(self.options.possible_cpus),
        });
        let objects = self.options.max_objects;
        for (map, entries) in [
            (&mut open.maps.bills, self.options.max_accounts),
            (&mut open.maps.charges, objects),
            (&mut open.maps.locked_files, objects / OBJECTS_A_LOCKED_FILE),
        ] {
            map.set_max_entries(entries)
                .map_err(Error::io("size a map"))?;
        }
        share_pinned!(open, self.pins, {
            accounts: "accounts",
            payers: "payers",
            mms: "mms",
            events: "events",
            state_map: "state",
            cpu_offsets: "cpu_offsets",
            logins: "logins",
            members: "members",
            subordinates: "subordinates",
            exempt_cgroups: "exempt_cgroups",
        });
        if has_maps {
            share_pinned!(open, self.pins, {
                bills: "bills",
                charges: "charges",
                locked_files: "locked_files",
                bill_facts: "bill_facts",
            });
        }
        for mut program in open.open_object_mut().progs_mut() {
            let is_one = program
                .name()
                .to_str()
                .is_some_and(|it| names.contains(&it));
            program.set_autoload(is_one);
        }
        let mut loaded = open.load().map_err(unsupported)?;
        if !has_maps {
            let maps = &mut loaded.maps;
            for (map, name) in [
                (&mut maps.bills, "bills"),
                (&mut maps.charges, "charges"),
                (&mut maps.locked_files, "locked_files"),
                (&mut maps.bill_facts, "bill_facts"),
            ] {
                map.pin(self.pins.path(name)).map_err(pinning())?;
            }
        }
        // In the order of the names.
        for name in names {
            let mut programs = loaded.object_mut().progs_mut();
            let Some(mut program) = programs.find(|it| it.name().to_str() == Some(name)) else {
                continue;
            };
            if CALLS.contains(name) {
                program.pin(self.pins.path(name)).map_err(pinning())?;
            } else {
                let mut attached = program.attach().map_err(unsupported)?;
                attached
                    .pin(self.pins.path(&link(name)))
                    .map_err(pinning())?;
            }
        }
        Ok(())
    }
}
