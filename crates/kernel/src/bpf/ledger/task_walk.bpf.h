/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The walk over all tasks (docs/design/3-two-timers.md): finds processes whose beginning was missed and those for which the
 * ledger has no room, and counts those whose oom_score_adj is not what the last defence wants. Not the re-sum of their
 * records (resum.bpf.h), whose state it shares.
 */
#ifndef BURSAR_TASK_WALK_BPF_H
#define BURSAR_TASK_WALK_BPF_H

#include "seen.bpf.h"

enum {
	/* One walk in so many looks at all processes, the others at those that have begun since. On a small machine every
	 * walk looks at all: else a process that changes its uid and then takes no page fault would be found late. */
	THOROUGH_EVERY = 8,
	WALK_AT_ONCE = 1024,
	/* A process may have begun so long before others can see it. */
	BIRTH_NS = 1000000000,
};

struct resum {
	__u64 ticket;
	__u64 walk_ticket;
	__u32 trigger;
	__u32 found;		/* processes that had no record */
	__u32 tasks;
	__u32 undefended;
	__u32 unrecorded;
	bool is_thorough;
	__u32 running;		/* enum running: whom a timer's tick interrupts can be signalled on any kernel */
	__u32 shares;		/* of the re-sum */
	__u32 share;		/* whose turn it is */
	__u64 task, mm;		/* the task that the walk has come to, and its address space */
	__u64 since_ns;		/* CLOCK_BOOTTIME, when the walk before this one began */
	__u64 entered;		/* the account that it has entered */
};

static __always_inline void reset_unrecorded(struct account *account, __u64 ticket)
{
	if (account->walk_ticket == ticket)
		return;
	account->walk_ticket = ticket;
	account->sum_unrecorded_pages = 0;
	account->sum_unrecorded_processes = 0;
	account->late_before_pages = *(volatile __s64 *)&account->late_pages;
}

/* No room for its record: it is at least counted here, so that the limit sees it. */
static __always_inline void count_unrecorded(struct ledger_state *state, __u32 slot, __u64 mm,
					     struct resum *resum)
{
	struct account *account = account_at(slot);

	if (!account)
		return;
	resum->unrecorded++;
	reset_unrecorded(account, resum->walk_ticket);
	account->sum_unrecorded_pages += probe_member(mm, NULL, MEMBER_ANON) +
					 probe_member(mm, NULL, MEMBER_SWAP) +
					 probe_member(mm, NULL, MEMBER_SHMEM);
	account->sum_unrecorded_processes++;
}

/*
 * Whether the kernel's own OOM killer would treat it as the last defence wants (S1 3.4): processes
 * with a limit first. Only user space can change oom_score_adj; here it is only looked at. Processes
 * without a limit that carry the raised value inherited it from somebody who had one.
 */
static __always_inline bool is_defended(struct ledger_state *state, __u64 task, __u32 slot)
{
	struct account *account = slot != NOBODY ? account_at(slot) : NULL;
	bool has_limit = account && account->limit_pages != NO_BOUND_PAGES && !is_observed(account);
	short raised = state->raised_adj, adj;

	if (!raised)
		return true;
	adj = PROBE_READ(PROBE_READ(task, struct task_struct, signal), struct signal_struct, oom_score_adj);
	if (has_limit)
		return adj >= raised || adj <= OOM_SCORE_ADJ_MIN;
	return adj != raised;
}

/* Told when there are more than it was told of, and not more than once a second: the user half looks
 * at all processes then, and those it cannot help must not keep it awake. */
enum { UNDEFENDED_PAUSE_NS = 1000000000 };

static __noinline int tell_undefended(struct ledger_state *state, __u32 count, __u32 trigger)
{
	__u64 now = bpf_ktime_get_ns();
	struct event *event;

	state->undefended = count;
	if (count < state->undefended_told)	/* it helped, or they ended: more would be news */
		state->undefended_told = count;
	if (count == state->undefended_told || now - state->undefended_ns < UNDEFENDED_PAUSE_NS)
		return 0;
	state->undefended_told = count;
	event = begin_event(EVENT_OOM_SCORE_DUE, trigger, now);
	if (!event)
		return 0;
	state->undefended_ns = now;
	event->candidates_met = count;
	emit(state, event);
	return 0;
}

