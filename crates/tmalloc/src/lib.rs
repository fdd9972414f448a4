// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libtmalloc.so: malloc that answers NULL and ENOMEM before the account's barrier is passed, instead of
//! somebody being killed when the memory is touched (S1 section 5). The contract is tmalloc.h.
//!
//! Memory is glibc's; what is ours is the permission to grow.
//!
//! - [`family`] the functions under malloc's names; [`own_names`] under their own; [`blocks`] what they do
//! - [`thread`] what a thread has left, the only thing looked at by a small malloc
//! - [`credit`] what the process has reserved, and asking for more; [`process`] where that is kept
//! - [`untouched`] what was granted and is not resident yet; [`ranges`] the same of one thread
//! - [`usage`] what the kernel says about us; [`confined`] programs that give up system calls
//! - [`environment`] what the environment said at the start
//! - [`glibc`] the malloc underneath; [`verbose`] one sentence on stderr
//!
//! Nothing here allocates: what is called on the way is libc, system calls, and bursar-reserve. Nothing
//! panics either, so that the standard library's machinery for that, and libgcc, need not be loaded with
//! each program: 320 KB and half of the time that the library takes.

mod blocks;
pub mod confined;
mod credit;
mod environment;
pub mod family;
mod glibc;
pub mod own_names;
mod process;
mod ranges;
mod thread;
mod untouched;
mod usage;
mod verbose;

extern "C-unwind" fn loaded() {
    credit::lifecycle::begin();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C-unwind" fn() = loaded;

// What would unwind a panic. Without it nothing refers to the machinery, and the linker leaves it out
// (tests/library.rs looks for libgcc). Functions are "C-unwind" for the same reason: "C" ones end a panic.
std::arch::global_asm!(
    ".pushsection .text.rust_eh_personality,\"ax\",@progbits",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    #[cfg(target_arch = "x86_64")]
    "ud2",
    #[cfg(not(target_arch = "x86_64"))]
    "udf #0",
    ".popsection",
);
