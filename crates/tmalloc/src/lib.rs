// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libtmalloc.so: malloc that answers NULL and ENOMEM before the account's barrier is passed, instead of
//! somebody being killed when the memory is touched (S1 section 5). The contract is tmalloc.h.
//!
//! Memory is glibc's; what is ours is the permission to grow.
//!
//! - [`family`] the functions, under their own names and malloc's
//! - [`thread`] what a thread has left, the only thing looked at by a small malloc
//! - [`credit`] what the process has reserved, and asking for more
//! - [`resident`] making granted memory resident, counting what is
//! - [`environment`] what the environment said at the start
//! - [`glibc`] the malloc underneath; [`verbose`] one sentence on stderr
//!
//! Nothing here allocates: what is called on the way is libc, system calls, and bursar-reserve.

mod credit;
mod environment;
pub mod family;
mod glibc;
mod resident;
mod thread;
mod verbose;

extern "C" fn loaded() {
    credit::begin();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;
