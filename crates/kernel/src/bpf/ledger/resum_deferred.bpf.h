/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ticks without timers of the kernel's (lib/deferred.bpf.h). A thread of the kernel's cannot send a signal to others: whom
 * it chooses is marked, and the next look at the time from a CPU that runs a process sends it.
 */
#ifndef BURSAR_RESUM_DEFERRED_BPF_H
#define BURSAR_RESUM_DEFERRED_BPF_H

#include <asm-generic/errno.h>

#include "deferred.bpf.h"
#include "tick.bpf.h"

/* Kills are tried not more often than by timers. */
static __always_inline int look_at_clock(void)
{
	struct due_times *due = due_times_of();
	struct ledger_state *state = ledger_state();
	__u64 now;

	if (!due || !state || !due->resum_ns || !looks_now(due))
		return 0;
	now = bpf_ktime_get_ns();
	if (state->kills_wanted && ns_since(state->last_retry_ns, now) > RETRY_MS * 1000000ULL)
		retry_kills(DECISION_OF_CLOCK, RUNNING_OWN);
	if (is_past(&due->resum_ns, now) || is_past(&due->files_ns, now) || is_past(&due->decisions_ns, now))
		defer_due_work(due, now);
	return 0;
}

enum { DECISION_PAUSE_NS = 1000000 };	/* between two rounds of decisions: they go before everybody else's work */

/* What its events have left to the thread. */
static __always_inline long catch_up(__u32 slot, void *nothing)
{
	struct account *account = account_at(slot);

	if (!account || !account->near)
		return 0;
	if (account->near == NEAR || account->near == EXACT)	/* what idle processes have kept back no event tells */
		decide(slot, TRIGGER_TIMER, RUNNING_OTHER);
	react(slot, account->held_pages, TRIGGER_TIMER, RUNNING_OTHER);
	return 0;
}
LOOP_BODY(catch_up, void *, accounts_made())

static __always_inline int tick_if_due(void)
{
	struct due_times *due = due_times_of();
	struct ledger_state *state = ledger_state();
	__u64 now = bpf_ktime_get_ns();

	if (!due || !state)
		return 0;
	/* Who was asked for is here, and may be asked again after a pause. */
	due->deferred_ns = now - DEFER_PAUSE_NS + DECISION_PAUSE_NS;
	if (take_turn(&due->decisions_ns, now, 0))
		LOOP(catch_up, NULL);
	if (!take_turn(&due->resum_ns, now, now + RESUM_INTERVAL_MS * 1000000ULL))
		return 0;
	watch_for_shortage();
	if (is_resum_due(state, now))
		resum(state, now);
	return 0;
}

/* The caller waits for the re-sum, and is met when it goes to sleep. */
static __always_inline int start_deferred_ticks(void)
{
	struct due_times *due = due_times_of();

	if (!due)
		return -EINVAL;
	due->resum_ns = bpf_ktime_get_ns();
	return 0;
}

#endif /* BURSAR_RESUM_DEFERRED_BPF_H */
