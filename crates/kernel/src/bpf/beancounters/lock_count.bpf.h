/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How many file locks were taken through one open file. Who asks for many files walks the lists of one inode
 * again for each: lock_notes.bpf.h.
 */
#ifndef BURSAR_LOCK_COUNT_BPF_H
#define BURSAR_LOCK_COUNT_BPF_H

#include "locks.bpf.h"

enum { LOCKS_A_RECOUNT = 65536 /* some 4 ms */ };

struct lock_walk {
	__u64 at;		/* a struct list_head * */
	__u64 head;
	__u64 file;
	__u32 count;
	__u32 met;		/* of other files as well */
};

static __always_inline long count_lock(__u32 index, struct lock_walk *walk)
{
	__u64 next = 0;

	if (!walk->at || walk->at == walk->head)
		return 1;
	if (file_of_lock(walk->at) == walk->file)
		walk->count++;
	walk->met++;
	bpf_probe_read_kernel(&next, sizeof(next), (void *)walk->at);
	walk->at = next;
	return 0;
}
LOOP_BODY(count_lock, struct lock_walk *, LOCKS_LOOKED_AT)

/* Above a count: of how many lists not all was read, and how many elements were met. */
#define MORE_LOCKS (3ULL << 32)
enum { MET_SHIFT = 40 };

static __always_inline __u64 count_list(__u64 head, __u64 file)
{
	struct lock_walk walk = { .head = head, .file = file };
	__u32 count = 0, met = 0;
	__u64 at = 0;

	bpf_probe_read_kernel(&walk.at, sizeof(walk.at), (void *)head);
	LOOP(count_lock, &walk);
	/* A number the verifier knows nothing of: else it follows a caller's `if (count)` through every
	 * turn of the loop, and from 6.12 on gives up. */
	bpf_probe_read_kernel(&count, sizeof(count), &walk.count);
	bpf_probe_read_kernel(&met, sizeof(met), &walk.met);
	/* A lock that was freed and made again meanwhile leads to another list, or nowhere. */
	bpf_probe_read_kernel(&at, sizeof(at), &walk.at);
	return count + ((__u64)met << MET_SHIFT) + (at == head ? 0 : 1ULL << 32);
}

/* `context`: the inode's struct file_lock_context. */
static __noinline __u64 locks_through(__u64 context, __u64 file)
{
	if (!context)
		return 0;
	return count_list(context + bpf_core_field_offset(struct file_lock_context, flc_flock), file) +
	       count_list(context + bpf_core_field_offset(struct file_lock_context, flc_posix), file) +
	       count_list(context + bpf_core_field_offset(struct file_lock_context, flc_lease), file);
}

#endif /* BURSAR_LOCK_COUNT_BPF_H */
