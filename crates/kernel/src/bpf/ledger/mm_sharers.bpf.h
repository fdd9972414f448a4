/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes that share a chosen address space (clone(2) with CLONE_VM, vfork(2)): it is chosen for all of them. As long as
 * one lives its memory stays, and each could go on filling it. The kernel's own killer has the same rule (mm/oom_kill.c
 * __oom_kill_process()).
 *
 * They are met where they take a page fault, where the first of them is killed, and in walks over all tasks.
 *
 * Cost:    a compare for each event near a limit and for each process that a walk meets; a walk over all processes for a
 *          kill in shared memory.
 * Absent:  without the open-coded task iterator (before 6.7) bursard walks; where no other process can be signalled
 *          (before 6.13) bursard is asked to.
 */
#ifndef BURSAR_MM_SHARERS_BPF_H
#define BURSAR_MM_SHARERS_BPF_H

#include "delegate.bpf.h"

/* Never a victim. */
static __always_inline bool is_protected(struct ledger_state *state, __u64 owner, __u32 pid, int adj)
{
	return pid == 1 || adj <= OOM_SCORE_ADJ_MIN || is_far_guardian(state, owner, pid) ||
	       (FAR_READ(owner, struct task_struct, flags) & PF_KTHREAD);
}

static __always_inline __u32 tgid_of(__u64 task)
{
	return (__u32)FAR_READ(task, struct task_struct, tgid);
}

static __always_inline __u32 own_tgid(void)
{
	return (__u32)(bpf_get_current_pid_tgid() >> 32);
}

/* 0: the signal is on its way; otherwise why not. `task`: a thread that has this address space. */
static __always_inline int signal_in(__u64 task, __u64 mm, __u64 ctx_id, __u64 own_mm)
{
	struct task_struct *held;
	int err = -11; /* EAGAIN: not from here */

	if (!task)
		return -3; /* ESRCH */
	if (mm == own_mm && tgid_of(task) == own_tgid())
		return bpf_send_signal(SIGKILL);
	if (!can_signal_others())
		return err;
	held = bpf_task_from_pid(FAR_READ(task, struct task_struct, pid));
	if (!held)
		return -3;
	/* Between the walk and here the pid may have changed hands, and the address: only who has this mm dies. */
	if ((__u64)held->mm == mm && far_ctx_id(mm) == ctx_id)
		err = bpf_send_signal_task(held, SIGKILL, PIDTYPE_TGID, 0);
	bpf_task_release(held);
	return err;
}

/* Whether a process that has the address space of this record is one of those who pay for it, and may be killed: root may
 * have cloned itself and become somebody else in one of the two. Of whom a record is in a user namespace, or an account that
 * is entered, only they themselves could; and there is no stack to ask anew who pays. */
static __always_inline bool dies_with(struct ledger_state *state, const struct mm_record *record, __u64 task)
{
	__u64 cred = (__u64)FAR_READ(task, struct task_struct, real_cred);
	__u64 signal = (__u64)FAR_READ(task, struct task_struct, signal);
	__u64 ns = (__u64)FAR_READ(cred, struct cred, user_ns);
	__u32 uid = FAR_READ(cred, struct cred, uid.val);
	bool pays = is_entered(record->user_ns) ? uid || !record->uid : ns == record->user_ns;

	if (pays && !FAR_READ(ns, struct user_namespace, level) && !is_entered(record->user_ns))
		pays = uid == record->uid;
	return pays &&
	       !is_protected(state, task, tgid_of(task), FAR_READ(signal, struct signal_struct, oom_score_adj)) &&
	       !is_exempt(number_of((void *)task));
}

/* A process in the address space of a record, which was chosen and told to die under another process's number. */
__noinline int kill_mm_sharer(struct mm_record *record, __u64 task, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account;
	struct event *event;
	__u64 now, mm;
	int err;

	if (!record || !state || !record->marked_ns || tgid_of(task) == *(volatile __u32 *)&record->pid ||
	    is_dying((__u64)FAR_READ(task, struct task_struct, signal)))
		return 0;
	account = account_at(record->account);
	mm = *(volatile __u64 *)&record->mm;
	if (!account || (account->flags & ACCOUNT_PAUSED) || is_observed(account) ||
	    (__u64)FAR_READ(task, struct task_struct, mm) != mm || !dies_with(state, record, task))
		return 0;
	now = bpf_ktime_get_ns();
	/* As tell_kill() says, before the signal. */
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	err = signal_in(task, mm, record->ctx_id, far_own_mm());
	if (!err)
		__sync_fetch_and_add(&account->history.kills, 1);
	if (!event) {
		__sync_fetch_and_add(&state->events_lost, 1);
		return 0;
	}
	make_event(event, err ? EVENT_KILL_ASKED : EVENT_KILL, trigger, now);
	event->account = record->account;
	event->uid = record->uid;
	/* Without what is said to be on its way out: it is not, as long as this one lives. */
	tell_levels(event, account, level_now(account) + *(volatile __s64 *)&record->booked_dying_pages);
	event->victim_pages = recorded_pages(record);
	event->latency_ns = bpf_ktime_get_ns() - now;
	describe_victim(event, task);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Whether processes share it: a thread of the group has it once. More may be readers, for a moment. */
static __always_inline bool is_shared(__u64 mm, __u64 task)
{
	__u64 signal = (__u64)FAR_READ(task, struct task_struct, signal);

	return FAR_READ(mm, struct mm_struct, mm_users.counter) > FAR_READ(signal, struct signal_struct, live.counter);
}

/* A leader that has ended has no address space any more, and stays for as long as its group: its next thread has. */
static __always_inline __u64 thread_with_memory(struct task_struct *leader)
{
	if (leader->mm)
		return number_of(leader);
	return number_of(leader->thread_node.next) - bpf_core_field_offset(struct task_struct, thread_node);
}

/* All who share the address space of a record that was chosen just now. */
__noinline int kill_mm_sharers(__u32 index, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct bpf_iter_task it;
	struct task_struct *task;
	__u64 mm, thread;

	if (!record || !state)
		return 0;
	/* A signal reaches this one on any kernel. */
	mm = *(volatile __u64 *)&record->mm;
	if (mm == far_own_mm())
		kill_mm_sharer(record, (__u64)bpf_get_current_task(), trigger);
	if (!bpf_ksym_exists(bpf_iter_task_new)) {
		ask_for_a_walk(state, trigger);
		return 0;
	}
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, NULL, 0 /* BPF_TASK_ITER_ALL_PROCS */);
	while ((task = bpf_iter_task_next(&it))) {
		thread = thread_with_memory(task);
		/* The last of the list is followed by its head, which is no thread. */
		if ((__u64)FAR_READ(thread, struct task_struct, mm) == mm &&
		    tgid_of(thread) == (__u32)task->tgid)
			kill_mm_sharer(record, thread, trigger);
	}
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* By who takes a page fault. */
static __always_inline void die_as_mm_sharer(struct mm_record *record, struct mm_struct *mm)
{
	if (record->marked_ns && own_mm() == (__u64)mm)
		kill_mm_sharer(record, (__u64)bpf_get_current_task(), TRIGGER_EVENT);
}

#endif /* BURSAR_MM_SHARERS_BPF_H */
