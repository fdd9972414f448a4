/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * tmalloc.h: transactional allocation (link with -ltmalloc, or start a program with
 * LD_PRELOAD=libtmalloc.so or `bursar run --tmalloc -- CMD`).
 *
 * Blocks are reserved with bursard before they exist, and stay reserved until they are resident: what was
 * granted will not get the process killed when it is used. A request that would take the caller's
 * account over its barrier (without one: its limit) gets NULL and ENOMEM, and is counted in failcnt.
 * Nothing is touched on the caller's behalf: a block becomes resident where it is used.
 *
 * The library also defines malloc's own names (malloc, calloc, realloc, reallocarray, memalign,
 * aligned_alloc, posix_memalign, valloc, pvalloc, free, free_sized, free_aligned_sized,
 * malloc_usable_size, malloc_trim), so that a program linked or
 * started with it, and its libraries, allocate transactionally throughout. Blocks are glibc's: free(),
 * malloc_usable_size() and tfree() work on blocks of either name. A program that defines a malloc of its
 * own keeps it; the functions below then are a family apart, and reallocarray() goes to its realloc(), as
 * the C library's does.
 *
 * Threads: all functions may be called by all threads; like malloc, none is a cancellation point.
 * Fork: a child keeps its blocks and has no reservation; it reserves for itself when it allocates.
 * Signals: like malloc's, none of the functions may be called by a handler. errno is changed by failure
 * only. Descriptors: none is kept, but for short times where the account is nearly full.
 *
 * Where nobody answers, where the caller's user has no limit, and after the process has installed a
 * seccomp filter, the functions are malloc's. A daemon that does not answer is waited for 20 ms, once, and
 * then left alone for a while by all processes of the user. The library defines prctl() and syscall() to
 * see filters come; both do what the C library's do.
 *
 * Environment (looked at when the library is loaded, and not in set-uid programs): BURSAR_SOCKET names
 * bursard's socket. TMALLOC_VERBOSE, set to anything, makes the library say on stderr, once, that nobody
 * answers.
 */
#ifndef TMALLOC_H
#define TMALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `size` bytes; NULL and ENOMEM when refused or larger than PTRDIFF_MAX. */
void *tmalloc(size_t size);
/* The same, zeroed; ENOMEM also when count * size overflows. */
void *tcalloc(size_t count, size_t size);
/* Resizes; on NULL the old block is as it was. A size of 0 frees it. */
void *trealloc(void *block, size_t size);
/* The same with an overflow check (ENOMEM). */
void *treallocarray(void *block, size_t count, size_t size);
/* At a multiple of `alignment`, a power of two; otherwise as the C library's: EINVAL from glibc 2.38 on,
 * rounded up before. */
void *taligned_alloc(size_t alignment, size_t size);
/* Gives a block of any of these, or of malloc's family, back. NULL is ignored. */
void tfree(void *block);

#ifdef __cplusplus
}
#endif
#endif
