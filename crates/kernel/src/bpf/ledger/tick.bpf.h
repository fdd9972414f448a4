/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The reliable trigger: every 200 ms each account is re-summed, and what that finds is acted on (S1 3.3). It runs with
 * no process of ours alive. Who calls: the kernel's timer (resum_timer.bpf.h), or what stands for it where there is
 * none (resum_deferred.bpf.h).
 *
 * Cost:    about a quarter microsecond a process of the machine each interval.
 * Absent:  without the open-coded task iterator (before 6.7) the re-sum reads what the ledger knows
 *          and leaves finding missed processes to discover.bpf.h, run by bursard.
 */
#ifndef BURSAR_TICK_BPF_H
#define BURSAR_TICK_BPF_H

#include "delegate.bpf.h"
#include "resum.bpf.h"
#include "shortage.bpf.h"

const volatile bool hears_events = true;	/* else nothing tells of a fork */

/* Sooner, to try a kill again from elsewhere: but after the busy CPU's own next clock interrupt, else a timer does not
 * go there. */
enum { RETRY_MS = 20 };

static __always_inline void meet_tasks(struct ledger_state *state, struct resum *resum)
{
	struct bpf_iter_task it;
	struct task_struct *task;

	if (!bpf_ksym_exists(bpf_iter_task_new))
		return;
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, NULL, 0 /* BPF_TASK_ITER_ALL_PROCS */);
	while ((task = bpf_iter_task_next(&it)))
		meet_task(task, resum);
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
}

enum { RESUM_STALE_NS = 2000000000 };	/* one cannot take this long: its mark is a leftover */

static __always_inline void resum(struct ledger_state *state, __u64 start)
{
	struct resum resum = { .trigger = TRIGGER_TIMER, .running = RUNNING_OWN };
	bool is_wanted, all, walks;
	__u64 since, spent;

	/* Both timers may fire at once when one is started out of turn. */
	since = *(volatile __u64 *)&state->resuming_ns;
	if ((since && ns_since(since, start) < RESUM_STALE_NS) ||
	    __sync_val_compare_and_swap(&state->resuming_ns, since, start) != since)
		return;
	state->resummed_ns = start;
	is_wanted = __sync_lock_test_and_set(&state->walk_wanted, 0);
	/* Nothing else tells of what has begun or grown. */
	all = is_wanted || state->unrecorded || !hears_events ||
	      !bpf_ksym_exists(bpf_iter_task_new);
	walks = bpf_ksym_exists(bpf_iter_task_new) && (all || state->ticket >= state->next_walk_ticket);
	if (walks) {
		state->next_walk_ticket = state->ticket + WALK_EVERY - 1;
		begin_walk(state, &resum, all);
		meet_tasks(state, &resum);
		end_walk(state, &resum);
	}
	if (!walks || all)
		resum_records(state, &resum, all);
	if (!bpf_ksym_exists(bpf_iter_task_new) && (state->unrecorded || !hears_events))
		ask_for_a_walk(state, TRIGGER_TIMER);
	spent = bpf_ktime_get_ns() - start;
	state->resum_ns = spent;
	if (spent > state->resum_max_ns)
		state->resum_max_ns = spent;
	__sync_val_compare_and_swap(&state->resuming_ns, start, 0);
	__sync_fetch_and_add(&state->resums, 1);
}

static __always_inline bool is_resum_due(const struct ledger_state *state, __u64 now)
{
	return state->walk_wanted || ns_since(state->resummed_ns, now) > (RESUM_INTERVAL_MS - RETRY_MS) * 1000000ULL;
}

#endif /* BURSAR_TICK_BPF_H */
