/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The exact re-sum (S1 3.3's interval trigger and 4.5's ticket): the ledger, compared with the kernel's own counters and
 * repaired where they differ.
 *
 * The walk meets all tasks: it finds processes whose beginning was missed, and those for which the ledger has no room. The
 * re-sum reads records anew, finds those whose end was missed, compares each account's held with the sum of its records,
 * and acts where it is over.
 *
 * Both cost what they make the processor fetch: a dozen cache lines for a process that has not run. So each looks only at
 * what may have changed as long as events tell of changes, and at everything by and by (docs/design/3-two-timers.md).
 */
#ifndef BURSAR_RESUM_BPF_H
#define BURSAR_RESUM_BPF_H

#include "seen.bpf.h"
#include "commitment.bpf.h"
#include "files.bpf.h"

/* A walk over all tasks is longer than a re-sum of the records, and little changes between two that
 * events did not tell of: every fifth interval is a walk instead. */
enum { WALK_EVERY = 5 };

enum {
	/* One walk in so many looks at all processes, the others at those that have begun since. On a small machine every
	 * walk looks at all: else a process that changes its uid and then takes no page fault would be found late. */
	THOROUGH_EVERY = 8,
	WALK_AT_ONCE = 1024,
	/* A process may have begun so long before others can see it. */
	BIRTH_NS = 1000000000,
	/* Of more records than these a re-sum reads a share anew, and sums up the others as they are;
	 * those of accounts near a bound are always read. */
	RESUMMED_AT_ONCE = 128,
	MOST_SHARES = 16,
	RENEW_EVERY = 16,	/* of its turns one at which a record's CPUs are looked for anew */
	KILLS_AT_ONCE = 8,	/* in an account whose patience has ended, each interval */
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
	__u64 task, mm;		/* whom the walk has come to, and his address space */
	__u64 since_ns;		/* CLOCK_BOOTTIME, when the walk before this one began */
	__u64 entered;		/* the account that he has entered */
};

static __always_inline void reset_sums(struct account *account, __u64 ticket)
{
	if (account->sum_ticket == ticket)
		return;
	account->sum_ticket = ticket;
	account->sum_pages = 0;
	account->sum_dying_pages = 0;
	account->sum_committed_pages = 0;
	account->sum_reserved_pages = 0;
	account->sum_unkillable_pages = 0;
	account->sum_forgone_pages = 0;
	account->sum_shmem_pages = 0;
	account->sum_processes = 0;
	account->sum_cpus = 0;
}

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
	account->sum_unrecorded_pages += far_member(mm, NULL, MEMBER_ANON) +
					 far_member(mm, NULL, MEMBER_SWAP) +
					 far_member(mm, NULL, MEMBER_SHMEM);
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
	adj = FAR_READ(FAR_READ(task, struct task_struct, signal), struct signal_struct, oom_score_adj);
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
	event = begin_event(EVENT_UNDEFENDED, trigger, now);
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

	if (!record || record->ctx_id != far_ctx_id(mm))
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
		mm = number_of(FAR_READ(task, struct task_struct, mm));
	}
	owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
	if (is_recorded(state, task, mm, resum) || !payer_of_far_task(owner, &payer))
		return 0;
	pay_into(&payer, resum->entered);
	index = record_for(mm, far_ctx_id(mm), &payer, &slot, &missed);
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
	book_far(record, slot, mm);
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
	if ((task->flags & PF_KTHREAD) || (!task->mm && task->pid != task->tgid))
		return;
	resum->tasks++;
	if (resum->is_thorough || task->start_boottime + BIRTH_NS >= resum->since_ns) {
		resum->task = (__u64)task;
		resum->mm = (__u64)task->mm;
		resum->entered = entered_of_new(task);
		meet(resum);
	}
}

