/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Work that is due at a time, on kernels that refuse bpf_timer (PREEMPT_RT). Whoever runs is met by its CPU's next clock
 * interrupt, or when it gives up the CPU before: the time is looked at there, and what is due is done by the thread of this
 * CPU that works for interrupts, where it may be preempted (docs/design/15-re-sum-without-timers.md).
 *
 * That thread does what bpf_send_signal() cannot do in an interrupt, for sending one takes a lock that sleeps there. We
 * send signal 0, which is nothing, and attach to the function that sends.
 *
 * Context: defer_due_work(): hard interrupt, the scheduler with its locks, or an event. What is due: the thread
 *          irq_work/N, SCHED_FIFO 1.
 * Cost:    a look at jiffies for each high-resolution timer and each switch of tasks. An idle CPU is not woken.
 */
#ifndef BURSAR_DEFERRED_BPF_H
#define BURSAR_DEFERRED_BPF_H

#include "event.bpf.h"

struct kernel_siginfo;

const volatile bool has_timers = true;	/* bpf_timer is to be had */

/* CLOCK_MONOTONIC; 0: nobody has asked for it yet. */
struct due_times {
	__u64 resum_ns;
	__u64 files_ns;
	__u64 decisions_ns;	/* since when some account wants one; 0: none does */
	__u64 deferred_ns;	/* when a thread was last asked */
	__u64 looked_jiffies;	/* when somebody last looked whether anything is due */
};

/* Written by who does the work, for the next time; read by all clock interrupts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct due_times);
} due_times SEC(".maps");

static __always_inline struct due_times *due_times_of(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&due_times, &zero);
}

static __always_inline bool is_past(const __u64 *due, __u64 now)
{
	__u64 at = *(volatile __u64 *)due;

	return at && now >= at;
}

/* Of those who find it due one does it; the others find it due later. */
static __always_inline bool take_turn(__u64 *due, __u64 now, __u64 next)
{
	__u64 at = *(volatile __u64 *)due;

	return at && now >= at && __sync_val_compare_and_swap(due, at, next) == at;
}

enum { DEFER_PAUSE_NS = 10000000 };	/* between two that ask: a thread may have to wait for its CPU */

/* Somebody of the machine looks in each tick of its clock. Not a CPU that idles or runs a thread of the kernel's: no signal
 * of any number is sent from there. */
static __always_inline bool looks_now(struct due_times *due)
{
	struct task_struct *me = bpf_get_current_task_btf();
	__u64 jiffies = bpf_jiffies64();

	if (due->looked_jiffies == jiffies || !me->mm || (me->flags & (PF_KTHREAD | PF_EXITING)))
		return false;
	due->looked_jiffies = jiffies;
	return true;
}

static __always_inline void defer_due_work(struct due_times *due, __u64 now)
{
	if (may_tell(&due->deferred_ns, DEFER_PAUSE_NS, now) && bpf_send_signal(0)) {
		/* The next who looks asks again, and need not wait for another tick. */
		due->deferred_ns = 0;
		due->looked_jiffies = 0;
	}
}

/* Whether it is ours: kill(2) has somebody to tell of, and a process that switches consoles (VT_SETMODE with signal 0) does
 * so itself or has a worker of SCHED_OTHER do it. */
static __always_inline bool is_deferred(int sig, const struct kernel_siginfo *info)
{
	enum { SEND_SIG_PRIV = 1 };	/* include/linux/sched/signal.h */
	enum { FIFO = 1 };	/* include/uapi/linux/sched.h SCHED_FIFO: the thread's own class */
	struct task_struct *me = bpf_get_current_task_btf();

	return !sig && (__u64)info == SEND_SIG_PRIV && (me->flags & PF_KTHREAD) && me->policy == FIFO;
}

#endif /* BURSAR_DEFERRED_BPF_H */
