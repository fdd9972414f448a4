// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libbursar_bench_jump.so: malloc's family under its own names, and nothing but a jump to glibc's. It is the
//! floor of anything that stands before glibc's malloc by LD_PRELOAD, as tmalloc does.

/// A function that jumps to glibc's own name for it. Arguments and result are whatever the caller takes them for.
macro_rules! jump {
    ($name:ident, $target:literal) => {
        /// Jumps to glibc's.
        ///
        /// # Safety
        /// As glibc's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(concat!("jmp qword ptr [rip + ", $target, "@GOTPCREL]"));
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                concat!("adrp x16, :got:", $target),
                concat!("ldr x16, [x16, :got_lo12:", $target, "]"),
                "br x16",
            );
        }
    };
}

jump!(malloc, "__libc_malloc");
jump!(calloc, "__libc_calloc");
jump!(realloc, "__libc_realloc");
jump!(free, "__libc_free");
