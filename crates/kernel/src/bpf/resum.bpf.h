/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The exact re-sum (S1 3.3's interval trigger and 4.5's ticket): what the ledger says, compared with
 * what the kernel's own counters say, repaired where they differ.
 *
 * Three walks. Tasks: find processes whose beginning was missed. Records: find those whose end was
 * missed, re-read those the first walk did not meet. Accounts: compare held with the sum of its
 * records; act if over.
 */
#ifndef BURSAR_RESUM_BPF_H
#define BURSAR_RESUM_BPF_H

#include "victim.bpf.h"

const volatile __u32 counter_batch = 32; /* lib/percpu_counter.c: max(32, 2 × CPUs) */

struct resum {
	__u64 ticket;
	__u32 trigger;
	__u32 found;		/* processes that had no record */
	__u32 tasks;
	__u32 undefended;
};

static __always_inline void reset_sums(struct account *account, __u64 ticket)
{
	if (account->sum_ticket == ticket)
		return;
	account->sum_ticket = ticket;
	account->sum_pages = 0;
	account->sum_dying_pages = 0;
	account->sum_unrecorded_pages = 0;
	account->sum_processes = 0;
}

/* No room for its record: it is at least counted here, so that the limit sees it. */
static __always_inline void count_unrecorded(struct ledger_state *state, __u32 slot, __u64 mm,
					     __u64 ticket)
{
	struct account *account = account_at(slot);

	if (!account)
		return;
	reset_sums(account, ticket);
	account->sum_unrecorded_pages += far_member(state, mm, MEMBER_ANON) +
					 far_member(state, mm, MEMBER_SWAP) +
					 far_member(state, mm, MEMBER_SHMEM);
	account->sum_processes++;
}

/*
 * Whether the kernel's own OOM killer would treat it as the last defence wants (S1 3.4): processes
 * with a limit first. Only user space can change oom_score_adj; here it is only looked at. Processes
 * without a limit that carry the raised value inherited it from somebody who had one.
 */
static __always_inline bool is_defended(struct ledger_state *state, __u64 owner, __u32 slot)
{
	struct account *account = slot != NOBODY ? account_at(slot) : NULL;
	bool has_limit = account && account->limit_pages != NO_BOUND_PAGES;
	short raised = state->raised_adj, adj;

	if (!raised)
		return true;
	adj = FAR_READ(FAR_READ(owner, struct task_struct, signal), struct signal_struct, oom_score_adj);
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
	struct walk *walk;

	state->undefended = count;
	if (count < state->undefended_told)	/* it helped, or they ended: more would be news */
		state->undefended_told = count;
	if (count == state->undefended_told || now - state->undefended_ns < UNDEFENDED_PAUSE_NS)
		return 0;
	state->undefended_told = count;
	if (trigger > TRIGGER_NOTIFIER)
		trigger = TRIGGER_NOTIFIER;
	walk = bpf_map_lookup_elem(&walks, &trigger);
	if (!walk)
		return 0;
	state->undefended_ns = now;
	__builtin_memset(&walk->event, 0, sizeof(walk->event));
	walk->event.kind = EVENT_UNDEFENDED;
	walk->event.trigger = trigger;
	walk->event.time_ns = now;
	walk->event.candidates_met = count;
	emit(state, &walk->event);
	return 0;
}

/* One task met. Its mm is alive while we look: the task holds it. */
static __always_inline void meet_task(struct ledger_state *state, struct task_struct *task,
				      struct resum *resum)
{
	struct mm_struct *mm = task->mm;
	struct mm_record *record;
	struct account *account;
	struct payer payer = {};
	__u32 index, slot = NOBODY;
	bool missed = false;
	__u64 owner;

	if (!mm || (task->flags & PF_KTHREAD))
		return;
	resum->tasks++;
	owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
	if (!payer_of_far_task(owner, &payer))
		return;
	index = record_for(state, (__u64)mm, far_ctx_id((__u64)mm), &payer, &slot, &missed);
	resum->found += missed;
	resum->undefended += !is_defended(state, owner, slot);
	record = index != NOBODY ? record_at(index) : NULL;
	if (!record) {
		if (slot != NOBODY)
			count_unrecorded(state, slot, (__u64)mm, resum->ticket);
		return;
	}
	if (record->ticket == resum->ticket && !missed)
		return; /* another process shares this address space */
	record->ticket = resum->ticket;
	refresh_state(state, record, owner);
	sync_far(state, record, (__u64)mm);
	account = account_at(record->account);
	if (account)
		book(record, account);
}

/* The address space is gone although nobody told us. */
static __always_inline bool is_gone(struct mm_record *record, __u64 ticket)
{
	__u64 mm = record->mm;

	if (far_ctx_id(mm) != record->ctx_id)
		return true;
	if (FAR_READ(mm, struct mm_struct, mm_users.counter) > 0)
		return false;
	if (!rss_is_atomic() && !FAR_READ(far_counter(mm, 0), struct percpu_counter, counters))
		return true; /* __mmdrop() has freed the counters */
	return recorded_pages(record) == 0 && record->ticket + 2 < ticket;
}

