/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes that nobody pays for, because something else limits them already: those in control groups (version 2) that
 * an administrator has named, and below these. A group that belongs to a user, and what is below it, is none of them:
 * its owner may move processes there. That is looked at here, not by the user half, which may come late or be dead.
 *
 * Cost: a load and a compare while there are none; else a walk up from the task's group each time that it is found out
 * who pays.
 */
#ifndef BURSAR_EXEMPT_BPF_H
#define BURSAR_EXEMPT_BPF_H

#include "maps.bpf.h"

enum {
	CGROUP_LEVELS = 32,	/* deeper ones are counted */
	EXEMPT_SELF = 1,	/* it, and what is below it */
	EXEMPT_BELOW = 2,	/* only what is below it */
};

/* Where the payer's account would stand: no account has this id. */
#define NOBODYS_ID (3ULL << KIND_SHIFT)

static __always_inline bool is_users_own(__u64 node)
{
	__u64 attributes = (__u64)FAR_READ(node, struct kernfs_node, iattr);

	return attributes && FAR_READ(attributes, struct kernfs_iattrs, ia_uid.val);
}

/* Global: verified once, not at each place that asks who pays. */
__noinline int is_exempt(__u64 task)
{
	struct ledger_state *state = ledger_state();
	__u64 group, node, css, id;
	__u32 *found;
	int i;

	if (!state || !state->exempts_cgroups ||
	    !bpf_core_field_exists(((struct task_struct *)0)->cgroups))
		return 0;
	group = (__u64)FAR_READ(FAR_READ(task, struct task_struct, cgroups), struct css_set, dfl_cgrp);
	for (i = 0; i < CGROUP_LEVELS && group; i++) {
		node = (__u64)FAR_READ(group, struct cgroup, kn);
		if (is_users_own(node))
			return 0;
		id = FAR_READ(node, struct kernfs_node, id);
		found = bpf_map_lookup_elem(&exempt_cgroups, &id);
		if (found && (*found == EXEMPT_SELF || i))
			return 1;
		css = (__u64)FAR_READ(group, struct cgroup, self.parent);
		group = css ? (__u64)FAR_READ(css, struct cgroup_subsys_state, cgroup) : 0;
	}
	return 0;
}

#endif /* BURSAR_EXEMPT_BPF_H */
