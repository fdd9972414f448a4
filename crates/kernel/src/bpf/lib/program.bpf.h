/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which program an address space runs, by its file: names and arguments are its user's choice.
 *
 * Written down when it is executed, and handed on to whoever is forked: later mm->exe_file may be another file, which a
 * process in a user namespace of its own chooses (prctl(PR_SET_MM_MAP)). A file that others than root may write to, or
 * that is not root's, is no program here: its number may be one that root's file had before.
 */
#ifndef BURSAR_PROGRAM_BPF_H
#define BURSAR_PROGRAM_BPF_H

#include "payer.bpf.h"

enum { OTHERS_WRITE = 022 };

/* Global, as is what follows: verified once, and nothing of it is on the stack when others need that. */
__noinline int identify_inode(struct program *program, __u64 inode)
{
	if (!program)
		return 0;
	program->inode = 0;
	program->device = 0;
	program->generation = 0;
	if (!inode || PROBE_READ(inode, struct inode, i_uid.val) ||
	    (PROBE_READ(inode, struct inode, i_mode) & OTHERS_WRITE))
		return 0;
	program->device = PROBE_READ(PROBE_READ(inode, struct inode, i_sb), struct super_block, s_dev);
	program->generation = PROBE_READ(inode, struct inode, i_generation);
	program->inode = PROBE_READ(inode, struct inode, i_ino);
	return 0;
}

static __always_inline __u64 probe_executable(__u64 mm)
{
	return (__u64)PROBE_READ(mm, struct mm_struct, exe_file);
}

/* Just executed. */
__noinline int note_program(struct mm_record *record, __u64 mm)
{
	if (record)
		identify_inode(&record->program, number_of(PROBE_READ(probe_executable(mm), struct file, f_inode)));
	return 0;
}

/* Of a record just opened. Who has the very file of the running process was forked from it. `parent`: its record; NULL:
 * there is none, as of who was there before the ledger. In a user namespace nobody knows then. */
__noinline int learn_program(struct mm_record *record, const struct mm_record *parent, __u64 mm)
{
	__u64 owner, ns;

	if (!record)
		return 0;
	if (parent) {
		record->program = parent->program;
		return 0;
	}
	owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	ns = (__u64)PROBE_READ(PROBE_READ(owner, struct task_struct, real_cred), struct cred, user_ns);
	if (owner && ns && !PROBE_READ(ns, struct user_namespace, level))
		return note_program(record, mm);
	return identify_inode(&record->program, 0);
}

#endif /* BURSAR_PROGRAM_BPF_H */
