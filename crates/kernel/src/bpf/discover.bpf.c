// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finding processes that were there before the ledger, or before their user had a limit, where the
 * timer cannot walk tasks itself (before 6.7): bursard reads this iterator when it starts and when
 * a limit is set.
 *
 * Hooks:   iter/task.
 * Cost:    about a microsecond a thread of the machine, in bursard's own time.
 */
#include "resum.bpf.h"

SEC("iter/task")
int meet_every_task(struct bpf_iter__task *ctx)
{
	struct ledger_state *state = ledger_state();
	struct task_struct *task = ctx->task;
	struct resum resum = { .trigger = TRIGGER_TIMER };

	if (!task || !state)
		return 0;
	resum.ticket = state->ticket;
	meet_task(state, task, &resum);
	if (resum.found) {
		__sync_fetch_and_add(&state->missed_processes, 1);
		__sync_fetch_and_add(&state->generation, 1);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
