/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Ticks by timers of the kernel's, for as long as their map is pinned.
 *
 * Context: softirq (bpf_timer).
 * Absent:  with PREEMPT_RT: resum_deferred.bpf.h.
 */
#ifndef BURSAR_RESUM_TIMER_BPF_H
#define BURSAR_RESUM_TIMER_BPF_H

#include <asm-generic/errno.h>

#include "tick.bpf.h"

/*
 * Two timers that start each other. A timer started from its own callback stays on its CPU for ever
 * (kernel/time/hrtimer.c switch_hrtimer_base()), and no signal can be sent from a CPU that idles; one
 * started by another timer goes to a CPU that is busy, if there is one (get_nohz_timer_target()).
 */
enum { RESUM_TIMERS = 2 };

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
	if (!state || !other)
		return 0;
	now = bpf_ktime_get_ns();
	if (is_resum_due(state, now))
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
		return -EINVAL;
	if (__sync_val_compare_and_swap(&timer->initialised, 0, 1))
		return 0;
	err = bpf_timer_init(&timer->timer, &resum_timers, 1 /* CLOCK_MONOTONIC */);
	return err ? err : bpf_timer_set_callback(&timer->timer, on_tick);
}

/* Called again, it makes the next re-sum happen at once. */
static __always_inline int start_resum_timers(void)
{
	__u32 zero = 0;
	struct resum_timer *timer = bpf_map_lookup_elem(&resum_timers, &zero);
	int err;

	if (!timer)
		return -EINVAL;
	err = init_timer(0);
	if (!err)
		err = init_timer(1);
	return err ? err : bpf_timer_start(&timer->timer, 0, 0);
}

#endif /* BURSAR_RESUM_TIMER_BPF_H */
