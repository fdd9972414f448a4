/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is dying, by anybody's hand, and what of his memory no longer counts for that; and who is stuck:
 * dying, and giving nothing back.
 */
#ifndef BURSAR_DYING_BPF_H
#define BURSAR_DYING_BPF_H

#include "pages.bpf.h"

enum {
	DYING_GROWTH_PAGES = 512,	/* its own threads' last faults */
	FADING_PAGES = 64,		/* so much less is less */
	STUCK_AFTER_MS = 1000,
	HELD_AT_EXIT_NS = 1000000000,
	TASK_IS_TRACED = 8,		/* include/linux/sched.h __TASK_TRACED */
};

static __always_inline void begin_fading(struct mm_record *record)
{
	__u32 now = bpf_ktime_get_ns() / 1000000;

	record->fading_pages = small(recorded_pages(record));
	record->fading_ms = now ? now : 1;
}

/* Whether one that is dying goes on giving back. One that waits for a device, or for a file system of its
 * user's own making, is told to die and holds what it has for as long as that takes. */
static __always_inline bool is_fading(struct mm_record *record)
{
	__u32 now = bpf_ktime_get_ns() / 1000000;

	if (!record->fading_ms || recorded_pages(record) + FADING_PAGES <= record->fading_pages) {
		begin_fading(record);
		return true;
	}
	return now - record->fading_ms <= STUCK_AFTER_MS;
}

/*
 * What of a dying address space no longer counts: what it had last. Somebody else may go on filling it
 * (process_vm_writev, /proc/PID/mem, who shares it), for the dead do not stop him: that counts, and makes
 * him the next.
 */
static __always_inline __s64 dying_pages_of(const struct mm_record *record, __s64 pages)
{
	__s64 most = (__s64)record->fading_pages + DYING_GROWTH_PAGES;

	return record->fading_ms && pages > most ? most : pages;
}

/* As the record has it, stuck or not; refresh_state() knows better. */
static __always_inline bool means_dying(enum mm_state state)
{
	return state >= MM_DYING;
}

/* Dying by anybody's hand. A process dumping core is not: SIGKILL still ends it, and a slow dump
 * would otherwise hold memory that does not count. */
static __always_inline bool is_dying(__u64 signal)
{
	return (FAR_READ(signal, struct signal_struct, flags) & SIGNAL_GROUP_EXIT) &&
	       !FAR_READ(signal, struct signal_struct, core_state);
}

/* Nor is one that its tracer holds at its exit (PTRACE_O_TRACEEXIT), with all its memory, for as long as
 * he likes. A victim of ours has a second, in which the user half takes its memory all the same. */
static __always_inline bool is_held_at_exit(const struct mm_record *record, __u64 owner)
{
	if (!(FAR_READ(owner, struct task_struct, __state) & TASK_IS_TRACED))
		return false;
	return !record->marked_ns || bpf_ktime_get_ns() - record->marked_ns > HELD_AT_EXIT_NS;
}

/*
 * A record is living, marked or dying as its owner is, to be asked anew each time its pages were read, for
 * "dying" may be taken back. Of two processes that share an address space (CLONE_VM) one may die and
 * leave the memory to the other, which then owns it and counts.
 */
static __always_inline bool refresh_state(struct ledger_state *state, struct mm_record *record,
					  __u64 owner)
{
	__u64 signal = owner ? (__u64)FAR_READ(owner, struct task_struct, signal) : 0;
	__u32 was = *(volatile __u32 *)&record->state, is;
	struct account *account;

	if (signal && (!is_dying(signal) || is_held_at_exit(record, owner))) {
		if (means_dying(was)) {
			record->fading_ms = 0;
			__sync_val_compare_and_swap(&record->state, was, MM_LIVING);
		}
		return false;
	}
	/* No owner: being torn down. */
	is = !signal || is_fading(record) ? MM_DYING : MM_STUCK;
	if (was == is)
		return true;
	if (__sync_lock_test_and_set(&record->state, is) == MM_MARKED) {
		/* The user half, or anybody, was faster. */
		__sync_fetch_and_add(&state->kills_wanted, -1);
		account = account_at(record->account);
		if (account)
			__sync_fetch_and_add(&account->history.kills, 1);
	}
	return true;
}

/* What walks do with each record: its pages and its state read anew. Returns whether it is dying. Global, as
 * find_or_open() is: 7.x went through it for each state of its callers. */
__noinline int look_anew(struct mm_record *record, __u64 mm)
{
	struct ledger_state *state = ledger_state();

	if (!record || !state)
		return 0;
	sync_far(record, mm);
	return refresh_state(state, record, (__u64)FAR_READ(mm, struct mm_struct, owner));
}

#endif /* BURSAR_DYING_BPF_H */
