// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate: loaded beside the ledger, tried with a real child (selftest.rs), kept if it refuses.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use bursar_model::GateMode;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::accounts::AccountTable;
use crate::load::{set_knobs, share_pinned};
use crate::pins::Pins;
use crate::skeleton::gate;
use crate::{Error, Options, selftest, tmpfs_gate};

/// What the gate of a kernel half does, found by trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// How far it can be relied on.
    pub mode: GateMode,
    /// Why it is no better.
    pub reason: Option<String>,
    /// Why files in tmpfs may grow past the barrier all the same. Absent where they may not, and without
    /// a gate.
    pub files: Option<String>,
}

/// Which programs it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    /// LSM programs: never skipped.
    Strict,
    /// fmod_ret programs: skipped where one was preempted.
    BestEffort,
}

/// What the self-test's child asks for.
const TEST_BYTES: usize = 64 << 20;

impl Flavour {
    const fn mode(self) -> GateMode {
        match self {
            Self::Strict => GateMode::Strict,
            Self::BestEffort => GateMode::BestEffort,
        }
    }

    /// What is said where it does not work.
    const fn refuses_nothing(self) -> &'static str {
        match self {
            Self::Strict => selftest::NOT_CALLED,
            Self::BestEffort => "fmod_ret programs attach and refuse nothing",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Strict => "the gate (LSM programs)",
            Self::BestEffort => "the gate (fmod_ret programs)",
        }
    }

    /// The pins of its links.
    const fn pins(self) -> &'static [&'static str] {
        match self {
            Self::Strict => &[
                "link_gate_growth",
                "link_gate_writable",
                "link_gate_fork",
                "link_gate_exec",
                "link_gate_secret_memory",
                "link_gate_prctl",
                "link_gate_task_free",
                "link_gate_child",
                "link_gate_image",
            ],
            Self::BestEffort => &[
                "link_try_growth",
                "link_try_writable",
                "link_try_fork",
                "link_try_prctl",
                "link_try_task_free",
                "link_gate_child",
                "link_gate_image",
            ],
        }
    }

    fn is_pinned(self, pins: &Pins) -> bool {
        pins.has_all(self.pins())
    }

    fn unpin(self, pins: &Pins) {
        pins.unlink(self.pins());
    }
}

impl Gate {
    /// Puts up the best gate this kernel allows in front of the accounts of the kernel half in `pins`,
    /// or finds the one that is there. Never an error: without a gate everything else goes on.
    pub(crate) fn put_up(pins: &Pins, options: &Options, accounts: &AccountTable) -> Self {
        let (mode, reasons) = if options.gate {
            put_up_best(pins, options, accounts)
        } else {
            // One may be there since before it was switched off.
            Flavour::Strict.unpin(pins);
            Flavour::BestEffort.unpin(pins);
            let reason = "switched off (gate.mode in bursar.toml)".to_owned();
            (GateMode::None, vec![reason])
        };
        let files = if mode == GateMode::None {
            tmpfs_gate::take_down(pins);
            None
        } else {
            tmpfs_gate::put_up(pins, options, accounts)
        };
        Self {
            mode,
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
            files,
        }
    }
}

/// The best gate for memory, and why it is no better.
fn put_up_best(pins: &Pins, options: &Options, accounts: &AccountTable) -> (GateMode, Vec<String>) {
    let mut reasons = Vec::new();
    for flavour in [Flavour::Strict, Flavour::BestEffort] {
        if !flavour.is_pinned(pins) {
            flavour.unpin(pins); // half of one, left by a crash
            if let Err(error) = load(flavour, pins, options) {
                flavour.unpin(pins);
                reasons.push(error.to_string());
                continue;
            }
        }
        match selftest::is_refused_at_barrier(accounts, run_mapping_selftest) {
            Ok(true) => return (flavour.mode(), reasons),
            Ok(false) => {
                flavour.unpin(pins);
                reasons.push(flavour.refuses_nothing().to_owned());
            }
            Err(error) => {
                // It may well work; nobody can promise it.
                reasons.push(format!("the gate could not be tried: {error}"));
                return (GateMode::BestEffort, reasons);
            }
        }
    }
    (GateMode::None, reasons)
}

fn load(flavour: Flavour, pins: &Pins, options: &Options) -> Result<(), Error> {
    let unsupported = Error::unsupported(flavour.name());
    let mut storage = MaybeUninit::uninit();
    let mut open = gate::GateSkelBuilder::default()
        .open(&mut storage)
        .map_err(unsupported)?;
    set_knobs!(open, "gate", options, {});
    open.maps
        .births
        .set_max_entries(options.max_processes)
        .map_err(Error::io("size a map"))?;
    share_pinned!(open, pins, {
        accounts: "accounts",
        payers: "payers",
        mm_index: "mm_index",
        mms: "mms",
        events: "events",
        state_map: "state",
        cpu_offsets: "cpu_offsets",
        logins: "logins",
        members: "members",
        subordinates: "subordinates",
        exempt_cgroups: "exempt_cgroups"
    });
    let strict = flavour == Flavour::Strict;
    {
        let progs = &mut open.progs;
        for program in [
            &mut progs.gate_growth,
            &mut progs.gate_writable,
            &mut progs.gate_fork,
            &mut progs.gate_exec,
            &mut progs.gate_secret_memory,
            &mut progs.gate_prctl,
            &mut progs.gate_task_free,
        ] {
            program.set_autoload(strict);
        }
        for program in [
            &mut progs.try_growth,
            &mut progs.try_writable,
            &mut progs.try_fork,
            &mut progs.try_prctl,
            &mut progs.try_task_free,
        ] {
            program.set_autoload(!strict);
        }
    }
    let skeleton = open.load().map_err(unsupported)?;
    macro_rules! attach {
        ($($program:ident => $pin:literal),* $(,)?) => {$(
            let mut link = skeleton.progs.$program.attach().map_err(unsupported)?;
            link.pin(pins.path($pin)).map_err(Error::io("pin the gate"))?;
        )*};
    }
    // What ends a charge before what makes one.
    attach!(gate_child => "link_gate_child");
    attach!(gate_image => "link_gate_image");
    if strict {
        attach! {
            gate_task_free => "link_gate_task_free",
            gate_fork => "link_gate_fork",
            gate_growth => "link_gate_growth",
            gate_writable => "link_gate_writable",
            gate_exec => "link_gate_exec",
            gate_secret_memory => "link_gate_secret_memory",
            gate_prctl => "link_gate_prctl",
        }
    } else {
        attach! {
            try_task_free => "link_try_task_free",
            try_fork => "link_try_fork",
            try_prctl => "link_try_prctl",
            try_growth => "link_try_growth",
            try_writable => "link_try_writable",
        }
    }
    Ok(())
}

fn run_mapping_selftest() -> Result<bool, i32> {
    // SAFETY: the mapping is fresh and never touched.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            TEST_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    Ok(at == libc::MAP_FAILED)
}
