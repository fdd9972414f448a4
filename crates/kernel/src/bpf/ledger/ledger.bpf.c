// SPDX-License-Identifier: GPL-2.0-only
/*
 * The programs that every kernel half has. One object, because each costs a start a reading of the kernel's types and
 * a search of them for those that it names, and these name the same ones.
 *
 * Hooks:   tp_btf/rss_stat, in the context that changes a resident set;
 *          tp_btf/exit_mmap, when an address space ends;
 *          tp_btf/sched_process_exec, in the process that has executed a program;
 *          tp_btf/cgroup_attach_task, in whoever moves a process to another control group;
 *          tp_btf/signal_generate, with the receiver's signal lock held;
 *          iter/task, read by bursard;
 *          SEC("syscall"), by BPF_PROG_TEST_RUN, in the caller's context: root's, by bpf(2)'s own rule;
 *          bpf_timer (softirq), armed by start_timer.
 */
#include "charge.bpf.h"
#include "calls.bpf.h"
#include "resum_timer.bpf.h"
#include "discover.bpf.h"
#include "survey.bpf.h"
#include "death.bpf.h"
#include "exempt_move.bpf.h"

struct kernel_siginfo;

SEC("tp_btf/rss_stat")
int BPF_PROG(on_rss_stat, struct mm_struct *mm, int member)
{
	return charge_rss(mm, member);
}

SEC("tp_btf/exit_mmap")
int BPF_PROG(on_exit_mmap, struct mm_struct *mm)
{
	forget_who_answers(mm);
	return end_address_space(mm);
}

SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int sig, struct kernel_siginfo *info, struct task_struct *task)
{
	return hear_signal(task);
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
	return settle_whoever_is_over(args);
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
int begin_survey(struct begin_survey_args *args)
{
	return list_sharers(args);
}

SEC("syscall")
int end_survey(struct end_survey_args *args)
{
	return take_correction(args);
}

SEC("syscall")
int start_timer(void *ctx)
{
	return start_resum_timers();
}

char LICENSE[] SEC("license") = "GPL";
