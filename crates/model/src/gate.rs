// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: what is compared with the barrier, what is refused, how far it can be relied on (S5 2.2).

use serde::{Deserialize, Serialize};

/// What the gate compares with the barrier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// What is held, and reserved: programs that reserve much and touch little are left alone; what was
    /// granted and is touched later can still pass the limit.
    #[default]
    Resident,
    /// What could be held if all private writable memory were touched (S5's privvmpages): what was
    /// granted never passes the limit.
    Committed,
}

/// What a program asked for when it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// mmap(2).
    Mmap,
    /// brk(2).
    Brk,
    /// mremap(2).
    Mremap,
    /// mprotect(2): private memory made writable.
    Mprotect,
    /// fork(2), clone(2) without CLONE_VM.
    Fork,
    /// execve(2).
    Exec,
    /// S1 section 5.2's transaction_reserve.
    Reserve,
    /// write(2), fallocate(2) and their kin, to a file in tmpfs.
    File,
    /// memfd_secret(2): nobody could count it.
    Secret,
}

impl Request {
    /// As it is written in events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mmap => "mmap",
            Self::Brk => "brk",
            Self::Mremap => "mremap",
            Self::Mprotect => "mprotect",
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::Reserve => "reserve",
            Self::File => "file",
            Self::Secret => "secret",
        }
    }
}

/// How far the gate can be relied on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateMode {
    /// No request passes the barrier unseen.
    Strict,
    /// A request may slip through where another one was preempted in the middle of its own.
    BestEffort,
    /// Nothing is refused: the notice is followed by the limit.
    #[default]
    None,
}

/// The gate, as `bursar status --json` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateStatus {
    /// How far it can be relied on.
    pub mode: GateMode,
    /// Why it is no better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why files in tmpfs may grow past the barrier all the same. Absent where they may not, and without
    /// a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
}
