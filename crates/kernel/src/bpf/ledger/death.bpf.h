/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hears signals that end processes: a starved one does not run, so that nothing else tells of its end before the
 * re-sum does.
 *
 * Context: with the receiver's signal lock held.
 * Cost:    for each signal of the machine three loads and a compare; for one that ends a process of an account with
 *          enough memory what reading its record anew costs, once.
 * Absent:  the re-sum finds it, within 200 ms or what a share of it takes.
 */
#ifndef BURSAR_DEATH_BPF_H
#define BURSAR_DEATH_BPF_H

#include "resum.bpf.h"

/* Global, as meet() is. */
__noinline int hear_death(__u64 mm)
{
	struct ledger_state *state = ledger_state();
	__u32 index = find_record(mm);
	struct mm_record *record = index != NOBODY ? record_at(index) : NULL;
	/* Small ones are the re-sum's, and so is everybody while nobody wants to hear. */
	if (!state || !record || !state->deaths_from_pages || record->state != MM_LIVING || record->marked_ns ||
	    record->ctx_id != probe_ctx_id(mm) || recorded_pages(record) < (__s64)state->deaths_from_pages)
		return 0;
	look_anew(record, mm);
	book_at(record, record->account, mm);
	return 0;
}

/* The flag is set before whoever sends a fatal signal tells of it (kernel/signal.c complete_signal()), whatever its
 * number; one that dumps core is not ended by it. */
static __always_inline int hear_signal(struct task_struct *task)
{
	struct mm_struct *mm;

	if (!(task->signal->flags & SIGNAL_GROUP_EXIT))
		return 0;
	mm = task->mm;
	if (mm)
		hear_death(number_of(mm));
	return 0;
}

#endif /* BURSAR_DEATH_BPF_H */
