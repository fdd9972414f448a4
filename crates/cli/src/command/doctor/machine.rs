// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursar needs from the machine besides the kernel's abilities.

use std::path::Path;

use bursar_model::{DaemonStatus, GateMode, GateStatus, ReapStatus, Resource};
use bursar_protocol::{Client, ClientError, Operation, Reply};
use rustix::fs::statfs;

use crate::caller::{Caller, Role};
use crate::view::abilities::{Ability, State};

/// Where the BPF file system belongs.
const BPFFS: &str = "/sys/fs/bpf";
/// BPF_FS_MAGIC, include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Root, bursard, bpffs.
pub(super) fn abilities(caller: &Caller) -> Vec<Ability> {
    let (daemon, status) = daemon(caller);
    let mut abilities = vec![root(caller.role), daemon, bpffs(Path::new(BPFFS))];
    // The gate as bursard found it: only its own self-test can tell.
    let attached = status.as_ref().filter(|it| it.kernel_half.attached);
    abilities.extend(attached.map(|it| gate(&it.kernel_half.gate)));
    abilities.extend(attached.and_then(|it| gate_for_files(&it.kernel_half.gate)));
    abilities.extend(status.map(|status| margin(&status)));
    abilities
}

fn root(role: Role) -> Ability {
    let state = match role {
        Role::Root => State::Available,
        Role::User => State::Refused("you are not root".into()),
    };
    Ability {
        ability: "root".into(),
        state,
        cost: "what only an attempt can tell is shown as refused or missing below".into(),
        remedy: Some("sudo bursar doctor".into()),
        ledger: None,
    }
}

fn daemon(caller: &Caller) -> (Ability, Option<Box<DaemonStatus>>) {
    let asked = Client::connect(&caller.socket)
        .and_then(|mut client| client.ask(Operation::Status { who: None }));
    let missing = |why: String| (State::Missing(why), None);
    let mut known = None;
    let (state, version) = match asked {
        Ok(Reply::Status(status)) => {
            let version = status.version.clone();
            known = Some(status);
            (State::Available, Some(version))
        }
        Ok(Reply::Refused(refusal)) => (State::Refused(refusal.message), None),
        Ok(_) => missing("it answered another question than was asked".into()),
        // The socket's permissions keep us out; whoever listens may be well.
        Err(ClientError::Unreachable { path, source })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            (
                State::Refused(format!("connecting to {path:?}: {source}")),
                None,
            )
        }
        Err(ClientError::Unreachable { path, source }) => {
            missing(format!("connecting to {path:?}: {source}"))
        }
        Err(error) => missing(error.to_string()),
    };
    let name = match version {
        Some(version) if version == env!("CARGO_PKG_VERSION") => {
            format!("bursard {version}")
        }
        Some(version) => {
            format!(
                "bursard {version} (this is bursar {})",
                env!("CARGO_PKG_VERSION")
            )
        }
        None => "bursard".into(),
    };
    let ability = Ability {
        ability: name,
        state,
        cost: "limits cannot be shown or changed, notices are not delivered, killed processes' memory \
               comes back only as fast as they exit; limits already set hold if the kernel half is \
               loaded"
            .into(),
        remedy: Some("systemctl start bursard".into()),
        ledger: None,
    };
    (ability, known)
}

/// S2: "a margin of free memory has to be maintained … the size of this margin depends on the minimum
/// reclaim rate". The victim: the largest limit there is, or what was ever held. Meanwhile every CPU
/// takes memory as fast as page faults go.
fn margin(status: &DaemonStatus) -> Ability {
    let rows = status
        .accounts
        .iter()
        .filter_map(|it| it.resources.get(&Resource::Memory));
    let victim =
        ReapStatus::largest_victim(rows.map(|row| (row.limit, row.maxheld)), status.ram_bytes);
    let cpus = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
    let growth = ReapStatus::fastest_growth(cpus);
    let reaps = &status.reaps;
    let (state, ability) = match (reaps.margin(victim, growth), reaps.slowest_bytes_per_second) {
        (Some(margin), Some(rate)) => {
            let free = bursar_host::Proc::host().and_then(|it| it.meminfo());
            let ability = format!(
                "free memory for the time of a reap: {margin} (a victim of {victim} at the slowest rate \
                 seen, {rate}/s, while {cpus} CPUs fault in {growth}/s)"
            );
            let state = match free {
                Ok(info) if info.available < margin => State::Missing(format!(
                    "only {} is available at the moment",
                    info.available
                )),
                _ => State::Available,
            };
            (state, ability)
        }
        _ => (
            State::Unknown(
                "nothing of 16 MiB or more has been reaped since bursard started, so the slowest rate is not \
                 known yet"
                    .into(),
            ),
            "free memory for the time of a reap".into(),
        ),
    };
    Ability {
        ability,
        state,
        cost: "when less is free others may stall while a killed process's memory comes back"
            .into(),
        remedy: Some(
            "lower the largest limit, or have it kept free: watermarks.keep_reap_margin = true and mode = \"act\" \
             in bursar.toml"
                .into(),
        ),
        ledger: None,
    }
}

fn gate(status: &GateStatus) -> Ability {
    let why = || status.reason.clone().unwrap_or_default();
    let (name, state) = match status.mode {
        GateMode::Strict => ("gate: strict", State::Available),
        GateMode::BestEffort => ("gate: best effort", State::Refused(why())),
        GateMode::None => ("gate: none", State::Missing(why())),
    };
    let cost = match status.mode {
        GateMode::Strict => "",
        GateMode::BestEffort => {
            "a request may pass the barrier where another one was preempted in the middle of its own"
        }
        GateMode::None => {
            "nothing is refused at the barrier: the notice is followed by the limit, and a kill; \
             `bursar run --gate -- CMD` refuses for one command and all it starts"
        }
    };
    Ability {
        ability: name.into(),
        state,
        cost: cost.into(),
        remedy: Some(
            "a kernel that lets root attach LSM programs, with bpf in lsm= on its command line"
                .into(),
        ),
        ledger: None,
    }
}

fn gate_for_files(status: &GateStatus) -> Option<Ability> {
    let state = match (status.mode, &status.files) {
        (GateMode::None, _) => return None, // said already
        (_, None) => State::Available,
        (_, Some(why)) => State::Refused(why.clone()),
    };
    Some(Ability {
        ability: "gate for files in tmpfs".into(),
        state,
        cost: "writers are not refused at the barrier: their files count once written".into(),
        remedy: Some("a kernel with BTF that lets root attach fentry and fmod_ret programs".into()),
        ledger: None,
    })
}

fn bpffs(path: &Path) -> Ability {
    let state = match statfs(path) {
        Ok(found) if is_bpffs(&found) => State::Available,
        Ok(_) => State::Missing(format!("{} is something else", path.display())),
        Err(error) => State::Missing(format!("{}: {error}", path.display())),
    };
    Ability {
        ability: format!("BPF file system on {BPFFS}"),
        state,
        cost: "the kernel half cannot be pinned: limits end when bursard does".into(),
        remedy: Some(format!("mount -t bpf bpf {BPFFS}")),
        ledger: None,
    }
}

/// The type of f_type differs between architectures; its low 32 bits are the magic on all.
fn is_bpffs(found: &rustix::fs::StatFs) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_sign_loss,
        reason = "i64 here, u32 elsewhere"
    )]
    let magic = found.f_type as u64 & 0xffff_ffff;
    magic == BPF_FS_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_bpffs_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(bpffs(folder.path()).state, State::Missing(_)));
        assert!(matches!(
            bpffs(&folder.path().join("none")).state,
            State::Missing(_)
        ));
    }
}
