// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is done to the process: stack, heap, lock. In this order, so that what is made resident here is
//! locked with the rest. A refusal locks nothing and unlocks nothing.

use std::ffi::c_int;

use crate::account::Reservation;
use crate::{group, machine};

pub(crate) const ONFAULT: u32 = 1;
pub(crate) const KEEP_MALLOC: u32 = 2;

/// Left to everybody else, and to what the kernel adds: a sixteenth of what is available.
const OTHERS_SHARE: u64 = 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) flags: u32,
    pub(crate) heap_bytes: usize,
    pub(crate) stack_bytes: usize,
}

impl Options {
    /// As malloc is, a large block is a mapping of its own, which free unmaps: no heap would be kept.
    pub(crate) fn is_contradictory(&self) -> bool {
        self.heap_bytes > 0 && self.flags & KEEP_MALLOC != 0
    }
}

/// Why not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    pub(crate) errno: c_int,
    pub(crate) step: Step,
    /// What the step needed and what there is, bytes; 0 where that is not known.
    pub(crate) needed: u64,
    pub(crate) available: u64,
}

/// Where it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// RLIMIT_STACK, or the thread's stack.
    Stack,
    /// The machine's free memory.
    Memory,
    /// What a memory cgroup leaves.
    Group,
    /// The barrier of the account that pays.
    Account,
    /// malloc.
    Heap,
    /// mlockall, for RLIMIT_MEMLOCK or a missing capability.
    Lock,
}

impl Refusal {
    fn new(step: Step, needed: u64, available: u64) -> Self {
        Self {
            errno: libc::ENOMEM,
            step,
            needed,
            available,
        }
    }
}

pub(crate) fn lock(options: &Options) -> Result<(), Refusal> {
    let (heap, stack) = (options.heap_bytes as u64, options.stack_bytes as u64);
    // Looked at before anything is touched: overcommit would say yes, and the OOM killer no.
    let on_fault = options.flags & ONFAULT != 0;
    let (mapped, private) = if on_fault {
        (0, 0)
    } else {
        machine::unresident_bytes()
    };
    let asked = heap.saturating_add(stack);
    has_room_for(asked.saturating_add(mapped))?;
    if !machine::may_lock_anything() {
        let limit = machine::memlock_limit();
        // All that is mapped counts, touched or not (mm/mlock.c: total_vm).
        let needed = machine::mapped_bytes().saturating_add(heap);
        if limit == 0 || needed > limit {
            let mut refusal = Refusal::new(Step::Lock, needed, limit);
            if limit == 0 {
                refusal.errno = libc::EPERM;
            }
            return Err(refusal);
        }
    }
    // The account does not pay for pages of files.
    let paid = asked.saturating_add(private);
    let _reservation = Reservation::of(paid).ok_or(Refusal::new(Step::Account, paid, 0))?;
    // khugepaged collapses pages behind a program's back, locked ones as well: whoever touches them
    // meanwhile faults and waits (18 ms, met on 6.1 with transparent_hugepage=always).
    // SAFETY: numbers only. A kernel without huge pages refuses, which is as well.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    self::stack(options.stack_bytes)?;
    if options.flags & KEEP_MALLOC == 0 {
        keep_freed_memory();
    }
    heap_of(options.heap_bytes)?;
    let mut flags = libc::MCL_CURRENT | libc::MCL_FUTURE;
    if on_fault {
        flags |= libc::MCL_ONFAULT;
    }
    // SAFETY: no arguments but flags.
    if unsafe { libc::mlockall(flags) } != 0 {
        let errno = std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::ENOMEM);
        // Nothing is marked: mlockall refuses before that, and does not tell what goes wrong later (mm/mlock.c,
        // apply_mlockall_flags). What the program had locked itself stays so.
        let mut refusal = Refusal::new(
            Step::Lock,
            machine::mapped_bytes(),
            machine::memlock_limit(),
        );
        refusal.errno = errno;
        return Err(refusal);
    }
    Ok(())
}

/// Whether the machine and the process's cgroups have room for so much more.
pub(crate) fn has_room_for(needed: u64) -> Result<(), Refusal> {
    let rooms = [
        (Step::Memory, machine::available_bytes()),
        (Step::Group, group::available_bytes()),
    ];
    for (step, available) in rooms {
        if let Some(ours) = available.map(ours_of).filter(|&ours| needed > ours) {
            return Err(Refusal::new(step, needed, ours));
        }
    }
    Ok(())
}

/// What of free memory may be taken.
const fn ours_of(available: u64) -> u64 {
    available - available / OTHERS_SHARE
}

/// S3's third condition: no page is given back. glibc trims the heap's top and unmaps large blocks.
fn keep_freed_memory() {
    // SAFETY: plain numbers; refused ones change nothing. A threshold of -1 is never reached; the largest int
    // is by a heap of 2 GiB (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Grows malloc's arena: a block of that size is taken, touched and given back to malloc, which now
/// keeps it.
fn heap_of(bytes: usize) -> Result<(), Refusal> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the block is ours between malloc and free.
    unsafe {
        let block = libc::malloc(bytes).cast::<u8>();
        if block.is_null() {
            return Err(Refusal::new(Step::Heap, bytes as u64, 0));
        }
        touch(block, bytes);
        libc::free(block.cast());
    }
    Ok(())
}

/// Writes to each page what is in it.
///
/// # Safety
/// `bytes` from `address` are writable memory.
pub(crate) unsafe fn touch(address: *mut u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        // SAFETY: inside the range; volatile, so that it is not left out as useless.
        unsafe {
            let byte = address.add(offset);
            byte.write_volatile(byte.read_volatile());
        }
        offset = offset.saturating_add(machine::page_bytes());
    }
    if bytes > 0 {
        // SAFETY: the last byte of the range, which may lie in a page of its own.
        unsafe {
            let byte = address.add(bytes - 1);
            byte.write_volatile(byte.read_volatile());
        }
    }
}

/// Makes the stack below the caller resident.
pub(crate) fn stack(bytes: usize) -> Result<(), Refusal> {
    if bytes == 0 {
        return Ok(());
    }
    let here = std::ptr::from_ref(&bytes).addr();
    let Some((lowest, limit)) = machine::stack_floor() else {
        return Err(Refusal::new(Step::Stack, bytes as u64, 0));
    };
    // A guard page and what the calls below need.
    let reserve = 16 * machine::page_bytes();
    match here.checked_sub(bytes) {
        Some(deepest) if deepest >= lowest.saturating_add(reserve) => {
            descend(deepest);
            Ok(())
        }
        _ => Err(Refusal::new(
            Step::Stack,
            (bytes + reserve) as u64,
            limit as u64,
        )),
    }
}

/// Calls itself, half a page a time, until the stack is that deep. Not one large array: the kernel
/// grows a stack from where it is, and compilers probe large frames anyway.
#[inline(never)]
fn descend(deepest: usize) {
    let mut frame = [0u8; 2048];
    // SAFETY: our own frame; volatile, so that it is really there.
    unsafe { frame.as_mut_ptr().write_volatile(1) };
    if frame.as_ptr().addr() > deepest {
        descend(deepest);
    }
    // SAFETY: as above; after the call, so that it is no tail call.
    unsafe { frame.as_mut_ptr().write_volatile(2) };
}
