// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of what a story started, and the end of one alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ptr::null_mut;

use anyhow::{Context, Result, ensure};

use crate::wait::until;

/// A process's threads but its first, and their names.
pub(crate) fn threads(pid: u32) -> Result<BTreeMap<u32, String>> {
    let mut all = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        let path = task?.path();
        let id = path.file_name().and_then(|it| it.to_str()?.parse().ok());
        if let (Some(id), Ok(name)) = (id, fs::read_to_string(path.join("comm")))
            && id != pid
        {
            all.insert(id, name.trim_end().to_owned());
        }
    }
    Ok(all)
}

/// Has a thread that sleeps in a system call make another one instead: exit(2), which ends it alone.
pub(crate) fn end_thread(thread: u32) -> Result<()> {
    let thread = i32::try_from(thread)?;
    let trace = |request, data: *mut libc::c_void| {
        // SAFETY: of a thread that the story's own bursard has; `data` is what the request wants.
        let done = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), data) };
        ensure!(done >= 0, "ptrace: {}", io::Error::last_os_error());
        Ok(())
    };
    trace(libc::PTRACE_SEIZE, null_mut())?;
    until("the thread being in a system call", || {
        trace(libc::PTRACE_INTERRUPT, null_mut())?;
        // SAFETY: waits for what was just interrupted.
        let waited = unsafe { libc::waitpid(thread, null_mut(), libc::__WALL) };
        ensure!(waited == thread, "waitpid: {}", io::Error::last_os_error());
        if redirect(&trace)? {
            return Ok(Some(()));
        }
        trace(libc::PTRACE_CONT, null_mut())?;
        Ok(None)
    })?;
    trace(libc::PTRACE_DETACH, null_mut())
}

/// Whether it could be done: only a thread in a system call stands behind the instruction that makes one.
#[cfg(target_arch = "x86_64")]
fn redirect(trace: &dyn Fn(libc::c_uint, *mut libc::c_void) -> Result<()>) -> Result<bool> {
    // SAFETY: numbers only.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, (&raw mut registers).cast())?;
    if i64::from_ne_bytes(registers.orig_rax.to_ne_bytes()) < 0 {
        return Ok(false);
    }
    // Back to the instruction that made the call, two bytes long; and no call to be made again.
    registers.rip -= 2;
    registers.orig_rax = u64::MAX;
    registers.rax = u64::try_from(libc::SYS_exit)?;
    registers.rdi = 0;
    trace(libc::PTRACE_SETREGS, (&raw mut registers).cast())?;
    Ok(true)
}

#[cfg(not(target_arch = "x86_64"))]
fn redirect(_: &dyn Fn(libc::c_uint, *mut libc::c_void) -> Result<()>) -> Result<bool> {
    anyhow::bail!("how to end a thread is written down for x86-64 only")
}
