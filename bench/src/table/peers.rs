// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Killers that are Debian packages: what each can do about one user at a limit, and whether it could
//! be set on the bench's own processes here.
//!
//! What they do is as their sources say (the versions in `read`); none was run here.
//! Whether one is installed, and whether this machine has what it needs, is looked up.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::load;

/// The whole table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peers {
    pub(crate) rows: Vec<Peer>,
}

/// A peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) package: String,
    /// Which version was read.
    pub(crate) read: String,
    /// Where its program is on this machine.
    pub(crate) installed: Option<PathBuf>,
    /// What it looks at.
    pub(crate) watches: String,
    /// What it kills.
    pub(crate) kills: String,
    /// What it can do about one user at a limit.
    pub(crate) one_user: String,
    /// Why it was not run here against the bench's processes.
    pub(crate) cannot: String,
}

struct Known {
    package: &'static str,
    read: &'static str,
    programs: &'static [&'static str],
    watches: &'static str,
    kills: &'static str,
    one_user: &'static str,
    /// Why it must not be set loose here, wherever it runs.
    cannot: &'static str,
    needs_v2: bool,
}

const KNOWN: [Known; 4] = [
    Known {
        package: "earlyoom",
        read: "1.9.0",
        programs: &["/usr/bin/earlyoom"],
        watches: "MemAvailable and SwapFree of the whole machine, 1 to 10 times a second",
        kills: "the process of highest oom_score on the machine; --prefer, --avoid and --ignore go by \
                command name",
        one_user: "nothing: it knows no users; a user may fill the machine up to its threshold, and \
                   another user's process may die for it",
        cannot: "its trigger is the whole machine's free memory and its victim anybody's process; \
                 making it act means running this machine out of memory",
        needs_v2: false,
    },
    Known {
        package: "nohang",
        read: "0.3.0",
        programs: &["/usr/sbin/nohang", "/usr/bin/nohang"],
        watches: "MemAvailable, SwapFree, PSI and zram of the whole machine",
        kills: "the process of highest badness on the machine, which rules may raise or lower by name, \
                command line, cgroup or uid",
        one_user: "it can prefer one user's processes as victims once the whole machine is short; there \
                   is no amount that a user may hold",
        cannot: "as earlyoom: its trigger is the whole machine's, and a rule by uid raises badness but \
                 excludes nobody else",
        needs_v2: false,
    },
    Known {
        package: "systemd-oomd",
        read: "252 to 259",
        programs: &["/lib/systemd/systemd-oomd", "/usr/lib/systemd/systemd-oomd"],
        watches: "swap used by the machine, PSI memory of cgroups that set ManagedOOMMemoryPressure=",
        kills: "a whole cgroup: every process of a session or service",
        one_user: "kill a cgroup below user-UID.slice when its pressure stays high; the amount itself is \
                   MemoryMax= of the slice, which is the contender `cgroup` here",
        cannot: "it learns which cgroups to watch from a systemd that is pid 1, and acts on pressure \
                 and swap, not at an amount",
        needs_v2: true,
    },
    Known {
        package: "oomd",
        read: "0.5.0",
        programs: &["/usr/bin/oomd", "/usr/sbin/oomd"],
        watches: "what its rules name: memory_above or PSI of cgroups, at least a second apart",
        kills: "a whole cgroup below the named ones: all its processes",
        one_user: "a rule memory_above on a user's slice, looked at once a second: a 1,000 ms poll that \
                   kills a session instead of a process",
        cannot: "it looks once a second at best and kills a whole cgroup, so that held − limit at the \
                 kill of a process is not defined for it; the poll contenders bound it from below",
        needs_v2: true,
    },
];

pub(crate) fn observe() -> Peers {
    let version = load::cgroup_version();
    let rows = KNOWN.iter().map(|peer| {
        let installed = peer.programs.iter().map(Path::new).find(|it| it.exists());
        let mut cannot = peer.cannot.to_owned();
        if peer.needs_v2 && !version.starts_with("v2") {
            cannot = format!(
                "it needs a memory controller in cgroup v2 (here: {version}); also {cannot}"
            );
        }
        if installed.is_none() {
            cannot = format!("not installed; and if it were: {cannot}");
        }
        Peer {
            package: peer.package.to_owned(),
            read: peer.read.to_owned(),
            installed: installed.map(Path::to_path_buf),
            watches: peer.watches.to_owned(),
            kills: peer.kills.to_owned(),
            one_user: peer.one_user.to_owned(),
            cannot,
        }
    });
    Peers {
        rows: rows.collect(),
    }
}
