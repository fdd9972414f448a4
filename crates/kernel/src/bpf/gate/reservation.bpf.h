/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reservations (S1 5.2): memory granted in advance, counted as if it were held until its process says
 * that it is, or ends. It is kept with the address space's record and goes with it, however it ends.
 */
#ifndef BURSAR_RESERVATION_BPF_H
#define BURSAR_RESERVATION_BPF_H

#include <asm-generic/errno.h>

#include "admission.bpf.h"

enum { GIVE_BACK_TRIES = 16 };

#define MOST_PAGES (1LL << 40)	/* of one process; no machine has as many, and no sum of them wraps */

/* Gives `pages` of it back. Two threads may commit at once: nobody gives back what is not there, not for a moment either,
 * for a re-sum may read the record in that. */
static __always_inline int give_back(struct account *account, struct mm_record *record, __s64 pages)
{
	int i;

	for (i = 0; i < GIVE_BACK_TRIES; i++) {
		__s64 there = *(volatile __s64 *)&record->reserved_pages;

		if (there < pages)
			return -EINVAL;
		if (__sync_val_compare_and_swap(&record->reserved_pages, there, there - pages) != there)
			continue;
		__sync_fetch_and_add(&account->reserved_pages, -pages);
		return 0;
	}
	return -EAGAIN;
}

/* What a promise has to fit beside. It is given on no doubt, nor of what the user half has promised (with its end that is
 * void), nor of what CPUs may not have booked yet. */
static __always_inline __s64 promised_level(struct ledger_state *state, struct account *account)
{
	__s64 level = level_of(account, 0, 0, 0, true);

	if (has_stocks(account))
		level += most_in_stocks(account);
	if (state->answering_mm)
		level += *(volatile __s64 *)&account->promised_pages;
	return level;
}

/* Look, add, look again, as try_charge() does (admission.bpf.h). */
static __always_inline bool try_promise(struct ledger_state *state, struct account *account,
					__s64 pages, __s64 limit)
{
	if (promised_level(state, account) + pages > limit)
		return false;
	__sync_fetch_and_add(&account->reserved_pages, pages);
	if (promised_level(state, account) <= limit)
		return true;
	__sync_fetch_and_add(&account->reserved_pages, -pages);
	return false;
}

/* Reserves, or with negative `pages` gives back. 0 or a negative errno. */
static __noinline int change_reservation(struct ledger_state *state, struct account *account,
					 __u32 slot, struct mm_record *record, __s64 pages)
{
	__s64 limit;

	if (!pages || pages > MOST_PAGES || pages < -MOST_PAGES)
		return -EINVAL;
	if (pages < 0)
		return give_back(account, record, -pages);
	/* Up to the limit, not the barrier (S1 5.2): what was reserved will not get anybody killed. */
	limit = account->limit_pages;
	if (limit == NO_BOUND_PAGES)
		limit = account->barrier_pages;
	if (*(volatile __s64 *)&record->reserved_pages + pages > MOST_PAGES)
		return -EINVAL;
	if (limit == NO_BOUND_PAGES) {
		__sync_fetch_and_add(&account->reserved_pages, pages);
	} else if (!try_promise(state, account, pages, limit)) {
		void_stocks(state, account);
		if (!recount(state, account, slot) ||
		    !try_promise(state, account, pages, limit)) {
			tell_refusal(account, slot, REQUEST_RESERVE, pages, level_now(account));
			if (!is_observed(account))
				return -ENOMEM;
			__sync_fetch_and_add(&account->reserved_pages, pages);
		}
	}
	__sync_fetch_and_add(&record->reserved_pages, pages);
	return 0;
}

#endif /* BURSAR_RESERVATION_BPF_H */
