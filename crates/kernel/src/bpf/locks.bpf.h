/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How many file locks were taken through an open file: flock(2)'s, fcntl(2)'s of both kinds, and leases.
 * The lists are walked without their lock: a count taken while somebody changes them may be off until the
 * next one, and no read can fault.
 */
#ifndef BURSAR_LOCKS_BPF_H
#define BURSAR_LOCKS_BPF_H

#include "compat.bpf.h"
#include "vmlinux_bills.h"

enum { LOCKS_LOOKED_AT = 16384 };

struct lock_walk {
	__u64 at;		/* a struct list_head * */
	__u64 head;
	__u64 file;
	__u32 count;
	__u32 pad;
};

/* 6.9: a69ce85ec9af split struct file_lock */
static __always_inline bool locks_are_split(void)
{
	return bpf_core_type_exists(struct file_lock_core);
}

static __always_inline __u64 file_of_lock(__u64 list)
{
	__u64 file = 0;

	if (locks_are_split())
		bpf_probe_read_kernel(&file, sizeof(file),
				      (void *)(list -
					       bpf_core_field_offset(struct file_lock_core, flc_list) +
					       bpf_core_field_offset(struct file_lock_core, flc_file)));
	else
		bpf_probe_read_kernel(
			&file, sizeof(file),
			(void *)(list - bpf_core_field_offset(struct file_lock___whole, fl_list) +
				 bpf_core_field_offset(struct file_lock___whole, fl_file)));
	return file;
}

static long count_lock(__u32 index, struct lock_walk *walk)
{
	__u64 next = 0;

	if (!walk->at || walk->at == walk->head)
		return 1;
	if (file_of_lock(walk->at) == walk->file)
		walk->count++;
	bpf_probe_read_kernel(&next, sizeof(next), (void *)walk->at);
	walk->at = next;
	return 0;
}

static __always_inline __u32 count_list(__u64 head, __u64 file)
{
	struct lock_walk walk = { .head = head, .file = file };
	__u32 count = 0;

	bpf_probe_read_kernel(&walk.at, sizeof(walk.at), (void *)head);
	bpf_loop(LOCKS_LOOKED_AT, count_lock, &walk, 0);
	/* A number the verifier knows nothing of: else it follows a caller's `if (count)` through every
	 * turn of the loop, and from 6.12 on gives up. */
	bpf_probe_read_kernel(&count, sizeof(count), &walk.count);
	return count;
}

/* `context`: the inode's struct file_lock_context. */
static __noinline __u32 locks_through(__u64 context, __u64 file)
{
	if (!context)
		return 0;
	return count_list(context + bpf_core_field_offset(struct file_lock_context, flc_flock), file) +
	       count_list(context + bpf_core_field_offset(struct file_lock_context, flc_posix), file) +
	       count_list(context + bpf_core_field_offset(struct file_lock_context, flc_lease), file);
}

#endif /* BURSAR_LOCKS_BPF_H */
