/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * File locks as inodes have them: lists of flock(2)'s, of fcntl(2)'s of both kinds, and of leases.
 * The lists are walked without their lock: a count taken while somebody changes them may be off until the
 * next one, and no read can fault.
 */
#ifndef BURSAR_LOCKS_BPF_H
#define BURSAR_LOCKS_BPF_H

#include "compat.bpf.h"
#include "loop.bpf.h"
#include "vmlinux_beancounters.h"

enum { LOCKS_LOOKED_AT = 16384 /* of one list */ };

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

#endif /* BURSAR_LOCKS_BPF_H */
