// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads of what a story started, and the end of one alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
#[cfg(target_arch = "aarch64")]
use std::os::unix::fs::FileExt;
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
    let trace = |request, what: usize, data: *mut libc::c_void| {
        // SAFETY: of a thread that the story's own bursard has; `what` and `data` are what the request wants.
        let done = unsafe { libc::ptrace(request, thread, what, data) };
        ensure!(done >= 0, "ptrace: {}", io::Error::last_os_error());
        Ok(())
    };
    trace(libc::PTRACE_SEIZE, 0, null_mut())?;
    until("the thread being in a system call", || {
        trace(libc::PTRACE_INTERRUPT, 0, null_mut())?;
        until("the thread standing still", || {
            let flags = libc::__WALL | libc::WNOHANG;
            // SAFETY: looks at what was just interrupted.
            let waited = unsafe { libc::waitpid(thread, null_mut(), flags) };
            ensure!(waited >= 0, "waitpid: {}", io::Error::last_os_error());
            Ok((waited == thread).then_some(()))
        })?;
        if redirect(thread, &trace)? {
            return Ok(Some(()));
        }
        trace(libc::PTRACE_CONT, 0, null_mut())?;
        Ok(None)
    })?;
    trace(libc::PTRACE_DETACH, 0, null_mut())
}

type Trace<'a> = dyn Fn(libc::c_uint, usize, *mut libc::c_void) -> Result<()> + 'a;

/// Whether it could be done: only a thread in a system call stands behind the instruction that makes one.
#[cfg(target_arch = "x86_64")]
fn redirect(_: i32, trace: &Trace<'_>) -> Result<bool> {
    // SAFETY: numbers only.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, 0, (&raw mut registers).cast())?;
    if i64::from_ne_bytes(registers.orig_rax.to_ne_bytes()) < 0 {
        return Ok(false);
    }
    // Back to the instruction that made the call, two bytes long; and no call to be made again.
    registers.rip -= 2;
    registers.orig_rax = u64::MAX;
    registers.rax = u64::try_from(libc::SYS_exit)?;
    registers.rdi = 0;
    trace(libc::PTRACE_SETREGS, 0, (&raw mut registers).cast())?;
    Ok(true)
}

/// The same. Where an interrupted call is to be made again the thread stands at the instruction already, and the
/// kernel would exchange the call for restart_syscall(2): the call is made by the next such instruction in the library.
#[cfg(target_arch = "aarch64")]
fn redirect(thread: i32, trace: &Trace<'_>) -> Result<bool> {
    const NT_PRSTATUS: usize = 1;
    const SVC: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
    // SAFETY: numbers only.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let place = |registers: &mut libc::user_regs_struct| libc::iovec {
        iov_base: (&raw mut *registers).cast(),
        iov_len: size_of_val(registers),
    };
    let mut all = place(&mut registers);
    trace(libc::PTRACE_GETREGSET, NT_PRSTATUS, (&raw mut all).cast())?;
    let mut code = vec![0; 64 << 10];
    let memory = fs::File::open(format!("/proc/{thread}/mem")).context("open its memory")?;
    let got = memory.read_at(&mut code, registers.pc - 4)?;
    let mut instructions = code[..got].chunks(4).enumerate();
    if !instructions.by_ref().take(2).any(|(_, it)| it == SVC) {
        return Ok(false);
    }
    let (index, _) = instructions
        .find(|(_, it)| *it == SVC)
        .context("no other call")?;
    registers.pc += 4 * index as u64 - 4;
    registers.regs[8] = u64::try_from(libc::SYS_exit)?;
    registers.regs[0] = 0;
    let mut all = place(&mut registers);
    trace(libc::PTRACE_SETREGSET, NT_PRSTATUS, (&raw mut all).cast())?;
    Ok(true)
}