/* The address space is gone although nobody told us. */
static __always_inline bool is_gone(struct mm_record *record, __u32 ticket)
{
	__u64 mm = record->mm;

	if (far_ctx_id(mm) != record->ctx_id)
		return true;
	if (FAR_READ(mm, struct mm_struct, mm_users.counter) > 0)
		return false;
	if (!rss_is_atomic() && !FAR_READ(far_counter(mm, 0), struct percpu_counter, counters))
		return true; /* __mmdrop() has freed the counters */
	return recorded_pages(record) == 0 && ticket - record->ticket > 2;
}

/* Whether it is read anew: its turn, or what it holds decides soon, or it is about to go. */
static __always_inline bool is_due(struct mm_record *record, __u32 index, struct resum *resum)
{
	struct account *account = account_at(record->account);

	if (record->ticket == (__u32)resum->ticket)	/* just begun */
		return false;
	return index % resum->shares == resum->share || record->state != MM_LIVING || !account ||
	       account->near;
}

/* What idles keeps its CPUs, what wanders through the machine loses those that have nothing of it any more. */
static __always_inline bool is_renewed(__u32 index, struct resum *resum)
{
	return index % resum->shares == resum->share &&
	       (resum->ticket / resum->shares + index / resum->shares) % RENEW_EVERY == 0;
}

/* On whom it is booked by now. */
static __always_inline void sum_booked(struct resum *resum, const struct mm_record *record)
{
	__u64 living = *(volatile __u64 *)&record->booked, dying = *(volatile __u64 *)&record->booked_dying;
	struct account *account = account_at(slot_booked(living));

	if (living && account) {
		reset_sums(account, resum->ticket);
		account->sum_pages += pages_booked(living);
	}
	account = account_at(slot_booked(dying));
	if (dying && account) {
		reset_sums(account, resum->ticket);
		account->sum_dying_pages += pages_booked(dying);
	}
}

static __always_inline long resum_record(__u32 index, struct resum *resum)
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
	if (is_due(record, index, resum)) {
		__u64 mm = record->mm;

		if (is_gone(record, resum->ticket)) {
			__sync_fetch_and_add(&state->stale_records, 1);
			close_record(index);
			return 0;
		}
		owner = (__u64)FAR_READ(mm, struct mm_struct, owner);
		if (payer_of_record(record, owner, &payer) &&
		    record_for(mm, record->ctx_id, &payer, &slot, &missed) != index)
			return 0; /* nobody pays any more: closed */
		if (is_renewed(index, resum))
			renew_cpus(record, mm);
		look_anew(record, mm);
		account = account_at(record->account);
		if (account) {
			sync_commitment_far(record, account, mm);
			book_far(record, record->account, mm);
		}
		/* Where the timer cannot walk, those that have a record are looked at here. */
		if (!bpf_ksym_exists(bpf_iter_task_new) && owner && record->state == MM_LIVING)
			resum->undefended += !is_defended(state, owner, record->account);
		if (recorded_pages(record)) /* otherwise it grows old: see is_gone() */
			record->ticket = resum->ticket;
	}
	account = account_at(record->account);
	if (!account)
		return 0;
	reset_sums(account, resum->ticket);
	sum_booked(resum, record);
	account->sum_committed_pages += record->committed_pages;
	account->sum_reserved_pages += record->reserved_pages;
	if (record->pages[MEMBER_SHMEM] > 0)
		account->sum_shmem_pages += record->pages[MEMBER_SHMEM];
	if (record->state != MM_DYING) {
		account->sum_processes++;
		account->sum_cpus += cpus_in(&record->cpus);
	}
	if (record->state == MM_DYING)
		account->sum_unkillable_pages += pages_booked(record->booked);
	else if (is_forgone(account, record))
		account->sum_forgone_pages += own_pages(record, pages_booked(record->booked),
							is_corrected(account, bpf_ktime_get_ns()));
	return 0;
}
LOOP_BODY(resum_record, struct resum *, records_made())

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

static __always_inline long end_account_walk(__u32 slot, struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);

	if (!account || !state)
		return 1;
	if (!slot || !(account->flags & ACCOUNT_USED))
		return 0;
	reset_unrecorded(account, resum->walk_ticket);
	/* In this order: at no time is a page in it twice. Who found room since this walk came to him is left out. */
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

