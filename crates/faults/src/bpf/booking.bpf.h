/* SPDX-License-Identifier: GPL-2.0-only */
/* Threads that are watched, and what their faults are booked to. */
#ifndef BURSAR_FAULTS_BOOKING_BPF_H
#define BURSAR_FAULTS_BOOKING_BPF_H

#include "mapping.bpf.h"

static __always_inline void book(__u32 slot, __u64 minor, __u64 major)
{
	struct counts *counts = bpf_map_lookup_elem(&slot_counts, &slot);

	if (!counts)
		return;
	/* Locked although it is this CPU's own: a task's end may interrupt a fault's. */
	if (minor)
		__sync_fetch_and_add(&counts->minor, minor);
	if (major)
		__sync_fetch_and_add(&counts->major, major);
}

/* Where a fault belongs that nobody saw begin. */
static __always_inline __u32 slot_of_rest(const struct thread_state *thread)
{
	return switches.is_away ? thread->unseen_slot : thread->kernel_slot;
}

/* Books by how much the thread's own counters have grown since we last did, once and for all. */
static __always_inline void settle(struct thread_state *thread, struct task_struct *task)
{
	__u64 minor = minor_faults(task), major = major_faults(task);

	minor -= __sync_lock_test_and_set(&thread->minor, minor);
	major -= __sync_lock_test_and_set(&thread->major, major);
	book(slot_of_rest(thread), minor, major);
}

/* The same from outside. The thread itself may settle at that moment, for the last time: then it has. */
static __always_inline void settle_other(struct thread_state *thread, struct task_struct *task)
{
	__u64 minor_then = thread->minor, major_then = thread->major;
	__u64 minor = minor_faults(task), major = major_faults(task);

	if (__sync_val_compare_and_swap(&thread->minor, minor_then, minor) == minor_then)
		book(slot_of_rest(thread), minor - minor_then, 0);
	if (__sync_val_compare_and_swap(&thread->major, major_then, major) == major_then)
		book(slot_of_rest(thread), 0, major - major_then);
}

static __always_inline struct seen *seen_here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&seen_on, &cpu);
}

/* Moves the faults that began in a mapping to it, and forgets it. */
static __always_inline void flush(struct seen *seen)
{
	__u64 entries = seen->entries;

	seen->entries = 0;
	seen->size = 0;
	if (!entries || seen->slot == seen->kernel_slot)
		return;
	book(seen->slot, entries, 0);
	book(seen->kernel_slot, -entries, 0);
}

static __always_inline bool is_target(struct task_struct *task)
{
	struct target target = { .kind = TARGET_PROCESS, .id = task->tgid };

	if (!has_targets || task->tgid == (int)own_tgid || !task->mm)
		return false;
	if (bpf_map_lookup_elem(&targets, &target))
		return true;
	target.kind = TARGET_THREAD;
	target.id = task->pid;
	if (bpf_map_lookup_elem(&targets, &target))
		return true;
	target.kind = TARGET_USER;
	target.id = task->real_cred->uid.val;
	return bpf_map_lookup_elem(&targets, &target) != NULL;
}

/* The iterator and the thread's own first fault may both come here; one of them counts. */
static __always_inline void start_counting(struct thread_state *thread, struct task_struct *task)
{
	if (__sync_val_compare_and_swap(&thread->counting, COUNTING_NOT, COUNTING_SOON) != COUNTING_NOT)
		return;
	__sync_fetch_and_add(&state.threads_alive, 1);
	thread->minor = minor_faults(task);
	thread->major = major_faults(task);
	barrier();
	thread->counting = COUNTING;
}

/* A thread that becomes one to watch now, if it does. */
static __noinline struct thread_state *new_thread(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread_state *thread;

	if (!is_target(task))
		return NULL;
	thread = bpf_task_storage_get(&threads, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!thread)
		__sync_fetch_and_add(&state.threads_lost, 1);
	else
		start_counting(thread, task);
	return thread;
}

#endif /* BURSAR_FAULTS_BOOKING_BPF_H */
