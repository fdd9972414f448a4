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

#include <asm-generic/errno.h>

#include "delegate.bpf.h"

static __always_inline __u32 tgid_of(__u64 task)
{
	return (__u32)PROBE_READ(task, struct task_struct, tgid);
}

static __always_inline __u32 own_tgid(void)
{
	return (__u32)(bpf_get_current_pid_tgid() >> 32);
}

/* 0: the signal is on its way; otherwise why not. `task`: a thread that has this address space. */
static __always_inline int signal_in(__u64 task, __u64 mm, __u64 ctx_id, __u64 own_mm)
{
	struct task_struct *held;
	int err = -EAGAIN; /* not from here */

	if (!task)
		return -ESRCH;
	if (mm == own_mm && tgid_of(task) == own_tgid())
		return bpf_send_signal(SIGKILL);
	if (!can_signal_others())
		return err;
	held = bpf_task_from_pid(PROBE_READ(task, struct task_struct, pid));
	if (!held)
		return -ESRCH;
	/* Between the walk and here the pid may have changed hands, and the address: only who has this mm dies. */
	if ((__u64)held->mm == mm && probe_ctx_id(mm) == ctx_id)
		err = bpf_send_signal_task(held, SIGKILL, PIDTYPE_TGID, 0);
	bpf_task_release(held);
	return err;
}

/* Whether a process with this record's address space has the same payer and may be killed: root may have cloned itself
 * and taken another uid in one of the two. Processes inside a user namespace can only come from that namespace's users.
 * There is no stack left to look the payer up again. */
static __always_inline bool dies_with(struct ledger_state *state, const struct mm_record *record, __u64 task)
{
	__u64 cred = (__u64)PROBE_READ(task, struct task_struct, real_cred);
	__u64 signal = (__u64)PROBE_READ(task, struct task_struct, signal);
	__u64 ns = (__u64)PROBE_READ(cred, struct cred, user_ns);
	__u32 uid = PROBE_READ(cred, struct cred, uid.val);
	bool is_elsewhere = is_entered(record->user_ns) || PROBE_READ(ns, struct user_namespace, level);

	return (is_elsewhere ? uid || !record->uid : uid == record->uid) &&
	       !is_protected(state, task, tgid_of(task), PROBE_READ(signal, struct signal_struct, oom_score_adj)) &&
	       !is_exempt(number_of((void *)task));
}

/* How long a kill is one of all sharers. Who lives on has not been over the limit since, as far as is known, and a
 * decision knows better. */
enum { CHOSEN_NS = 2000000000 };

/* Whether somebody who has its memory is to die for its having been chosen. */
static __always_inline bool is_chosen(const struct mm_record *record)
{
	__u64 marked = *(volatile __u64 *)&record->marked_ns;

	return marked && (record->state == MM_MARKED || bpf_ktime_get_ns() - marked < CHOSEN_NS);
}

/* Whether it was told to die under this number: whoever else owns a memory that lives was not. */
static __always_inline bool was_told(const struct mm_record *record, __u64 task)
{
	return record->state != MM_LIVING && tgid_of(task) == *(volatile __u32 *)&record->pid;
}

