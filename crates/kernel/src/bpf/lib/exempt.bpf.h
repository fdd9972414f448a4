/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes that nobody pays for, because something else limits them already: those in control groups that an
 * administrator has named, of version 2 or of version 1's memory controller, and below these. A group that belongs to a
 * user, and what is below it, is none of them: its owner may move processes there. That is looked at here, not by the
 * user half, which may come late or be dead.
 *
 * Cost: a load and a compare while there are none; else a walk up from the task's two groups each time that it is found
 * out who pays.
 */
#ifndef BURSAR_EXEMPT_BPF_H
#define BURSAR_EXEMPT_BPF_H

#include "loop.bpf.h"
#include "maps.bpf.h"
#include "memory_css.bpf.h"

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
	__u64 attributes = (__u64)PROBE_READ(node, struct kernfs_node, iattr);

	return attributes && PROBE_READ(attributes, struct kernfs_iattrs, ia_uid.val);
}

static __always_inline __u64 group_of_css(__u64 css)
{
	return css ? (__u64)PROBE_READ(css, struct cgroup_subsys_state, cgroup) : 0;
}

/* Where the memory controller is in the unified hierarchy, both are in that one. */
static __always_inline __u64 group_in(__u64 task, enum exempt_hierarchy hierarchy)
{
	if (hierarchy == HIERARCHY_UNIFIED)
		return (__u64)PROBE_READ((__u64)PROBE_READ(task, struct task_struct, cgroups), struct css_set, dfl_cgrp);
	return group_of_css(memory_css_of(task));
}

/* On the way up from a group. */
struct ascent {
	__u64 group;
	__u32 shift;	/* of its hierarchy's bits */
	int is_exempt;
};

static __always_inline long look_at_group(__u32 level, struct ascent *ascent)
{
	__u64 node = (__u64)PROBE_READ(ascent->group, struct cgroup, kn);
	__u64 id = PROBE_READ(node, struct kernfs_node, id);
	__u32 *found, bits;

	if (is_users_own(node))
		return 1;
	found = bpf_map_lookup_elem(&exempt_cgroups, &id);
	if (found) {
		bits = *found >> ascent->shift;
		if (bits & EXEMPT_NOT)
			return 1;
		if (bits & (level ? EXEMPT_SELF | EXEMPT_BELOW : EXEMPT_SELF)) {
			ascent->is_exempt = 1;
			return 1;
		}
	}
	ascent->group = group_of_css((__u64)PROBE_READ(ascent->group, struct cgroup, self.parent));
	return !ascent->group;
}
LOOP_BODY(look_at_group, struct ascent *, CGROUP_LEVELS)

/* Global, and a loop's body instead of 32 levels written out: verified once, not at each place that asks who pays. */
__noinline int is_exempt_in(__u64 task, __u32 hierarchy)
{
	struct ledger_state *state = ledger_state();
	struct ascent ascent = { .shift = hierarchy * EXEMPT_BITS };

	if (!state || !state->exempts_cgroups ||
	    !bpf_core_field_exists(((struct task_struct *)0)->cgroups))
		return 0;
	ascent.group = group_in(task, hierarchy);
	if (ascent.group)
		LOOP(look_at_group, &ascent);
	return ascent.is_exempt;
}

static __always_inline bool is_exempt(__u64 task)
{
	return is_exempt_in(task, HIERARCHY_UNIFIED) || is_exempt_in(task, HIERARCHY_MEMORY);
}

#endif /* BURSAR_EXEMPT_BPF_H */
