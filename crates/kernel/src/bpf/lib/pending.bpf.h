/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel itself counts for the user who pays. */
#ifndef BURSAR_PENDING_BPF_H
#define BURSAR_PENDING_BPF_H

#include "payer.bpf.h"

/* Queued signals of the user who pays for `task`: inc_rlimit_ucounts() counts in every namespace up to
 * the outermost one, and the outermost of those is the one we want that is his (userns.bpf.h). */
static __always_inline __s64 pending_signals_of(struct task_struct *task)
{
	const struct cred *cred = task->real_cred;
	struct ucounts *counts, *his;
	struct user_namespace *ns;
	__s64 pending = 0;
	int level, i;

	if (!cred || !bpf_core_field_exists(((struct ucounts *)0)->rlimit))
		return 0;
	counts = cred->ucounts;
	if (!counts)
		return 0;
	his = counts;
	ns = counts->ns;
	level = ns ? ns->level : 0;
	for (i = 0; i < USERNS_DEPTH && level > 0; i++) {
		counts = ns->ucounts;
		if (!counts)
			return 0;
		if (ns->owner.val)
			his = counts;
		ns = counts->ns;
		level = ns ? ns->level : 0;
	}
	/* an element of an array of these: no plain load in 6.1's verifier */
	bpf_core_read(&pending, sizeof(pending), &his->rlimit[UCOUNT_RLIMIT_SIGPENDING].counter);
	return pending;
}

#endif /* BURSAR_PENDING_BPF_H */
