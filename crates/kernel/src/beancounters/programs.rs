// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of beancounters: loaded, attached and pinned as rows need them, and taken away.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bursar_model::namespace_bytes;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, ProgramMut, ProgramType};

use super::row::{Enforcement, Object, ROWS, Row};
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::{beancounters, network_buffers, tcp_buffers};
use crate::{Error, Options, call, root_cgroup};

/// What all rows of an object need: maps, programs that are run by us, and walks.
struct Core {
    maps: &'static [&'static str],
    calls: &'static [&'static str],
    walks: &'static [&'static str],
}

const ROWS_CORE: Core = Core {
    maps: &[
        "bills",
        "charges",
        "further_charges",
        "known_slots",
        "terminals",
        "locked_files",
        "bill_facts",
    ],
    calls: &[
        "set_bill",
        "forget_bill",
        "recount_bill",
        "note_kernel_memory",
    ],
    walks: &["meet_tasks", "meet_locks", "meet_files"],
};
const BUFFERS_CORE: Core = Core {
    maps: &["socket_buffers", "recorded_sockets"],
    calls: &["forget_buffers", "recount_buffers"],
    walks: &["meet_buffers"],
};

const TCP_CORE: Core = Core {
    maps: &["tcp_buffers", "recorded_tcp"],
    calls: &["forget_tcp", "recount_tcp"],
    walks: &["meet_tcp"],
};

const fn core_of(object: Object) -> &'static Core {
    match object {
        Object::Rows => &ROWS_CORE,
        Object::Buffers => &BUFFERS_CORE,
        Object::Tcp => &TCP_CORE,
    }
}

const WHAT: &str = "beancounters (LSM programs)";
/// What one walk may take; bursard waits for it.
const WALK_TIMEOUT: Duration = Duration::from_secs(1);
/// Of so many objects one may be a file that is locked.
const OBJECTS_A_LOCKED_FILE: u32 = 8;
/// Of so many one may be a pseudo terminal.
const OBJECTS_A_TERMINAL: u32 = 16;
/// Objects that share a group of charges; it has room for one more.
const OBJECTS_A_GROUP: u32 = 2;
/// Of so many objects one may find no room in its group: of randomly spread ones one in nine does not.
const OBJECTS_A_FURTHER_ONE: u32 = 4;

/// Those of one kernel half.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) pins: Pins,
    pub(super) options: Options,
}

fn link(program: &str) -> String {
    format!("link_{program}")
}

/// Loads programs that record sockets. The maps of [`Object::Rows`] are there.
macro_rules! load_sockets {
    ($self:ident, $names:ident, $object:expr, $builder:path, $name:literal,
     { $sockets:ident: $sockets_pin:literal, $recorded:ident: $recorded_pin:literal }) => {{
        let mut storage = MaybeUninit::uninit();
        let mut open = <$builder>::default()
            .open(&mut storage)
            .map_err(Error::unsupported(WHAT))?;
        set_knobs!(open, $name, $self.options, {});
        open.maps
            .$sockets
            .set_max_entries($self.options.max_objects)
            .map_err(Error::io("size a map"))?;
        share_pinned!(open, $self.pins, {
            accounts: "accounts",
            payers: "payers",
            events: "events",
            state_map: "state",
            logins: "logins",
            members: "members",
            subordinates: "subordinates",
            exempt_cgroups: "exempt_cgroups",
            bills: "bills",
            bill_facts: "bill_facts",
            known_slots: "known_slots",
        });
        if $self.has_core($object) {
            share_pinned!(open, $self.pins, { $sockets: $sockets_pin, $recorded: $recorded_pin });
        }
        $self.put_up($object, open, $names)
    }};
}

/// Where its kind says; programs of control groups at the root one, so that all sockets' events reach them, whatever
/// network namespace they are in.
fn attach(program: &ProgramMut<'_>) -> Result<Link, Error> {
    let attached = match program.prog_type() {
        ProgramType::SockOps | ProgramType::CgroupSockopt => {
            let root = root_cgroup::open()?;
            program.attach_cgroup(root.as_raw_fd())
        }
        _ => program.attach(),
    };
    attached.map_err(Error::unsupported(WHAT))
}

impl Programs {
    /// Whether what all rows of an object need is there.
    pub(super) fn has_core(&self, object: Object) -> bool {
        // What is pinned last.
        core_of(object)
            .walks
            .last()
            .is_some_and(|it| self.is_up(it))
    }

    pub(super) fn provide_core(&self, object: Object) -> Result<(), Error> {
        if self.has_core(object) {
            return Ok(());
        }
        // Half of it, left by a crash.
        let Core { maps, calls, walks } = core_of(object);
        self.pins.unlink(maps.iter().chain(*calls));
        self.pins.unlink(walks.iter().map(|it| link(it)));
        let names: Vec<&str> = calls.iter().chain(*walks).copied().collect();
        self.load(object, &names)
    }

