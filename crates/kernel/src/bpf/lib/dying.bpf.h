/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is dying, by anybody's hand, and what of that memory does not count for a while (rules.h).
 */
#ifndef BURSAR_DYING_BPF_H
#define BURSAR_DYING_BPF_H

#include "correction.bpf.h"
#include "event.bpf.h"

enum {
	HELD_AT_EXIT_NS = 1000000000,
	TASK_IS_TRACED = 8,		/* include/linux/sched.h __TASK_TRACED */
};

/* Of its pages so many stay with the living when it ends: what a PSS scan has found, and without one what it was
 * forked with and has not copied. */
static __always_inline __s64 shared_with_living(const struct mm_record *record, const struct account *account,
						__u64 owner)
{
	if (record->flags & RECORD_SCANNED)
		return is_corrected(account, bpf_ktime_get_ns()) ?
			       (__s64)record->duplicate_pages - record->lost_pages :
			       0;
	/* Without an event of its own since: the whole of it, as far as no page fault made it its own. */
	return (record->flags & RECORD_GREW ? (__s64)record->inherited_pages : private_pages(record)) -
	       faults_of(owner);
}

/* To be called before its state says so: from then on others reckon with what is written here. */
static __always_inline void begin_dying(struct mm_record *record, __u64 owner)
{
	const struct account *account = account_at(record->account);
	__s64 shared = account ? shared_with_living(record, account, owner) : 0;

	begin_credit(&record->dying, small(recorded_pages(record)), small(shared), now_ms());
}

/* As the record has it; refresh_state() knows better. */
static __always_inline bool means_dying(enum mm_state state)
{
	return state == MM_DYING;
}

/* Dying by anybody's hand. A process dumping core is not: SIGKILL still ends it, and a slow dump
 * would otherwise hold memory that does not count. */
static __always_inline bool is_dying(__u64 signal)
{
	__u32 flags = PROBE_READ(signal, struct signal_struct, flags);

	if (!(flags & SIGNAL_GROUP_EXIT))
		return false;
	if (!bpf_core_field_exists(((struct signal_struct *)0)->core_state))
		return !(flags & SIGNAL_GROUP_COREDUMP);
	return !PROBE_READ(signal, struct signal_struct, core_state);
}

/* Nor is one that its tracer holds at its exit (PTRACE_O_TRACEEXIT), with all its memory, for as long as
 * that likes. A victim of ours has a second, in which the user half takes its memory all the same. */
static __always_inline bool is_held_at_exit(const struct mm_record *record, __u64 owner)
{
	if (!(PROBE_READ(owner, struct task_struct, __state) & TASK_IS_TRACED))
		return false;
	return !record->marked_ns || bpf_ktime_get_ns() - record->marked_ns > HELD_AT_EXIT_NS;
}

static __always_inline void note_owner(struct mm_record *record, __u32 pid)
{
	if (record->pid != pid)
		record->pid = pid;
}

/*
 * S2: a death is to be fast in all cases, no hint needed. Who is killed by others, or ends by itself, is told of as soon
 * as anybody finds it dying, once, where it has so much that it matters and somebody is there to help it out. Our own
 * victims are told of as kills.
 */
static __noinline int tell_death(struct mm_record *record, __u64 owner)
{
	struct ledger_state *state = ledger_state();
	struct account *account;
	struct event *event;
	__s64 pages;

	if (!state || !record || record->marked_ns || !state->deaths_from_pages || !state->answering_mm)
		return 0;
	account = account_at(record->account);
	pages = recorded_pages(record);
	if (!account || (account->flags & ACCOUNT_PAUSED) || pages < (__s64)state->deaths_from_pages ||
	    (__sync_fetch_and_or(&record->flags, RECORD_DEATH_TOLD) & RECORD_DEATH_TOLD))
		return 0;
	event = reserve_event(state, EVENT_DYING, TRIGGER_EVENT, bpf_ktime_get_ns());
	if (!event)
		return 0;
	event->account = record->account;
	event->account_id = account->id;
	event->uid = record->uid;
	event->victim_pages = pages;
	event->victim_private_pages = private_pages(record);
	if (owner)
		describe_victim(event, owner);
	else
		event->pid = record->pid;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/*
 * A record is living, marked or dying as its owner is, to be asked anew each time its pages were read, for
 * "dying" may be taken back. Of two processes that share an address space (CLONE_VM) one may die and
 * leave the memory to the other, which then owns it and counts. Global, as find_or_open() is: 7.x went through it for
 * each state of its callers.
 */
__noinline int refresh_state(struct mm_record *record, __u64 mm)
{
	__u64 owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	struct ledger_state *state = ledger_state();
	__u64 signal = owner ? (__u64)PROBE_READ(owner, struct task_struct, signal) : 0;
	struct account *account;
	__u32 was;

	if (!record || !state)
		return 0;
	was = *(volatile __u32 *)&record->state;
	if (signal && (!is_dying(signal) || is_held_at_exit(record, owner))) {
		if (means_dying(was))
			__sync_val_compare_and_swap(&record->state, was, MM_LIVING);
		/* Whom to help when it has left its address space: nothing leads from there to it. */
		if (was == MM_LIVING)
			note_owner(record, PROBE_READ(owner, struct task_struct, tgid));
		return 0;
	}
	/* Without an owner it is being taken apart, or somebody keeps it (process_vm_readv(2) under way, an open
	 * /proc/PID/mem that is being read): then nothing of it is on its way out with anybody. */
	if (!means_dying(was))
		begin_dying(record, owner);
	if (!owner && PROBE_READ(record->mm, struct mm_struct, mm_users.counter) > 0) {
		account = account_at(record->account);
		is_kept(&record->dying, account ? account->patience.is_out : 0);
	}
	if (means_dying(was))
		return 1;
	was = __sync_lock_test_and_set(&record->state, MM_DYING);
	if (was == MM_LIVING)
		tell_death(record, owner);
	if (was == MM_MARKED) {
		/* The user half, or anybody, was faster. */
		__sync_fetch_and_add(&state->kills_wanted, -1);
		account = account_at(record->account);
		if (account)
			__sync_fetch_and_add(&account->history.kills, 1);
	}
	return 1;
}

/* What walks do with each record: its pages and its state read anew. Returns whether it is dying. */
static __always_inline bool look_anew(struct mm_record *record, __u64 mm)
{
	sync_at(record, mm);
	return refresh_state(record, mm);
}

/* The same where events have told of all changes but these (EXACT_AND_READ). `signal`: its owner's, or 0. */
static __always_inline bool look_again(struct mm_record *record, __u64 mm, __u64 signal)
{
	record->pages[MEMBER_PGTABLES] = PROBE_READ(mm, struct mm_struct, pgtables_bytes.counter) >> page_shift;
	record->pages[MEMBER_HUGETLB] = probe_hugetlb(mm);
	if (record->state == MM_LIVING && signal &&
	    !(PROBE_READ(signal, struct signal_struct, flags) & SIGNAL_GROUP_EXIT))
		return false;
	return refresh_state(record, mm);
}

#endif /* BURSAR_DYING_BPF_H */
