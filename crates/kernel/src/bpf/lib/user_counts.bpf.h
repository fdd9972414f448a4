/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel itself counts for the user who pays: his queued signals and his namespaces. */
#ifndef BURSAR_USER_COUNTS_BPF_H
#define BURSAR_USER_COUNTS_BPF_H

#include "payer.bpf.h"

enum { MOUNT_BYTES = 400 };	/* measured beside those below */

/* What one namespace of each kind takes of the kernel's memory: crates/model/src/namespace.rs. */
const volatile __u64 namespace_bytes[NAMESPACE_KINDS];

static __always_inline bool has_limits_apart(void)
{
	return bpf_core_field_exists(((struct ucounts *)0)->rlimit);
}

static __always_inline bool has_limits_in_ucount(void)
{
	return bpf_core_enum_value_exists(enum ucount_type___of_limits, UCOUNT_RLIMIT_SIGPENDING___in_ucount);
}

/* inc_ucount() and inc_rlimit_ucounts() count in every namespace up to the outermost one, so the outermost of
 * those is the one we want that is his who pays for `task` (userns.bpf.h). NULL: it is not known. */
static __always_inline struct ucounts *counts_of(struct task_struct *task)
{
	const struct cred *cred = task->real_cred;
	struct ucounts *counts, *his;
	struct user_namespace *ns;
	int level, i;

	if (!cred || (!has_limits_apart() && !has_limits_in_ucount()))
		return NULL;
	counts = cred->ucounts;
	if (!counts)
		return NULL;
	his = counts;
	ns = counts->ns;
	level = ns ? ns->level : 0;
	for (i = 0; i < USERNS_DEPTH && level > 0; i++) {
		counts = ns->ucounts;
		if (!counts)
			return NULL;
		if (ns->owner.val)
			his = counts;
		ns = counts->ns;
		level = ns ? ns->level : 0;
	}
	return his;
}

static __always_inline __s64 pending_signals_of(struct task_struct *task)
{
	struct ucounts *counts = counts_of(task);
	__s64 pending = 0;

	if (!counts)
		return 0;
	/* an element of an array of these: no plain load in 6.1's verifier */
	if (has_limits_apart())
		bpf_core_read(&pending, sizeof(pending),
			      &counts->rlimit[UCOUNT_RLIMIT_SIGPENDING].counter);
	else if (has_limits_in_ucount())
		bpf_probe_read_kernel(&pending, sizeof(pending),
				      (void *)((__u64)&counts->ucount +
					       bpf_core_enum_value(enum ucount_type___of_limits,
								   UCOUNT_RLIMIT_SIGPENDING___in_ucount) *
						       sizeof(atomic_long_t)));
	return pending;
}

/* All that he has made and that still is, whoever or whatever keeps it: processes, descriptors, mounts. How many
 * mounts there are in each nobody tells; a new one is a copy of the one around, so each is taken to have as many
 * as the one that `task` is in. */
static __always_inline __s64 namespace_bytes_of(struct task_struct *task)
{
	struct ucounts *counts = counts_of(task);
	__s64 count[NAMESPACE_KINDS] = {}, bytes;
	int i;

	if (counts)
		bpf_core_read(count, sizeof(count), &counts->ucount);
	bytes = count[UCOUNT_MNT_NAMESPACES] * mounts_around((__u64)task) * MOUNT_BYTES;
	for (i = 0; i < NAMESPACE_KINDS; i++)
		bytes += count[i] * namespace_bytes[i];
	return bytes;
}

#endif /* BURSAR_USER_COUNTS_BPF_H */