    /// Has the walks of an object meet everything there is, each by itself.
    pub(super) fn walk(&self, object: Object) -> Result<(), Error> {
        let meet = |walk: &&str| {
            let link = self.pins.link(&link(walk))?;
            call::walk(&link, "charge what is there already", WALK_TIMEOUT)
        };
        let ends: Vec<_> = core_of(object).walks.iter().map(meet).collect();
        ends.into_iter().collect()
    }

    /// The best that this kernel allows for a row; `needed` grows by its programs.
    pub(super) fn provide(&self, row: &Row, needed: &mut BTreeSet<&'static str>) -> Enforcement {
        if let Err(error) = self.provide_core(row.object) {
            return Enforcement::None(error.to_string());
        }
        let mut reasons = Vec::new();
        // What a bursard before us has put up is as good as what we would.
        let mut sets = row.sets.iter();
        let up = sets.find(|(names, _)| names.iter().all(|name| self.is_up(name)));
        for (names, enforcement) in up.into_iter().chain(row.sets) {
            let missing = self.missing(names);
            match self.load(row.object, &missing) {
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

    /// Has these of [`Object::Rows`] up for as long as `act` lasts.
    pub(super) fn with<T>(
        &self,
        names: &[&'static str],
        act: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let missing = self.missing(names);
        let done = self.load(Object::Rows, &missing).and_then(|()| act());
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

    /// Loads these programs of one object, attaches and pins them; with those of its core come its maps.
    fn load(&self, object: Object, names: &[&str]) -> Result<(), Error> {
        match object {
            _ if names.is_empty() => Ok(()),
            Object::Rows => self.load_rows(names),
            Object::Buffers => self.load_buffers(names),
            Object::Tcp => self.load_tcp(names),
        }
    }

    fn load_rows(&self, names: &[&str]) -> Result<(), Error> {
        let mut storage = MaybeUninit::uninit();
        let mut open = beancounters::BeancountersSkelBuilder::default()
            .open(&mut storage)
            .map_err(Error::unsupported(WHAT))?;
        let objects = self.options.max_objects;
        let groups = objects / OBJECTS_A_GROUP;
        set_knobs!(open, "beancounters", self.options, {
            namespace_bytes: namespace_bytes(self.options.possible_cpus),
            charge_groups: groups,
        });
        for (map, entries) in [
            (&mut open.maps.bills, self.options.max_accounts),
            (&mut open.maps.charges, groups),
            (
                &mut open.maps.further_charges,
                objects / OBJECTS_A_FURTHER_ONE,
            ),
            (&mut open.maps.terminals, objects / OBJECTS_A_TERMINAL),
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
        if self.has_core(Object::Rows) {
            share_pinned!(open, self.pins, {
                bills: "bills",
                charges: "charges",
                further_charges: "further_charges",
                known_slots: "known_slots",
                terminals: "terminals",
                locked_files: "locked_files",
                bill_facts: "bill_facts",
            });
        }
        self.put_up(Object::Rows, open, names)
    }

    fn load_buffers(&self, names: &[&str]) -> Result<(), Error> {
        load_sockets!(
            self,
            names,
            Object::Buffers,
            network_buffers::NetworkBuffersSkelBuilder,
            "network_buffers",
            { socket_buffers: "socket_buffers", recorded_sockets: "recorded_sockets" }
        )
    }

    fn load_tcp(&self, names: &[&str]) -> Result<(), Error> {
        load_sockets!(
            self,
            names,
            Object::Tcp,
            tcp_buffers::TcpBuffersSkelBuilder,
            "tcp_buffers",
            { tcp_buffers: "tcp_buffers", recorded_tcp: "recorded_tcp" }
        )
    }

    fn put_up<'obj, S: OpenSkel<'obj>>(
        &self,
        object: Object,
        mut open: S,
        names: &[&str],
    ) -> Result<(), Error>
    where
        S::Output: Skel<'obj>,
    {
        let unsupported = Error::unsupported(WHAT);
        let pinning = || Error::io("pin a beancounter");
        let has_maps = self.has_core(object);
        for mut program in open.open_object_mut().progs_mut() {
            let is_one = program
                .name()
                .to_str()
                .is_some_and(|it| names.contains(&it));
            program.set_autoload(is_one);
        }
        let mut loaded = open.load().map_err(unsupported)?;
        let maps: &[&str] = if has_maps { &[] } else { core_of(object).maps };
        for name in maps {
            let mut all = loaded.object_mut().maps_mut();
            let Some(mut map) = all.find(|it| it.name().to_str() == Some(name)) else {
                continue;
            };
            map.pin(self.pins.path(name)).map_err(pinning())?;
        }
        // In the order of the names.
        for name in names {
            let mut programs = loaded.object_mut().progs_mut();
            let Some(mut program) = programs.find(|it| it.name().to_str() == Some(name)) else {
                continue;
            };
            if core_of(object).calls.contains(name) {
                program.pin(self.pins.path(name)).map_err(pinning())?;
            } else {
                let mut attached = attach(&program)?;
                attached
                    .pin(self.pins.path(&link(name)))
                    .map_err(pinning())?;
            }
        }
        Ok(())
    }
}
