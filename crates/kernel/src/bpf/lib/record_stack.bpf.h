/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records that are free: given back, and taken again before a fresh one is.
 */
#ifndef BURSAR_RECORD_STACK_BPF_H
#define BURSAR_RECORD_STACK_BPF_H

#include "maps.bpf.h"

/*
 * Records given back lie on a stack, so that those in use stay dense. A map of type queue would do the
 * same, but programs that may sleep cannot use one before 6.2. A lost race is tried again; who loses
 * every time takes a fresh record (pop) or leaves one unused (push), counted in records_leaked.
 */
enum { STACK_TRIES = 32 };

/* In a free record stands, where it had its account, the next free one: with this bit, which no account has. */
#define FREE_LINK (1U << 31)

/* Global, as are the next one and close_record(): the verifier goes through it once, and not for each state of
 * its callers. */
__noinline __u32 pop_record(void)
{
	struct ledger_state *state = ledger_state();
	int i;

	if (!state)
		return NOBODY;
	for (i = 0; i < STACK_TRIES; i++) {
		__u64 top = *(volatile __u64 *)&state->free_records, next;
		struct mm_record *record;
		__u32 link;

		if (!(__u32)top)
			return NOBODY;
		record = record_at((__u32)top - 1);
		if (!record)
			return NOBODY;
		link = *(volatile __u32 *)&record->account;
		if (!(link & FREE_LINK))	/* somebody has taken it meanwhile */
			continue;
		next = ((top >> 32) + 1) << 32 | (link & ~FREE_LINK);
		if (__sync_val_compare_and_swap(&state->free_records, top, next) == top)
			return (__u32)top - 1;
	}
	return NOBODY;
}

__noinline int push_record(__u32 index)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	int i;

	if (!state || !record)
		return 0;
	for (i = 0; i < STACK_TRIES; i++) {
		__u64 top = *(volatile __u64 *)&state->free_records, next;

		record->account = FREE_LINK | (__u32)top;
		next = ((top >> 32) + 1) << 32 | (index + 1);
		if (__sync_val_compare_and_swap(&state->free_records, top, next) == top)
			return 0;
	}
	__sync_fetch_and_add(&state->records_leaked, 1);
	return 0;
}

#endif /* BURSAR_RECORD_STACK_BPF_H */