/* Not inlined, for the stack of the re-sum: 6.1 has 512 bytes for all calls that lead to a decision. */
static __noinline int patience_ends(struct account *account)
{
	__u32 now = now_ms(), until, since;
	__s64 total, limit;

	if (!account)
		return 0;
	since = account->files_credit_ms;
	if (since && !has_files_credit(since, false, now))
		__sync_val_compare_and_swap(&account->files_credit_ms, since, 0); /* soon, for times come round */
	until = account->unbounded_until_ms;
	limit = account->limit_pages;
	total = total_pages(account) - account->forgone_pages;
	if (until && !is_unbounded(until, now))
		__sync_val_compare_and_swap(&account->unbounded_until_ms, until, 0); /* soon, for times come round */
	else if (until && !(until & PERHAPS))
		limit = NO_LIMIT_PAGES;
	if (is_observed(account)) /* as excess_credit() */
		total -= account->dying_pages;
	return keep_patience(&account->patience, total, limit, now);
}

static __always_inline long resum_account(__u32 slot, struct resum *resum)
{
	struct ledger_state *state = ledger_state();
	struct account *account = account_at(slot);
	int i;

	if (!account || !state)
		return 1;
	if (!slot || !(account->flags & ACCOUNT_USED))
		return 0;
	reset_sums(account, resum->ticket);
	repair(state, &account->held_pages, &account->suspect_pages, account->sum_pages);
	repair(state, &account->dying_pages, &account->suspect_dying_pages, account->sum_dying_pages);
	repair(state, &account->committed_pages, &account->suspect_committed_pages,
	       account->sum_committed_pages + account->forking_pages);
	repair(state, &account->reserved_pages, &account->suspect_reserved_pages,
	       account->sum_reserved_pages);
	account->processes = account->sum_processes;
	account->cpus = account->sum_cpus;
	account->unkillable_pages = account->sum_unkillable_pages;
	account->forgone_pages = account->sum_forgone_pages;
	account->shmem_pages = account->sum_shmem_pages;
	settle_files(slot, resum->trigger);
	if (account->noticed &&
	    level_now(account) < account->notice_pages - (account->notice_pages >> 4))
		account->noticed = 0; /* far enough below to be told again */
	if (account->watched && level_now(account) < account->watch_below_pages)
		tell_watched(slot, level_now(account), resum->trigger);
	place_near(state, account);
	/* Who is over it for what is in doubt only is told of that when the question has its answer. */
	if (!(account->flags & ACCOUNT_PAUSED) && !account->over_ns)
		raise_maxheld(account, level_now(account));
	if (patience_ends(account))
		come_near(state, account);
	react(slot, account->held_pages, resum->trigger, resum->running);
	/* Who may not be killed only a decision finds. */
	if (account->exempt_pages)
		settle(slot, resum->trigger, resum->running);
	/* Where no kill helps one at a time is not enough. */
	for (i = 0; i < KILLS_AT_ONCE && account->patience.is_out; i++)
		if (!settle(slot, resum->trigger, resum->running))
			break;
	return 0;
}
LOOP_BODY(resum_account, struct resum *, accounts_made())

static __always_inline void resum_records(struct ledger_state *state, struct resum *resum, bool all)
{
	resum->ticket = __sync_fetch_and_add(&state->ticket, 1) + 1;
	resum->shares = all ? 1 : 1 + state->mm_high_water / RESUMMED_AT_ONCE;
	if (resum->shares > MOST_SHARES)
		resum->shares = MOST_SHARES;
	resum->share = resum->ticket % resum->shares;
	LOOP(resum_record, resum);
	if (state->kills_wanted)
		retry_kills(resum->trigger, resum->running);
	LOOP(resum_account, resum);
	if (!bpf_ksym_exists(bpf_iter_task_new))
		tell_undefended(state, resum->undefended, resum->trigger);
}

#endif /* BURSAR_RESUM_BPF_H */