static long audit_record(__u32 index, struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	struct mm_record *record = record_at(index);
	struct payer payer = {};
	struct account *account;
	__u32 slot = NOBODY;
	bool missed = false;
	__u64 owner;

	if (!record || !state || !record->mm)
		return 0;
	if (record->ticket != resum->ticket) {
		__u64 ticket = record->ticket, mm = record->mm;

		if (is_gone(record, resum->ticket)) {
			__sync_fetch_and_add(&state->stale_records, 1);
			if (record->state == MM_MARKED)
				__sync_fetch_and_add(&state->kills_wanted, -1);
			close_record(state, index, record);
			return 0;
		}
		owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
		if (payer_of_far_task(owner, &payer) &&
		    record_for(state, mm, record->ctx_id, &payer, &slot, &missed) != index)
			return 0; /* nobody pays any more: closed */
		refresh_state(state, record, owner);
		sync_far(state, record, mm);
		account = account_at(record->account);
		if (account)
			book(record, account);
		if (owner && record->state == MM_LIVING)
			resum->undefended += !is_defended(state, owner, record->account);
		if (recorded_pages(record))
			record->ticket = resum->ticket;
		else
			record->ticket = ticket; /* grows old: see is_gone() */
	}
	account = account_at(record->account);
	if (!account)
		return 0;
	reset_sums(account, resum->ticket);
	account->sum_pages += record->booked_pages;
	account->sum_dying_pages += record->booked_dying_pages;
	if (record->state != MM_DYING)
		account->sum_processes++;
	return 0;
}

/* A difference that stands still for two re-sums is drift and not somebody caught in the act. */
static __always_inline void repair(struct ledger_state *state, __s64 *ledger, __s64 *suspect,
				   __s64 exact)
{
	__s64 drift = *(volatile __s64 *)ledger - exact;

	if (drift && drift == *suspect) {
		__sync_fetch_and_add(ledger, -drift);
		__sync_fetch_and_add(&state->drift_repairs, 1);
		__sync_fetch_and_add(&state->drift_repaired_pages, drift < 0 ? -drift : drift);
		drift = 0;
	}
	*suspect = drift;
}

static __always_inline __s64 lowest_bound(const struct account *account)
{
	__s64 bound = account->limit_pages;

	if (account->barrier_pages < bound)
		bound = account->barrier_pages;
	if (account->notice_pages < bound)
		bound = account->notice_pages;
	return bound;
}

/* From where on each event is counted exactly: early enough that what all CPUs keep back of all the
 * account's processes cannot hide the way from there to the first bound. */
static __always_inline void place_near(struct ledger_state *state, struct account *account)
{
	__s64 bound = lowest_bound(account), margin;

	if (bound == NO_BOUND_PAGES) {
		account->near_pages = NO_BOUND_PAGES;
	} else {
		margin = (bound >> 4) + 256 +
			 (__s64)account->processes * possible_cpus * counter_batch;
		account->near_pages = bound > margin ? bound - margin : 0;
	}
	if (account->near && account->held_pages + account->unrecorded_pages <
				     account->near_pages - (account->near_pages >> 6)) {
		account->near = 0;
		__sync_fetch_and_add(&state->generation, 1);
	}
}

static long audit_account(__u32 slot, struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	__s64 held;

	if (!account || !state)
		return 1;
	if (!slot || !(account->flags & ACCOUNT_USED))
		return 0;
	reset_sums(account, resum->ticket);
	repair(state, &account->held_pages, &account->suspect_pages, account->sum_pages);
	repair(state, &account->dying_pages, &account->suspect_dying_pages, account->sum_dying_pages);
	account->unrecorded_pages = account->sum_unrecorded_pages;
	account->processes = account->sum_processes;
	place_near(state, account);
	held = account->held_pages;
	if (account->noticed && held + account->unrecorded_pages <
				       account->notice_pages - (account->notice_pages >> 4))
		account->noticed = 0; /* far enough below to be told again */
	raise_maxheld(account, held + account->unrecorded_pages);
	react(state, account, slot, held, resum->trigger, 0);
	return 0;
}

static __always_inline void audit(struct ledger_state *state, struct resum *resum)
{
	bpf_loop(state->mm_high_water, audit_record, resum, 0);
	if (state->kills_wanted)
		retry_kills(state, resum->trigger, 0);
	bpf_loop(state->account_high_water, audit_account, resum, 0);
	if (resum->found) {
		__sync_fetch_and_add(&state->missed_processes, resum->found);
		__sync_fetch_and_add(&state->generation, 1);
	}
	state->resum_tasks = resum->tasks;
	tell_undefended(state, resum->undefended, resum->trigger);
}

#endif /* BURSAR_RESUM_BPF_H */
