/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The reliable trigger: a timer in the kernel that re-sums every account and acts on what it finds
 * (S1 3.3). It runs with no process of ours alive, for as long as its map is pinned.
 *
 * Context: softirq (bpf_timer).
 * Cost:    about a quarter microsecond a process of the machine each interval.
 * Absent:  without the open-coded task iterator (before 6.7) the timer audits what the ledger knows
 *          and leaves finding missed processes to discover.bpf.h, run by bursard.
 */
#ifndef BURSAR_RESUM_TIMER_BPF_H
#define BURSAR_RESUM_TIMER_BPF_H

#include "delegate.bpf.h"
#include "resum.bpf.h"
#include "shortage.bpf.h"

const volatile bool hears_events = true;	/* else nothing tells of a fork */

/*
 * Two timers that start each other. A timer started from its own callback stays on its CPU for ever
 * (kernel/time/hrtimer.c switch_hrtimer_base()), and no signal can be sent from a CPU that idles; one
 * started by another timer goes to a CPU that is busy, if there is one (get_nohz_timer_target()).
 */
enum { RESUM_TIMERS = 2 };

/* Sooner, to try again from elsewhere: but after the busy CPU's own next tick, else it does not go. */
enum { RETRY_MS = 20 };

struct resum_timer {
	struct bpf_timer timer;
	__u32 initialised;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RESUM_TIMERS);
	__type(key, __u32);
	__type(value, struct resum_timer);
} resum_timers SEC(".maps");

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
	if ((since && start - since < RESUM_STALE_NS) ||
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
		audit(state, &resum, all);
	if (!bpf_ksym_exists(bpf_iter_task_new) && (state->unrecorded || !hears_events))
		ask_for_a_walk(state, TRIGGER_TIMER);
	spent = bpf_ktime_get_ns() - start;
	state->resum_ns = spent;
	if (spent > state->resum_max_ns)
		state->resum_max_ns = spent;
	state->resuming_ns = 0;
	__sync_fetch_and_add(&state->resums, 1);
}

static int on_tick(void *map, __u32 *key, struct resum_timer *timer)
{
	struct ledger_state *state;
	struct resum_timer *other;
	__u32 next;
	__u64 now;

	/* First, while nothing has to be kept for later: 6.1 has 512 bytes of stack for all that follows. */
	watch_for_shortage();
	next = *key ^ 1;
	other = bpf_map_lookup_elem(&resum_timers, &next);
	state = ledger_state();
	now = bpf_ktime_get_ns();
	if (!state || !other)
		return 0;
	if (state->walk_wanted || now - state->resummed_ns > (RESUM_INTERVAL_MS - RETRY_MS) * 1000000ULL)
		resum(state, now);
	else if (state->kills_wanted)
		retry_kills(TRIGGER_TIMER, RUNNING_OWN);
	bpf_timer_start(&other->timer,
			(state->kills_wanted ? RETRY_MS : RESUM_INTERVAL_MS) * 1000000ULL, 0);
	return 0;
}

static __always_inline int init_timer(__u32 key)
{
	struct resum_timer *timer = bpf_map_lookup_elem(&resum_timers, &key);
	int err;

	if (!timer)
		return -22;
	if (__sync_val_compare_and_swap(&timer->initialised, 0, 1))
		return 0;
	err = bpf_timer_init(&timer->timer, &resum_timers, 1 /* CLOCK_MONOTONIC */);
	return err ? err : bpf_timer_set_callback(&timer->timer, on_tick);
}

/* Arms the timer; called again, it makes the next re-sum happen at once. */
static __always_inline int start_resum_timers(void)
{
	__u32 zero = 0;
	struct resum_timer *timer = bpf_map_lookup_elem(&resum_timers, &zero);
	struct ledger_state *state = ledger_state();
	int err;

	if (!timer || !state)
		return -22;
	err = init_timer(0);
	if (!err)
		err = init_timer(1);
	if (err)
		return err;
	state->timer_walks_tasks = bpf_ksym_exists(bpf_iter_task_new);
	state->timer_running = 1;
	state->walk_wanted = 1;
	return bpf_timer_start(&timer->timer, 0, 0);
}

#endif /* BURSAR_RESUM_TIMER_BPF_H */
