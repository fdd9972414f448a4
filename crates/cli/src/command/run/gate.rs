// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bursar run --gate`: refusals at the barrier where the kernel half has no gate (docs/explanation/gate.md
//! "Without a gate in the kernel").
//!
//! - [`ledger`] and [`tree`] observe: the account's standing, the command's processes
//! - [`headroom`] decides: who may grow by how much
//! - [`rlimit_gate`] does it, and is to the command's caller what the command would be

mod headroom;
mod ledger;
mod rlimit_gate;
mod tree;

use std::env;

use bursar_host::{DataLimit, Limited, data_limit};
use bursar_model::{Bytes, GateMode, Pid};

use crate::caller::Caller;
use crate::complaint::complain;
use crate::failure::Failure;
use crate::launch::Launch;
use ledger::Standing;
use rlimit_gate::RlimitGate;
use tree::Tree;

/// What is wanted of us here.
enum Need {
    /// Steering, from this standing.
    RlimitGate(Standing),
    /// Nothing: it is well as it is.
    Nothing(&'static str),
    /// It cannot be had.
    Missing(String),
}

/// Runs the command, steered where that is needed and possible. Comes back only when the command could
/// not be run.
///
/// A command that cannot be steered runs all the same, and stderr says why: a limit is no weaker than
/// without `--gate`, and a job that does not start helps nobody.
pub(super) fn run(launch: Launch, caller: &Caller) -> Failure {
    let own = match own_limit() {
        Ok(own) => own,
        Err(failure) => return failure,
    };
    match need(caller, &own) {
        Need::RlimitGate(standing) => match tree(&own) {
            Ok(Some(tree)) => {
                return match RlimitGate::new(tree, own, &caller.socket) {
                    Ok(gate) => gate.serve(&launch, standing),
                    Err(failure) => failure,
                };
            }
            Ok(None) => unsteered(
                "this kernel does not list a process's children (CONFIG_PROC_CHILDREN), so they \
                 cannot be followed",
            ),
            Err(failure) => return failure,
        },
        Need::Nothing(why) => {
            if env::var_os("BURSAR_VERBOSE").is_some() {
                complain(&format!("--gate: {why}; nothing more is needed"));
            }
        }
        Need::Missing(why) => unsteered(&why),
    }
    launch.exec()
}

fn unsteered(why: &str) {
    complain(&format!(
        "--gate: the command runs, but nothing will be refused before its limit: {why}"
    ));
}

fn need(caller: &Caller, own: &DataLimit) -> Need {
    if headroom::is_steered(own.soft.map(Bytes::get)) {
        return Need::Nothing("an outer `bursar run --gate` steers already");
    }
    match ledger::gate_mode(caller) {
        Ok(GateMode::Strict) => return Need::Nothing("the kernel's gate is strict here"),
        Ok(GateMode::BestEffort) => return Need::Nothing("the kernel's gate is at work here"),
        Ok(GateMode::None) => {}
        Err(failure) => return missing(failure),
    }
    match Standing::read(&caller.socket) {
        Ok(Some(standing)) => Need::RlimitGate(standing),
        Ok(None) => Need::Missing(
            "you have no limit, so there is no barrier (root sets one: bursar limit set)"
                .to_owned(),
        ),
        Err(failure) => missing(failure),
    }
}

fn missing(failure: Failure) -> Need {
    Need::Missing(match failure {
        Failure::Wrong(_, message) => message,
        Failure::Answered | Failure::Unread | Failure::Answer(_) => {
            "bursard did not answer".to_owned()
        }
    })
}

fn own_limit() -> Result<DataLimit, Failure> {
    match data_limit(Pid::new(std::process::id())) {
        Ok(Limited::Done(limit)) => Ok(limit),
        Ok(Limited::Gone | Limited::Denied) => Err(Failure::failed(
            "cannot read our own RLIMIT_DATA; is prlimit forbidden here? run the command without --gate",
        )),
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

fn tree(own: &DataLimit) -> Result<Option<Tree>, Failure> {
    let root = Pid::new(std::process::id());
    Tree::of(root, own.soft.map(Bytes::get)).map_err(|error| Failure::failed(error.to_string()))
}
