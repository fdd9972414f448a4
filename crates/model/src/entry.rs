// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an entry of the limits says, and who changed it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{BoundsSpec, KillManner, Mode, Pid, Reason, Resource, RowBounds, Uid, Until, Who};

/// What an entry says, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntrySpec {
    /// The bounds on memory; absent: it says nothing of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<BoundsSpec>,
    /// The bounds of beancounters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<Resource, RowBounds>,
    /// Whether it is enforced; absent: as bursar.toml has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Whether its largest process is asked to end when it is over its notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<KillManner>,
    /// Of a shared account: who may enter it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granted: Option<Vec<Who>>,
    /// Why, in the administrator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// It holds until then, over the entry without an end; absent: until it is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
}

/// Who changed a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Actor {
    /// A process that asked for it over the control socket.
    Request {
        /// Its user, as the kernel says.
        uid: Uid,
        /// Its number, as the kernel says.
        pid: Pid,
        /// Who logged in to begin it, as the kernel says (loginuid); absent where nobody did, or the kernel
        /// does not keep it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        login_uid: Option<Uid>,
        /// Who it says to act for (SUDO_USER); nobody vouches for that. Made printable.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said_by: Option<String>,
    },
    /// The clock: a temporary entry has come to its end, or the clock was set.
    Clock {
        /// Where that entry stands, made printable.
        file: String,
    },
    /// Files of limits that were read again, or read at a start.
    Reload {
        /// The one that changed, made printable.
        file: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_an_object_that_says_what_it_is() {
        let request = Actor::Request {
            uid: Uid::new(0),
            pid: Pid::new(7),
            login_uid: Some(Uid::new(1000)),
            said_by: Some("alice".into()),
        };
        let reload = Actor::Reload {
            file: "/etc/bursar/limits.toml".into(),
        };
        for (actor, json) in [
            (
                request,
                r#"{"by":"request","uid":0,"pid":7,"login_uid":1000,"said_by":"alice"}"#,
            ),
            (
                reload,
                r#"{"by":"reload","file":"/etc/bursar/limits.toml"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&actor).unwrap(), json);
            assert_eq!(serde_json::from_str::<Actor>(json).unwrap(), actor);
        }
    }
}
