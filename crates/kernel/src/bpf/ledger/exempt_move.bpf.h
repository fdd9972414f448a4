/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A process that moves into a control group whose processes are nobody's is charged to nobody from its next event, or
 * the next re-sum, on. Whoever moves out of one is met at once: nothing else tells of it while it sleeps.
 *
 * Context: whoever moves it.
 * Cost:    a load and a compare while no group is exempt; else what it costs to find out who pays.
 * Absent:  the re-sum finds both alone, where the timer walks tasks.
 */
#ifndef BURSAR_EXEMPT_MOVE_BPF_H
#define BURSAR_EXEMPT_MOVE_BPF_H

#include "resum.bpf.h"

static __always_inline int note_move(struct task_struct *task)
{
	struct ledger_state *state = ledger_state();
	struct resum resum = {};

	if (!state || !state->exempts_cgroups || !task->mm || (task->flags & PF_KTHREAD))
		return 0;
	if (is_exempt(number_of(task))) {
		if (find_record((__u64)task->mm) != NOBODY)
			__sync_fetch_and_add(&state->generation, 1);
		return 0;
	}
	resum.task = number_of(task);
	resum.mm = number_of(task->mm);
	resum.entered = entered_of_new(task);
	meet(&resum);
	return 0;
}

#endif /* BURSAR_EXEMPT_MOVE_BPF_H */
