/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Finding processes that were there before the ledger, or before their user had a limit, where the
 * timer does not walk tasks itself (before 6.7, or without the timer trigger): bursard reads this iterator when it starts and when
 * a limit is set.
 *
 * Cost:    about a microsecond a thread of the machine, in bursard's own time.
 */
#ifndef BURSAR_DISCOVER_BPF_H
#define BURSAR_DISCOVER_BPF_H

#include "resum.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct resum);
} walk_under_way SEC(".maps");	/* one reader at a time: bursard */

static __always_inline int meet_in_walk(struct bpf_iter__task *ctx)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *task = ctx->task;
	__u32 zero = 0;
	struct resum *resum = bpf_map_lookup_elem(&walk_under_way, &zero);

	if (!resum || !state)
		return 0;
	if (!ctx->meta->seq_num) {
		__builtin_memset(resum, 0, sizeof(*resum));
		resum->trigger = TRIGGER_NOTIFIER;
		begin_walk(state, resum, true);
	}
	if (task) {
		meet_task(task, resum);
	} else { /* after the last one */
		struct resum end = *resum;

		end_walk(state, &end);
	}
	return 0;
}

#endif /* BURSAR_DISCOVER_BPF_H */
