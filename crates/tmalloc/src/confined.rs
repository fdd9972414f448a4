// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that give up system calls (seccomp(2)): what glibc's malloc needs they allow, what asking
//! needs they may not, and a call that is not allowed can be the program's end. From the first filter on
//! nothing is asked any more, and malloc is glibc's.
//!
//! Filters are installed by prctl(2) or syscall(2), which libseccomp uses, too; so these two are looked at
//! on their way. A filter that was there when the program began is found in /proc.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long, c_ulong};

static CONFINED: AtomicBool = AtomicBool::new(false);

/// Whether the program has installed a filter.
#[inline]
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
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
    let before = CONFINED.swap(true, Ordering::Relaxed);
    let result = call();
    if has_failed(&result) && !before {
        CONFINED.store(false, Ordering::Relaxed);
    }
    result
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
            bursar_reserve::set_errno(c_int::try_from(-result).unwrap_or(libc::EINVAL));
            -1
        }
        result => result,
    }
}
