/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The exact re-sum (S1 3.3's interval trigger and 4.5's ticket): the ledger, compared with the kernel's own counters and
 * repaired where they differ.
 *
 * The walk meets all tasks (task_walk.bpf.h): it finds processes whose beginning was missed, and those for which the ledger
 * has no room. The re-sum reads records anew, finds those whose end was missed, compares each account's held with the sum
 * of its records, and acts where it is over.
 *
 * Both cost what they make the processor fetch: a dozen cache lines for a process that has not run. So each looks only at
 * what may have changed as long as events tell of changes, and at everything by and by (docs/design/3-two-timers.md).
 */
#ifndef BURSAR_RESUM_BPF_H
#define BURSAR_RESUM_BPF_H

#include "task_walk.bpf.h"
#include "commitment.bpf.h"
#include "files.bpf.h"

/* A walk over all tasks is longer than a re-sum of the records, and little changes between two that
 * events did not tell of: every fifth interval is a walk instead. */
enum { WALK_EVERY = 5 };

enum {
	/* Of more records than these a re-sum reads a share anew, and sums up the others as they are;
	 * those of accounts near a bound are always read. */
	RESUMMED_AT_ONCE = 128,
	MOST_SHARES = 16,
	RENEW_EVERY = 16,	/* of its turns one at which a record's CPUs are looked for anew */
	KILLS_AT_ONCE = 8,	/* in an account whose patience has ended, each interval */
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

/* The address space is gone although nobody told us. */
static __always_inline bool is_gone(struct mm_record *record, __u32 ticket)
{
	__u64 mm = record->mm;

	if (probe_ctx_id(mm) != record->ctx_id)
		return true;
	if (PROBE_READ(mm, struct mm_struct, mm_users.counter) > 0)
		return false;
	if (!rss_is_atomic() && !PROBE_READ(probe_counter(mm, 0), struct percpu_counter, counters))
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
		owner = (__u64)PROBE_READ(mm, struct mm_struct, owner);
		if (payer_of_record(record, owner, &payer) &&
		    record_for(mm, record->ctx_id, &payer, &slot, &missed) != index)
			return 0; /* nobody pays any more: closed */
		if (is_renewed(index, resum))
			renew_cpus(record, mm);
		look_anew(record, mm);
		account = account_at(record->account);
		if (account) {
			sync_commitment_at(record, account, mm);
			book_at(record, record->account, mm);
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
	book_files(slot, resum->trigger);
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
		decide(slot, resum->trigger, resum->running);
	/* Where no kill helps one at a time is not enough. */
	for (i = 0; i < KILLS_AT_ONCE && account->patience.is_out; i++)
		if (!decide(slot, resum->trigger, resum->running))
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
