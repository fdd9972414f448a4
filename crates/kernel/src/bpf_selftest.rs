// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the units of the kernel half's logic (`bpf/selftest`), on maps of their own: nothing of a kernel half that is in
//! force is touched. For tests; nothing of it is in bursard.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};

use crate::abi::abi_constant;
use crate::skeleton::{selftest_decisions, selftest_ledger, selftest_rows};
use crate::{Error, older_kernels};

/// What a unit said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The program's name in its object.
    pub name: String,
    /// The line of the expectation that does not hold; `None`: all do.
    pub failed_at: Option<u32>,
}

/// Entries of the accounts, records and rows that units have.
const ENTRIES: u32 = 8;

macro_rules! units_of {
    ($object:ident, $builder:ident, $name:literal, { $($map:ident: $entries:expr),* $(,)? }) => {{
        let mut storage = MaybeUninit::uninit();
        let mut open = $object::$builder::default()
            .open(&mut storage)
            .map_err(Error::unsupported($name))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.max_records = ENTRIES;
            rodata.max_accounts = ENTRIES;
            rodata.has_bpf_loop = older_kernels::has_loops().into();
        }
        older_kernels::fit_maps(open.open_object_mut(), ENTRIES)?;
        $(open.maps.$map.set_max_entries($entries).map_err(Error::io("size a map"))?;)*
        let skel = open.load().map_err(Error::unsupported($name))?;
        let mut units = Vec::new();
        for program in skel.object().progs() {
            let name = program.name().to_string_lossy().into_owned();
            units.push(Unit { failed_at: run(program.as_fd())?, name });
        }
        units
    }};
}

/// Loads all units and runs each once.
///
/// # Errors
/// When an object cannot be loaded here, or a unit cannot be run.
pub fn run_units() -> Result<Vec<Unit>, Error> {
    let mut units = units_of!(selftest_ledger, SelftestLedgerSkelBuilder, "selftest_ledger", {
        accounts: ENTRIES, payers: ENTRIES, mm_index: ENTRIES, mms: ENTRIES,
    });
    units.extend(
        units_of!(selftest_decisions, SelftestDecisionsSkelBuilder, "selftest_decisions", {
            accounts: ENTRIES, payers: ENTRIES, mm_index: ENTRIES, mms: ENTRIES,
            subordinates: 2 * abi_constant::SUBORDINATES.0,
        }),
    );
    units.extend(
        units_of!(selftest_rows, SelftestRowsSkelBuilder, "selftest_rows", {
            accounts: ENTRIES, payers: ENTRIES, mm_index: ENTRIES, mms: ENTRIES, bills: ENTRIES,
            charges: ENTRIES, further_charges: ENTRIES, subordinates: 2 * abi_constant::SUBORDINATES.0,
        }),
    );
    Ok(units)
}

/// What the program returned: 0, or a line, negated.
fn run(program: std::os::fd::BorrowedFd<'_>) -> Result<Option<u32>, Error> {
    let returned = crate::call::returned(program, "run a unit of the kernel half", &mut [])?;
    Ok((returned != 0).then(|| returned.unsigned_abs()))
}
