/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * prefault.h - keep page faults out of a program that must answer in time.
 *
 * The first touch of a page that is not resident costs a page fault, and so does the first touch after
 * the kernel took the page away. A program that cannot afford either makes its memory resident while it
 * starts, and keeps it:
 *
 *	struct prefault_options options = PREFAULT_OPTIONS_INIT;
 *	options.heap_bytes = 64 << 20;
 *	options.stack_bytes = 1 << 20;
 *	if (prefault_lock(&options) != 0)
 *		err(1, "prefault_lock");	// nothing is locked
 *	...				// start threads, load data, allocate
 *	prefault_started();		// tells `bursar faults verify --signal`
 *	...				// from here on: no faults
 *
 * Both libraries are installed in lib/bursar: link with -L/usr/lib/bursar -lprefault
 * -Wl,-rpath,/usr/lib/bursar (libprefault.so), or a static program with
 * /usr/lib/bursar/libprefault.a -lpthread -ldl.
 * `bursar run --lock -- CMD` does the same to an unmodified dynamic program.
 *
 * Where only some threads must answer in time, lock only what they use, and leave the others' memory to be
 * found when it is touched (S3):
 *
 *	char *pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
 *	if (prefault_lock_range(pool, size) != 0)
 *		err(1, "prefault_lock_range");
 *	...				// in each thread that must answer in time:
 *	prefault_lock_stack(64 << 10);
 *
 * `bursar faults verify --real-time` counts such threads alone.
 *
 * What locking cannot prevent: memory that is mapped later is made resident while it is mapped, which
 * takes the time of its faults there (they count as faults, too); after fork() the pages of both
 * processes are copy-on-write, so the next write to each faults; locks are not inherited. A page of a shared
 * mapping of a file on a disk becomes read-only with each writeback, and the next write to it faults.
 */
#ifndef PREFAULT_H
#define PREFAULT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lock a page when it is first touched, not before (mlock2(2) MCL_ONFAULT): the first touch faults,
 * later ones do not, and what is never touched takes no memory. */
#define PREFAULT_ONFAULT 1u
/* Leave malloc as it is. Without this, freed memory stays with the program (M_TRIM_THRESHOLD), large
 * blocks come from the heap, too (M_MMAP_MAX 0), and all threads share one arena (M_ARENA_MAX 1).
 * heap_bytes has to be 0 then: malloc would give such a heap back at once. */
#define PREFAULT_KEEP_MALLOC 2u

struct prefault_options {
	uint32_t size;		/* sizeof(struct prefault_options): later versions may add members */
	uint32_t flags;		/* PREFAULT_* */
	size_t heap_bytes;	/* malloc's arena is made this large and resident; 0: as it is */
	size_t stack_bytes;	/* of the calling thread's stack, below the caller; 0: as it is */
};

#define PREFAULT_OPTIONS_INIT { sizeof(struct prefault_options), 0, 0, 512 * 1024 }

/*
 * Makes all memory of the process resident and locks it, now and in future (mlockall). Transparent huge
 * pages are turned off for the process, which its children inherit (PR_SET_THP_DISABLE): making them moves
 * locked pages, and whoever touches those meanwhile faults.
 *
 * Returns 0, or -1 with errno set. Then all is locked that was locked before, and nothing else:
 *	EINVAL	options is NULL, or its size or flags are not of this version, or heap_bytes is not 0 with
 *		PREFAULT_KEEP_MALLOC
 *	EPERM	RLIMIT_MEMLOCK is 0 and the process has no CAP_IPC_LOCK
 *	ENOMEM	RLIMIT_MEMLOCK, the stack limit, the machine's free memory (MemAvailable) or what a memory
 *		cgroup leaves, its own or one above (each less a sixteenth), is too small, or the account has
 *		no room below its barrier (bursard is asked, where it runs); malloc could not give
 *		heap_bytes
 *
 * Threads: call it once, from the first thread, before others are started: the heap and the stack are
 * the caller's, locking concerns the whole process. Not async-signal-safe. A fork()ed child is not
 * locked.
 */
int prefault_lock(const struct prefault_options *options);

/*
 * Makes `bytes` of the calling thread's stack below the caller resident: for threads started after
 * prefault_lock() with PREFAULT_ONFAULT; without it their whole stacks are resident anyway.
 * Returns 0, or -1 with errno ENOMEM: the stack limit or the thread's stack is too small.
 */
int prefault_stack(size_t bytes);

/*
 * Makes `bytes` from `address` resident for writing, page by page, without changing them. The memory
 * must be writable. Returns 0, or -1 with errno EINVAL: NULL, or the end is beyond the address space.
 */
int prefault_range(void *address, size_t bytes);

/*
 * Makes the pages of `bytes` from `address` resident for writing and locks them (mlock(2)), and no others.
 * Whole pages: what else lies in the first and in the last one is locked with it. Transparent huge pages
 * are turned off for them (MADV_NOHUGEPAGE). The memory must be writable. Unmapping ends the lock; free()
 * does not, before malloc unmaps.
 *
 * Returns 0, or -1 with errno set and nothing locked by this call. What was locked before stays so, unless
 * the range could not be filled:
 *	EINVAL	NULL, or the end is beyond the address space
 *	EPERM	RLIMIT_MEMLOCK is 0 and the process has no CAP_IPC_LOCK
 *	ENOMEM	RLIMIT_MEMLOCK, the machine's free memory or what a memory cgroup or the account leaves
 *		(as above) is too small, or not all of it is mapped
 */
int prefault_lock_range(void *address, size_t bytes);

/* Ends that for whole pages. Returns 0, or -1 with errno EINVAL as above or ENOMEM: not mapped. */
int prefault_unlock_range(void *address, size_t bytes);

/*
 * Makes `bytes` of the calling thread's stack below the caller resident and locks them. Returns as
 * prefault_lock_range(); ENOMEM also where the thread's stack is too small.
 */
int prefault_lock_stack(size_t bytes);

/* Page faults of the process so far, as getrusage(2) counts them. Async-signal-safe. */
struct prefault_counts {
	uint64_t minor;		/* served without a disk */
	uint64_t major;		/* waited for a disk */
};
/* Returns 0, or -1 with errno EINVAL: counts is NULL. */
int prefault_count(struct prefault_counts *counts);

/*
 * Tells whoever verifies this process that its start phase is over: sends SIGUSR1 to the process named
 * by the environment's BURSAR_VERIFY_PID, if that is its parent. Returns 0; -1 with errno ESRCH when nobody
 * verifies.
 */
int prefault_started(void);

#ifdef __cplusplus
}
#endif
#endif /* PREFAULT_H */
