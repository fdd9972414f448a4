// SPDX-License-Identifier: Apache-2.0 OR MIT
//! S1's run_oom_killer (section 4.1): the kernel half looks whether accounts are over their limits, chooses and kills.

use std::os::fd::AsFd;

use libbpf_rs::ProgramHandle;

use crate::abi::{self, run_killer_args, trigger};
use crate::{Error, Slot, call};

/// Runs the killer. One thread uses it: the program keeps its notes in one place.
#[derive(Debug)]
pub struct OomKiller(pub(crate) ProgramHandle);

impl OomKiller {
    /// Decides for every account that is over its limit; `slot`'s processes are read anew in any case. Returns how many
    /// victims were chosen.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn run(&self, slot: Slot) -> Result<u32, Error> {
        let mut args = run_killer_args {
            trigger: trigger::TRIGGER_KILLER.0,
            slot: slot.0,
            ..run_killer_args::default()
        };
        call::run(
            self.0.as_fd(),
            "run the killer",
            abi::bytes_of_mut(&mut args),
        )?;
        Ok(args.decisions)
    }
}
