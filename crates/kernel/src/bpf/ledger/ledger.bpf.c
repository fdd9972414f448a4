// SPDX-License-Identifier: GPL-2.0-only
/*
 * The programs that every kernel half has. One object, because each costs a start a reading of the kernel's types and
 * a search of them for those that it names, and these name the same ones.
 *
 * Hooks:   tp_btf/rss_stat, in the context that changes a resident set;
 *          tp_btf/exit_mmap, or where there is none fexit/exit_mmap, when an address space ends;
 *          tp_btf/sched_process_exec, in the process that has executed a program;
 *          tp_btf/cgroup_attach_task, in whoever moves a process to another control group;
 *          tp_btf/signal_generate, with the receiver's signal lock held;
 *          iter/task, read by bursard;
 *          SEC("syscall"), by BPF_PROG_TEST_RUN, in the caller's context: root's, by bpf(2)'s own rule;
 *          bpf_timer (softirq), armed by start_timer; or, where that is refused,
 *          tp_btf/hrtimer_expire_entry, in a clock interrupt, tp_btf/sched_switch, and
 *          fentry/group_send_sig_info, in the thread that works for interrupts.
 */
#include <asm-generic/errno.h>

#include "charge.bpf.h"
#include "calls.bpf.h"
#include "resum_timer.bpf.h"
#include "resum_deferred.bpf.h"
#include "discover.bpf.h"
#include "pss_scan.bpf.h"
#include "death.bpf.h"
#include "exempt_move.bpf.h"

/* Events as the user half took them from the ring, until they are recorded: it alone writes and reads here, and the map
 * outlives it (events_in_hand.rs). Bound: TAKEN_EVENTS. Full: the oldest is overwritten, which is counted at its next
 * start. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TAKEN_EVENTS);
	__type(key, __u32);
	__type(value, struct event);
} taken_events SEC(".maps");

SEC("tp_btf/rss_stat")
int BPF_PROG(on_rss_stat, struct mm_struct *mm, int member)
{
	hold_cpu();
	charge_rss(mm, member);
	release_cpu();
	return 0;
}

SEC("tp_btf/exit_mmap")
int BPF_PROG(on_exit_mmap, struct mm_struct *mm)
{
	hold_cpu();
	forget_who_answers(mm);
	end_address_space(mm);
	release_cpu();
	return 0;
}

/* The same before 6.1 (4f5d33b51a69 "mm: add tracepoint for exit_mmap"): its events, one for each mapping, are over when
 * the function returns. */
SEC("fexit/exit_mmap")
int BPF_PROG(on_exit_mmap_return, struct mm_struct *mm)
{
	forget_who_answers(mm);
	end_address_space(mm);
	return 0;
}

SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int sig, struct kernel_siginfo *info, struct task_struct *task)
{
	hold_cpu();
	hear_signal(task);
	release_cpu();
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec)
{
	return note_exec();
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_cgroup_move, struct cgroup *group, const char *path, struct task_struct *task)
{
	return note_move(task);
}

SEC("iter/task")
int meet_every_task(struct bpf_iter__task *ctx)
{
	return meet_in_walk(ctx);
}

/* S1's three calls: set_limit is its set_mm_limit; get_mm_limit is the accounts map, mapped read-only. */
SEC("syscall")
int set_limit(struct set_limit_args *args)
{
	return store_bounds(args);
}

SEC("syscall")
int run_oom_killer(struct run_killer_args *args)
{
	return decide_whoever_is_over(args);
}

SEC("syscall")
int prepare(void *ctx)
{
	return learn_cpu_offsets();
}

SEC("syscall")
int open_account(struct open_account_args *args)
{
	return open_for(args);
}

SEC("syscall")
int close_account(struct open_account_args *args)
{
	return let_nobody_pay(args);
}

SEC("syscall")
int configure(struct configure_args *args)
{
	return store_configuration(args);
}

SEC("syscall")
int set_subordinates(struct set_subordinates_args *args)
{
	return switch_subordinates(args);
}

SEC("syscall")
int promise(struct promise_args *args)
{
	return store_promise(args);
}

SEC("syscall")
int watch(struct watch_args *args)
{
	return store_watch(args);
}

SEC("syscall")
int identify_program(struct identify_args *args)
{
	return identify(args);
}

SEC("syscall")
int begin_pss_scan(struct begin_pss_scan_args *args)
{
	return list_sharers(args);
}

SEC("syscall")
int end_pss_scan(struct end_pss_scan_args *args)
{
	return take_correction(args);
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(on_clock)
{
	return look_at_clock();
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch)
{
	return look_at_clock();
}

SEC("fentry/group_send_sig_info")
int BPF_PROG(on_deferred, int sig, struct kernel_siginfo *info)
{
	return is_deferred(sig, info) ? tick_if_due() : 0;
}

static __always_inline struct ledger_state *begin_ticks(void)
{
	struct ledger_state *state = ledger_state();

	if (state) {
		state->timer_walks_tasks = bpf_ksym_exists(bpf_iter_task_new);
		state->timer_running = 1;
		state->walk_wanted = 1;
	}
	return state;
}

SEC("syscall")
int start_timer(void *ctx)
{
	return begin_ticks() ? start_resum_timers() : -EINVAL;
}

/* Instead of start_timer. A program of its own: in the other one 6.1 would count the frames of a timer's callback on top
 * of its own where no timer is ever armed, and there is room for 8. */
SEC("syscall")
int start_deferred(void *ctx)
{
	return begin_ticks() ? start_deferred_ticks() : -EINVAL;
}

char LICENSE[] SEC("license") = "GPL";
