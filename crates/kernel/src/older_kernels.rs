// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What maps are where the kernel lacks what 5.17 and 6.1 have brought to programs.

use libbpf_rs::{MapType, OpenMapMut, OpenObject};

use crate::Error;
use crate::support::KernelTypes;

/// Elements of the array that loops walk where nothing helps them: the longest loop but those over records and accounts.
const LONGEST_LOOP: u32 = 65_536;

/// `BPF_F_NO_PREALLOC` (linux/bpf.h).
const NO_PREALLOC: u32 = 1;

/// Whether the kernel has `bpf_loop()`: what goes into the programs' constant of that name.
pub(crate) fn has_loops() -> bool {
    KernelTypes::get().has_bpf_loop
}

/// Makes the maps of an object what this kernel takes. `longest`: its longest loop over records or accounts.
///
/// Before 6.1 sleepable programs, which ours of type `syscall` are, only take hash maps whose elements are allocated with
/// them (02cc5aa29e8c "bpf: Remove prealloc-only restriction for sleepable bpf programs").
pub(crate) fn fit_maps(object: &mut OpenObject, longest: u32) -> Result<(), Error> {
    for mut map in object.maps_mut() {
        if map.name() == "loop_indices" {
            fit_loops(&mut map, longest)?;
        } else if !has_loops() && (map.name() == "members" || map.name() == "witness") {
            take_place_of_storage(&mut map)?;
        } else if !KernelTypes::get().has_bpf_mem_alloc && map.map_type() == MapType::Hash {
            let flags = map.map_flags() & !NO_PREALLOC;
            map.set_map_flags(flags).map_err(fitting())?;
        }
    }
    Ok(())
}

fn fitting() -> impl FnOnce(libbpf_rs::Error) -> Error {
    Error::io("fit a map to the kernel")
}

/// Not made where no loop walks it.
fn fit_loops(indices: &mut OpenMapMut<'_>, longest: u32) -> Result<(), Error> {
    let done = if has_loops() {
        indices.set_autocreate(false)
    } else {
        indices.set_max_entries(longest.max(LONGEST_LOOP))
    };
    done.map_err(fitting())
}

/// Sleepable programs know no storage of tasks (`bpf/lib/membership.bpf.h`): in its place is a map that nobody reads.
fn take_place_of_storage(map: &mut OpenMapMut<'_>) -> Result<(), Error> {
    map.set_type(MapType::Hash).map_err(fitting())?;
    map.set_map_flags(0).map_err(fitting())?;
    map.set_max_entries(1).map_err(fitting())
}