/* Whether the ledger knows it; the re-sum sees to the rest. */
static __always_inline bool is_recorded(struct ledger_state *state, __u64 task, __u64 mm, struct resum *resum)
{
	__u32 index = find_record(mm);
	struct mm_record *record = index != NOBODY ? record_at(index) : NULL;

	if (!record || record->ctx_id != probe_ctx_id(mm))
		return false;
	resum->undefended += !is_defended(state, task, record->account);
	meet_mm_sharer(record, task, resum->trigger);
	return true;
}

/* One process met that may be new. A global function, so that the verifier looks at it once and not for
 * every way in which a walk can have come here: with it inside the loop 6.12 gives up. */
__noinline int meet(struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	__u64 task, mm, owner;
	struct mm_record *record;
	struct payer payer = {};
	__u32 index, slot = NOBODY;
	bool missed = false;

	if (!state || !resum)
		return 0;
	task = resum->task;
	mm = resum->mm;
	if (!mm) {
		task = thread_with_mm(task);
		if (!task)
			return 0;
		mm = number_of(PROBE_READ(task, struct task_struct, mm));
	}
	owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
	if (is_recorded(state, task, mm, resum) || !payer_of_task_at(owner, &payer))
		return 0;
	pay_into(&payer, resum->entered);
	index = record_for(mm, probe_ctx_id(mm), &payer, &slot, &missed);
	resum->found += missed;
	resum->undefended += !is_defended(state, task, slot);
	record = index != NOBODY ? record_at(index) : NULL;
	if (!record) {
		if (slot != NOBODY)
			count_unrecorded(state, slot, mm, resum);
		return 0;
	}
	if (!missed)
		return 0; /* the re-sum's */
	look_anew(record, mm);
	book_at(record, slot, mm);
	return 0;
}

/* 0 where nobody has entered anything, or nobody knows: then events tell. */
static __always_inline __u64 entered_of_new(struct task_struct *task)
{
	struct ledger_state *state = ledger_state();

	return state && state->entered ? membership_of(task) : 0;
}

/* One task met. Its mm is alive while we look: the task holds it, or another thread of its process. */
static __always_inline void meet_task(struct task_struct *task, struct resum *resum)
{
	__u64 mm = mm_of(task);

	if ((task->flags & PF_KTHREAD) || (!mm && task->pid != task->tgid))
		return;
	resum->tasks++;
	if (resum->is_thorough || task->start_boottime + BIRTH_NS >= resum->since_ns) {
		resum->task = (__u64)task;
		resum->mm = mm;
		resum->entered = entered_of_new(task);
		meet(resum);
	}
}

static __always_inline long end_account_walk(__u32 slot, struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);

	if (!account || !state)
		return 1;
	if (!slot || !(account->flags & ACCOUNT_USED))
		return 0;
	reset_unrecorded(account, resum->walk_ticket);
	/* In this order: at no time is a page in it twice. A process that found room since this walk came to it is left out. */
	__sync_lock_test_and_set(&account->walked_pages, account->sum_unrecorded_pages);
	__sync_fetch_and_add(&account->late_pages, -account->late_before_pages);
	account->unrecorded_processes = account->sum_unrecorded_processes;
	if (beyond_records(account))
		react(slot, account->held_pages, resum->trigger, resum->running);
	return 0;
}
LOOP_BODY(end_account_walk, struct resum *, accounts_made())

static __always_inline void begin_walk(struct ledger_state *state, struct resum *resum, bool all)
{
	__u64 every = 1 + state->resum_tasks / WALK_AT_ONCE;

	if (every > THOROUGH_EVERY)
		every = THOROUGH_EVERY;
	resum->walk_ticket = __sync_fetch_and_add(&state->walk_ticket, 1) + 1;
	resum->is_thorough = all || resum->walk_ticket % every == 0;
	resum->undefended = resum->is_thorough ? 0 : state->undefended;
	resum->since_ns = state->walk_boottime_ns;
	state->walk_boottime_ns = bpf_ktime_get_boot_ns();
}

static __always_inline void end_walk(struct ledger_state *state, struct resum *resum)
{
	LOOP(end_account_walk, resum);
	if (resum->found) {
		__sync_fetch_and_add(&state->missed_processes, resum->found);
		__sync_fetch_and_add(&state->generation, 1);
	}
	state->unrecorded = resum->unrecorded;
	state->resum_tasks = resum->tasks;
	tell_undefended(state, resum->undefended, resum->trigger);
}

#endif /* BURSAR_TASK_WALK_BPF_H */
