// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tasks as a library, so that one can call another. docs/howto/guests.md is the manual.
//!
//! - what both kinds of guests are made of: `suite` → `archive` → `kernel`, `initramfs`, `qemu`, `console`
//! - [`vm`]: one command in a bare guest with one of Debian's kernels
//! - [`debian`]: scenarios in a whole Debian

mod archive;
mod console;
pub mod debian;
mod initramfs;
mod interrupt;
mod kernel;
mod program;
mod qemu;
mod suite;
pub mod vm;
