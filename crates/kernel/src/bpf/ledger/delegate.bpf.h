/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel half cannot do by itself on an older kernel, asked of the user half.
 */
#ifndef BURSAR_DELEGATE_BPF_H
#define BURSAR_DELEGATE_BPF_H

#include "decision.bpf.h"

/* There may be processes without a record, and the timer cannot meet them (before 6.7): the user half
 * is to walk, as often as the timer would. */
static __noinline int ask_for_a_walk(struct ledger_state *state, __u32 trigger)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	if (ns_since(state->unrecorded_told_ns, now) < (RESUM_INTERVAL_MS - 1) * 1000000ULL)
		return 0;
	/* Not in a walk's notes: one may be under way. */
	event = reserve_event(state, EVENT_UNRECORDED, trigger, now);
	if (!event)
		return 0;
	state->unrecorded_told_ns = now;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

#endif /* BURSAR_DELEGATE_BPF_H */
