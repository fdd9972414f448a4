// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sees every SIGKILL on its way to a process of the bench, whoever sends it, and writes down what all
 * of them held at that moment. The same witness for every contender; it asks none of them.
 *
 * Hooks:   tp_btf/signal_generate, in the sender's context.
 * Shares:  struct board, which the bench's processes map and keep their own page counts in.
 */
#include "compat.bpf.h"
#include "board.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct board);
} boards SEC(".maps");

static __always_inline int write_down(struct board *board, int tgid)
{
	__u64 held = 0, at;
	int i, victim = -1;

	for (i = 0; i < BOARD_SLOTS; i++) {
		struct slot *slot = &board->slots[i];

		if (!slot->pid || slot->is_dead)
			continue;
		held += slot->pages;
		if (slot->pid == (__u64)tgid)
			victim = i;
	}
	if (victim < 0 || victim >= BOARD_SLOTS)
		return 0;
	if (__sync_lock_test_and_set(&board->slots[victim].is_dead, 1))
		return 0;
	at = __sync_fetch_and_add(&board->kills, 1);
	if (at >= BOARD_KILLS)
		return 0;
	board->killed[at].time_ns = bpf_ktime_get_ns();
	board->killed[at].held_pages = held;
	board->killed[at].pid = tgid;
	board->killed[at].victim_pages = board->slots[victim].pages;
	return 0;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(bench_observer, int sig, void *info, struct task_struct *task)
{
	__u32 zero = 0;
	struct board *board = bpf_map_lookup_elem(&boards, &zero);

	return board && sig == SIGKILL ? write_down(board, task->tgid) : 0;
}

char LICENSE[] SEC("license") = "GPL";
