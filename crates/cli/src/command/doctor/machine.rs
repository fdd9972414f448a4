// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bursar needs from the machine besides the kernel's abilities.

use std::path::Path;

use bursar_protocol::{Ask, Client, ClientError, Reply};
use rustix::fs::statfs;

use crate::caller::{Caller, Role};
use crate::view::abilities::{Ability, State};

/// Where the BPF file system belongs.
const BPFFS: &str = "/sys/fs/bpf";
/// BPF_FS_MAGIC, include/uapi/linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Root, bursard, bpffs.
pub(super) fn abilities(caller: &Caller) -> Vec<Ability> {
    vec![root(caller.role), daemon(caller), bpffs(Path::new(BPFFS))]
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
    }
}

fn daemon(caller: &Caller) -> Ability {
    let asked = Client::connect(&caller.socket)
        .and_then(|mut client| client.ask(Ask::Status { who: None }));
    let missing = |why: String| (State::Missing(why), None);
    let (state, version) = match asked {
        Ok(Reply::Status(status)) => (State::Available, Some(status.version)),
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
    Ability {
        ability: name,
        state,
        cost: "limits cannot be shown or changed, notices are not delivered, killed processes' memory \
               comes back only as fast as they exit; limits already set hold if the kernel half is \
               loaded"
            .into(),
        remedy: Some("systemctl start bursard".into()),
    }
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
