// SPDX-License-Identifier: GPL-2.0-only
/*
 * The reliable trigger: a timer in the kernel that re-sums every account and acts on what it finds
 * (S1 3.3). It runs with no process of ours alive, for as long as its map is pinned.
 *
 * Hooks:   bpf_timer (softirq), armed by SEC("syscall") start_timer.
 * Cost:    about a quarter microsecond a process of the machine each interval.
 * Absent:  without the open-coded task iterator (before 6.7) the timer audits what the ledger knows
 *          and leaves finding missed processes to discover.bpf.c, run by bursard.
 */
#include "resum.bpf.h"

struct ticker {
	struct bpf_timer timer;
	__u32 initialised;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ticker);
} tickers SEC(".maps");

static __always_inline void meet_tasks(struct ledger_state *state, struct resum *resum)
{
	struct bpf_iter_task it;
	struct task_struct *task;

	if (!bpf_ksym_exists(bpf_iter_task_new))
		return;
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, NULL, 0 /* BPF_TASK_ITER_ALL_PROCS */);
	while ((task = bpf_iter_task_next(&it)))
		meet_task(state, task, resum);
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
}

static int on_tick(void *map, __u32 *key, struct ticker *ticker)
{
	struct ledger_state *state = ledger_state();
	struct resum resum = { .trigger = TRIGGER_TIMER };
	__u64 start = bpf_ktime_get_ns(), spent;

	if (!state)
		return 0;
	resum.ticket = __sync_fetch_and_add(&state->ticket, 1) + 1;
	meet_tasks(state, &resum);
	audit(state, &resum);
	spent = bpf_ktime_get_ns() - start;
	state->resum_ns = spent;
	if (spent > state->resum_max_ns)
		state->resum_max_ns = spent;
	state->resums++;
	bpf_timer_start(&ticker->timer, RESUM_INTERVAL_MS * 1000000ULL, 0);
	return 0;
}

/* Arms the timer; called again, it makes the next re-sum happen at once. */
SEC("syscall")
int start_timer(void *ctx)
{
	__u32 zero = 0;
	struct ticker *ticker = bpf_map_lookup_elem(&tickers, &zero);
	struct ledger_state *state = ledger_state();
	int err;

	if (!ticker || !state)
		return -22;
	if (!__sync_val_compare_and_swap(&ticker->initialised, 0, 1)) {
		err = bpf_timer_init(&ticker->timer, &tickers, 1 /* CLOCK_MONOTONIC */);
		if (!err)
			err = bpf_timer_set_callback(&ticker->timer, on_tick);
		if (err)
			return err;
		state->timer_running = 1;
		state->timer_walks_tasks = bpf_ksym_exists(bpf_iter_task_new);
		state->signals_others = can_signal_others();
	}
	return bpf_timer_start(&ticker->timer, 0, 0);
}

char LICENSE[] SEC("license") = "GPL";
