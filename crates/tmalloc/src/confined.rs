// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that give up system calls (seccomp(2)): what glibc's malloc needs they allow, what asking
//! needs they may not, and a call that is not allowed can be the program's end. From the first filter on
//! nothing is asked any more, and malloc is glibc's.
//!
//! Filters are installed by prctl(2) or syscall(2), which libseccomp uses, too; so these two are looked at
//! on their way. A filter that was there when the program began is found in /proc.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use bursar_reserve::{errno, set_errno};
use libc::{c_int, c_long, c_ulong};

use crate::{process, thread};

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Children that share our memory (vfork(2)) and have a filter of their own. Each has the kernel write 0
/// here when it becomes another program or ends (set_tid_address(2)). A thread has one at a time. Of more at
/// once than there is room for, a filter counts as the program's own.
static CHILDREN: [Child; 32] = [const { Child::none() }; 32];

/// While it lives the thread that made it waits, and it runs as that thread for all that a process can tell
/// without a system call.
struct Child {
    number: AtomicI32,
    /// Where the thread's part of memory is.
    thread: AtomicUsize,
}

impl Child {
    const fn none() -> Self {
        Self {
            number: AtomicI32::new(0),
            thread: AtomicUsize::new(0),
        }
    }

    /// Whether it is the caller, or the caller made it.
    fn is_here(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0
            && self.thread.load(Ordering::Relaxed) == thread::own().addr()
    }
}

/// Where a filter is that forbids who knows what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confined {
    No,
    /// Here, from now on.
    Yes,
    /// In a child of the calling thread that shares our memory, as long as it does; who allocates may be
    /// that one.
    Child,
}

/// Whether the program has installed a filter.
#[inline]
pub(crate) fn look() -> Confined {
    if CONFINED.load(Ordering::Relaxed) {
        return Confined::Yes;
    }
    match CHILDREN.iter().any(Child::is_here) {
        true => Confined::Child,
        false => Confined::No,
    }
}

/// Whether system calls are to be left alone, for the moment or for good.
#[inline]
pub(crate) fn is_confined() -> bool {
    look() != Confined::No
}

/// Whether there was a filter from the start; then it counts from now on. For before anything is asked: the
/// dynamic linker needed open(2) and read(2) as well.
pub(crate) fn is_confined_from_the_start() -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string literal.
    let fd = unsafe { libc::open(c"/proc/self/status".as_ptr(), flags) };
    if fd < 0 {
        return false;
    }
    let mut text = [0u8; 4096];
    // SAFETY: a live buffer and its length.
    let got = unsafe { libc::read(fd, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: our own descriptor.
    unsafe { libc::close(fd) };
    let text = usize::try_from(got).ok().and_then(|got| text.get(..got));
    let mut lines = text.unwrap_or_default().split(|&byte| byte == b'\n');
    let mode = lines.find_map(|line| line.strip_prefix(b"Seccomp:"));
    let is_confined = mode.is_some_and(|mode| mode.trim_ascii() != b"0");
    if is_confined {
        CONFINED.store(true, Ordering::Relaxed);
    }
    is_confined
}

/// Before the call: afterwards nothing is allowed that the filter forbids.
fn confining<T>(call: impl FnOnce() -> T, has_failed: impl FnOnce(&T) -> bool) -> T {
    if is_confined() {
        return call();
    }
    if let Some(child) = child() {
        let result = call();
        if has_failed(&result) {
            child.number.store(0, Ordering::Relaxed);
        }
        return result;
    }
    CONFINED.store(true, Ordering::Relaxed);
    let result = call();
    if has_failed(&result) {
        CONFINED.store(false, Ordering::Relaxed);
    }
    result
}

/// Notes that the caller is a child that shares our memory, if it is one and the kernel will say when it is
/// no more. A child that has asked the kernel for the same itself (CLONE_CHILD_CLEARTID) keeps that.
fn child() -> Option<&'static Child> {
    let pid = process::child_sharing_memory()?;
    let before = errno();
    let child = claim(pid);
    set_errno(before);
    child
}

fn claim(pid: libc::pid_t) -> Option<&'static Child> {
    let mut told = 0usize;
    let at = (&raw mut told).expose_provenance().cast_signed() as c_long;
    let ask = [libc::PR_GET_TID_ADDRESS.into(), at, 0, 0, 0, 0];
    // SAFETY: the kernel writes one address.
    let asked = unsafe { raw(libc::SYS_prctl, ask) };
    // SAFETY: a live local, which the kernel has written to.
    let told = unsafe { (&raw const told).read_volatile() };
    let is_ours = |child: &Child| child.number.as_ptr().addr() == told;
    if asked != 0 || (told != 0 && !CHILDREN.iter().any(is_ours)) {
        return None;
    }
    let is_free = |child: &&Child| {
        let number = &child.number;
        let claimed = number.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok()
    };
    let child = CHILDREN.iter().find(is_free)?;
    child.thread.store(thread::own().addr(), Ordering::Relaxed);
    let at = child.number.as_ptr().expose_provenance().cast_signed() as c_long;
    // SAFETY: a static of ours, of the size that the kernel writes.
    unsafe { raw(libc::SYS_set_tid_address, [at, 0, 0, 0, 0, 0]) };
    Some(child)
}

/// prctl(2).
///
/// # Safety
/// As the kernel's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let call = || {
        // SAFETY: the caller's word.
        let result = unsafe {
            raw(
                libc::SYS_prctl,
                [
                    option.into(),
                    second.cast_signed(),
                    third.cast_signed(),
                    fourth.cast_signed(),
                    fifth.cast_signed(),
                    0,
                ],
            )
        };
        c_int::try_from(result).unwrap_or(c_int::MAX)
    };
    if option == libc::PR_SET_SECCOMP {
        confining(call, |&result| result < 0)
    } else {
        call()
    }
}

/// syscall(2). A leaf like glibc's, for programs that make children by it which go on in the same stack.
///
/// # Safety
/// As the kernel's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn syscall() -> c_long {
    std::arch::naked_asm!(
        "cmp rdi, {seccomp}",
        "je {confining}",
        "cmp rdi, {prctl}",
        "je {confining}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2: mov rdi, rax",
        "jmp {done}",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        confining = sym confining_syscall,
        done = sym done,
    )
}

/// syscall(2).
///
/// # Safety
/// As the kernel's.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // SAFETY: the caller's word.
    unsafe { confining_syscall(number, first, second, third, fourth, fifth, sixth) }
}

/// A call that may install a filter.
unsafe extern "C-unwind" fn confining_syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    let call = || {
        // SAFETY: the caller's word.
        unsafe { raw(number, [first, second, third, fourth, fifth, sixth]) }
    };
    let confines = number == libc::SYS_seccomp
        || (number == libc::SYS_prctl && first == libc::PR_SET_SECCOMP.into());
    if confines {
        confining(call, |&result| result < 0)
    } else {
        call()
    }
}

/// The system call itself, and errno.
///
/// # Safety
/// As the kernel's.
#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: c_long, arguments: [c_long; 6]) -> c_long {
    let result: c_long;
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the caller's word; registers as syscall(2) says.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    done(result)
}

/// The system call itself, and errno.
///
/// # Safety
/// As the kernel's.
#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: c_long, arguments: [c_long; 6]) -> c_long {
    let result: c_long;
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the caller's word; registers as syscall(2) says.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    done(result)
}

extern "C-unwind" fn done(result: c_long) -> c_long {
    match result {
        -4095..0 => {
            set_errno(c_int::try_from(-result).unwrap_or(libc::EINVAL));
            -1
        }
        result => result,
    }
}
