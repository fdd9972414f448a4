/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes that nobody pays for, because something else limits them already: those in control groups that an
 * administrator has named, of version 2 or of version 1's memory controller, and below these. A group that belongs to a user, and what is below it, is none of them:
 * its owner may move processes there. That is looked at here, not by the user half, which may come late or be dead.
 *
 * Cost: a load and a compare while there are none; else a walk up from the task's two groups each time that it is found
 * out who pays.
 */
#ifndef BURSAR_EXEMPT_BPF_H
#define BURSAR_EXEMPT_BPF_H

#include "maps.bpf.h"

enum {
	CGROUP_LEVELS = 32,	/* deeper ones are counted */
	EXEMPT_SELF = 1,	/* it, and what is below it */
	EXEMPT_BELOW = 2,	/* only what is below it */
	EXEMPT_NOT = 4,		/* neither: others may move processes there */
	EXEMPT_BITS = 4,	/* for each hierarchy */
};

enum exempt_hierarchy {
	HIERARCHY_UNIFIED,
	HIERARCHY_MEMORY,	/* version 1 */
};

/* Where the payer's account would stand: no account has this id. */
#define NOBODYS_ID (3ULL << KIND_SHIFT)

static __always_inline bool is_users_own(__u64 node)
{
	__u64 attributes = (__u64)FAR_READ(node, struct kernfs_node, iattr);

	return attributes && FAR_READ(attributes, struct kernfs_iattrs, ia_uid.val);
}

static __always_inline __u64 group_of_css(__u64 css)
{
	return css ? (__u64)FAR_READ(css, struct cgroup_subsys_state, cgroup) : 0;
}

/* Where the memory controller is in the unified hierarchy, both are in that one. */
static __always_inline __u64 group_in(__u64 task, enum exempt_hierarchy hierarchy)
{
	__u64 set = (__u64)FAR_READ(task, struct task_struct, cgroups);

	if (hierarchy == HIERARCHY_UNIFIED)
		return (__u64)FAR_READ(set, struct css_set, dfl_cgrp);
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return 0;
	set += sizeof(void *) * bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	return group_of_css((__u64)FAR_READ(set, struct css_set, subsys[0]));
}

static __always_inline int is_exempt_in(__u64 group, enum exempt_hierarchy hierarchy)
{
	__u64 node, id;
	__u32 *found, bits;
	int i;

	for (i = 0; i < CGROUP_LEVELS && group; i++) {
		node = (__u64)FAR_READ(group, struct cgroup, kn);
		if (is_users_own(node))
			return 0;
		id = FAR_READ(node, struct kernfs_node, id);
		found = bpf_map_lookup_elem(&exempt_cgroups, &id);
		bits = found ? *found >> (hierarchy ? EXEMPT_BITS : 0) : 0;
		if (bits & EXEMPT_NOT)
			return 0;
		if (bits & (i ? EXEMPT_SELF | EXEMPT_BELOW : EXEMPT_SELF))
			return 1;
		group = group_of_css((__u64)FAR_READ(group, struct cgroup, self.parent));
	}
	return 0;
}

/* Global: verified once, not at each place that asks who pays. One frame: there is no room for another. */
__noinline int is_exempt(__u64 task)
{
	struct ledger_state *state = ledger_state();

	if (!state || !state->exempts_cgroups ||
	    !bpf_core_field_exists(((struct task_struct *)0)->cgroups))
		return 0;
	return is_exempt_in(group_in(task, HIERARCHY_UNIFIED), HIERARCHY_UNIFIED) ||
	       is_exempt_in(group_in(task, HIERARCHY_MEMORY), HIERARCHY_MEMORY);
}

#endif /* BURSAR_EXEMPT_BPF_H */