/* Global, and not in the frame of who kills: 6.1 has 512 bytes of stack for all of a decision. */
__noinline int tell_mm_sharer(struct mm_record *record, __u64 task, __u32 trigger, __u32 kind)
{
	struct ledger_state *state = ledger_state();
	struct account *account;
	struct event *event;

	if (!record || !state)
		return 0;
	account = account_at(record->account);
	if (!account)
		return 0;
	event = reserve_event(state, kind, trigger, bpf_ktime_get_ns());
	if (!event)
		return 0;
	event->account = record->account;
	event->uid = record->uid;
	/* With what is said to be on its way out: it is not, as long as this one lives. */
	tell_levels(event, account, account->held_pages + pages_booked(record->booked_dying));
	event->victim_pages = recorded_pages(record);
	event->shares_with = record->pid;
	describe_victim(event, task);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* A process in the address space of a record that was chosen, perhaps under another process's number. */
__noinline int kill_mm_sharer(struct mm_record *record, __u64 task, __u32 trigger)
{
	struct ledger_state *state = ledger_state();
	struct account *account;
	__u64 mm;
	int err;

	if (!record || !state || !is_chosen(record) || was_told(record, task) ||
	    is_dying((__u64)PROBE_READ(task, struct task_struct, signal)))
		return 0;
	account = account_at(record->account);
	mm = *(volatile __u64 *)&record->mm;
	if (!account || (account->flags & (ACCOUNT_PAUSED | ACCOUNT_USED)) != ACCOUNT_USED || is_observed(account) ||
	    (__u64)PROBE_READ(task, struct task_struct, mm) != mm || !dies_with(state, record, task))
		return 0;
	err = signal_in(task, mm, record->ctx_id, probe_own_mm());
	if (!err) {
		__sync_fetch_and_add(&account->history.kills, 1);
		tell_mm_sharer(record, number_of((void *)task), trigger, EVENT_KILL);
	} else if ((err == -1 || (err == -11 && !can_signal_others())) &&
		   !PROBE_READ(task, struct task_struct, vfork_done)) {
		/* Before 6.13, and whose first thread is ending (EPERM).
		 * Not one that has begun by vfork(2): it may be another program when bursard comes to it. Nor one that is
		 * gone, or behind a signal that is on its way from this CPU (EBUSY): it is met again. */
		tell_mm_sharer(record, number_of((void *)task), trigger, EVENT_KILL_ASKED);
	}
	return 0;
}

/* Whether processes share it: a thread of the group has it once. More may be readers, for a moment. */
static __always_inline bool is_shared(__u64 mm, __u64 task)
{
	__u64 signal = (__u64)PROBE_READ(task, struct task_struct, signal);

	return PROBE_READ(mm, struct mm_struct, mm_users.counter) > PROBE_READ(signal, struct signal_struct, live.counter);
}

enum { THREADS_LOOKED_AT = 16 };

/* A leader that has ended has no address space any more, and stays for as long as its group: another thread has. 0: none,
 * or those that come first have ended too and are kept by who traces them. Global: verified once, not for each task of a walk. */
__noinline __u64 thread_with_mm(__u64 leader)
{
	__u64 signal = (__u64)PROBE_READ(leader, struct task_struct, signal);
	__u64 end = signal + bpf_core_field_offset(struct signal_struct, thread_head);
	__u64 task = leader, next;
	int i;

	for (i = 0; i < THREADS_LOOKED_AT; i++) {
		next = (__u64)PROBE_READ(task, struct task_struct, thread_node.next);
		if (!next || next == end)
			return 0;
		task = number_of((void *)(next - bpf_core_field_offset(struct task_struct, thread_node)));
		if (PROBE_READ(task, struct task_struct, mm))
			return task;
	}
	return 0;
}

/* So long a page fault waits for them to be killed; the others when the timer walks, or at their own events. */
enum { SHARERS_NS = 5000000 };

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
	if (mm == probe_own_mm())
		kill_mm_sharer(record, (__u64)bpf_get_current_task(), trigger);
	if (!bpf_ksym_exists(bpf_iter_task_new)) {
		ask_for_a_walk(state, trigger);
		return 0;
	}
	bpf_rcu_read_lock();
	bpf_iter_task_new(&it, NULL, 0 /* BPF_TASK_ITER_ALL_PROCS */);
	while ((task = bpf_iter_task_next(&it))) {
		thread = number_of(task);
		if (!mm_of(task))
			thread = thread_with_mm(thread);
		if (bpf_ktime_get_ns() - record->marked_ns > SHARERS_NS) {
			state->walk_wanted = 1;
			break;
		}
		if (thread && (__u64)PROBE_READ(thread, struct task_struct, mm) == mm)
			kill_mm_sharer(record, thread, trigger);
	}
	bpf_iter_task_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* In a walk over all tasks, threads among them: each process once. */
static __always_inline void meet_mm_sharer(struct mm_record *record, __u64 task, __u32 trigger)
{
	__u64 leader;

	if (!record->marked_ns)
		return;
	leader = (__u64)PROBE_READ(task, struct task_struct, group_leader);
	if (leader == task || !PROBE_READ(leader, struct task_struct, mm))
		kill_mm_sharer(record, number_of((void *)task), trigger);
}

/* By who takes a page fault. */
static __always_inline void die_as_mm_sharer(struct mm_record *record, struct mm_struct *mm)
{
	if (record->marked_ns && own_mm() == (__u64)mm)
		kill_mm_sharer(record, (__u64)bpf_get_current_task(), TRIGGER_EVENT);
}

#endif /* BURSAR_MM_SHARERS_BPF_H */
