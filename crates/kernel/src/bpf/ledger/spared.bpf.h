/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Programs that an administrator has listed: their processes go after others (rules.h goes_last()).
 *
 * Context: an exec, in the process that has made it; a decision; a call of root's.
 * Cost:    a look-up at each exec; at a decision one for each process of the account.
 * Absent:  without the event of an exec a program is known of who was forked or there before.
 */
#ifndef BURSAR_SPARED_BPF_H
#define BURSAR_SPARED_BPF_H

#include <asm-generic/errno.h>

#include "record.bpf.h"
#include "descriptor.bpf.h"

static __always_inline bool is_spared(const struct mm_record *record)
{
	/* A copy: it may be somebody else's meanwhile. */
	struct program program = record->program;

	return program.inode && bpf_map_lookup_elem(&spared_programs, &program);
}

/* The running process has executed a program. What it had in its new memory before that was charged already. */
static __always_inline int note_exec(void)
{
	__u64 mm = (__u64)PROBE_READ((__u64)bpf_get_current_task(), struct task_struct, mm);
	__u32 index = find_record(mm);
	struct mm_record *record = index != NOBODY ? record_at(index) : NULL;

	if (record && record->ctx_id == probe_ctx_id(mm))
		note_program(record, number_of((void *)mm));
	return 0;
}

/* What records say of who executes a file of the caller's. */
static __always_inline int identify(struct identify_args *args)
{
	__u64 file = probe_own_file((__u32)args->fd);
	struct program program = {};

	if (!file)
		return -EBADF;
	identify_inode(&program, number_of(PROBE_READ(file, struct file, f_inode)));
	args->program = program;
	return 0;
}

#endif /* BURSAR_SPARED_BPF_H */
