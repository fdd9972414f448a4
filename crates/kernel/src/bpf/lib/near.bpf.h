/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How exactly an account is counted (enum nearness). What CPUs keep back of all its processes may hide the way to a
 * bound: from there on it is near, and they are read once. From then on each CPU has a stock of events that it need not
 * book, and books what it remembers when that is used up, or when it turns to another process. What all stocks together may
 * hide is little; from where that could hide the way to the bound each event is booked.
 */
#ifndef BURSAR_NEAR_BPF_H
#define BURSAR_NEAR_BPF_H

#include "cpus.bpf.h"

enum {
	NEAR_PAGES = 256,	/* from the near zone to a bound, beside what CPUs may keep back */
	EXACT_PAGES = 64,	/* from the exact zone to a bound, beside what stocks may hide */
	STOCK_PAGES = 32,	/* of one CPU */
};

/* Whether CPUs may have some. */
static __always_inline bool has_stocks(const struct account *account)
{
	__u32 near = *(volatile __u32 *)&account->near;

	return near == NEAR || near == NEAR_AND_READ;
}

/* Before 6.2 a part of a counter is not a CPU's but a thread's. A bit of a set may stand for several CPUs. */
static __always_inline __s64 most_in_stocks(const struct account *account)
{
	__s64 cpus = (__s64)*(volatile __s32 *)&account->cpus * ((possible_cpus + CPU_BITS - 1) / CPU_BITS);

	if (rss_is_atomic())
		return 0;
	return (cpus < possible_cpus ? cpus : possible_cpus) * STOCK_PAGES;
}

/* The level from which on no CPU has a stock, by where place_near() has put the near zone. */
static __always_inline __s64 exact_from(const struct account *account)
{
	return account->near_pages + kept_back_by(*(volatile __s32 *)&account->cpus) + NEAR_PAGES - EXACT_PAGES -
	       most_in_stocks(account);
}

/* From now on no event of it is far from a bound, until a re-sum finds that it is. False: that is so already. */
static __always_inline bool come_near(struct ledger_state *state, struct account *account)
{
	if (account->near || __sync_lock_test_and_set(&account->near, NEAR) != NOT_NEAR)
		return false;
	__sync_fetch_and_add(&state->generation, 1);
	return true;
}

/* From now on each event is booked; all stocks are void. What they hide is known to who reads all records next. */
static __always_inline bool void_stocks(struct ledger_state *state, struct account *account)
{
	__u32 near = *(volatile __u32 *)&account->near;

	if ((near != NEAR && near != NEAR_AND_READ) ||
	    __sync_val_compare_and_swap(&account->near, near, EXACT) != near)
		return false;
	__sync_fetch_and_add(&state->generation, 1);
	return true;
}

/* The same where they could hide the way to the bound. `level`: its sum, and what is in no record. */
static __always_inline bool come_to_exactness(struct ledger_state *state, struct account *account, __s64 level)
{
	return has_stocks(account) && level >= exact_from(account) && void_stocks(state, account);
}

/* Well below `pages`, so that nobody goes to and fro. */
static __always_inline bool is_well_below(__s64 level, __s64 pages)
{
	return level < pages - (pages >> 6);
}

/* It holds so much less that it need not be counted as exactly. By the re-sum, and where a bound is moved: whoever goes to
 * and fro at one makes all CPUs ask anew that often. */
static __always_inline void come_down(struct ledger_state *state, struct account *account, __s64 level)
{
	if (account->near && is_well_below(level, account->near_pages)) {
		account->near = NOT_NEAR;
		__sync_fetch_and_add(&state->generation, 1);
	} else if (account->near >= EXACT && is_well_below(level, exact_from(account))) {
		account->near = NEAR_AND_READ;
	}
}

#endif /* BURSAR_NEAR_BPF_H */
